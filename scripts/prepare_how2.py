#!/usr/bin/env python3
"""How2 -> data folder: the same as `fairseq-mm prepare how2`."""

import sys

from fairseq_mm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "how2", *sys.argv[1:]]))
