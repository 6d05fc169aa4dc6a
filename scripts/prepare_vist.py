#!/usr/bin/env python3
"""VIST -> data folder: the same as `fairseq-mm prepare vist`."""

import sys

from fairseq_mm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "vist", *sys.argv[1:]]))
