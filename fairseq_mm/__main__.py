"""Run ``fairseq-mm`` as ``python -m fairseq_mm``."""

import sys

from fairseq_mm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
