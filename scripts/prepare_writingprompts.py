#!/usr/bin/env python3
"""WritingPrompts -> data folder: the same as `fairseq-mm prepare writingprompts`."""

import sys

from fairseq_mm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "writingprompts", *sys.argv[1:]]))
