#!/usr/bin/env python3
"""COCO captions -> data folder: the same as `fairseq-mm prepare coco`."""

import sys

from fairseq_mm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "coco", *sys.argv[1:]]))
