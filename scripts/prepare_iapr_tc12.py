#!/usr/bin/env python3
"""IAPR TC-12 -> data folder: the same as `fairseq-mm prepare iapr_tc12`."""

import sys

from fairseq_mm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "iapr_tc12", *sys.argv[1:]]))
