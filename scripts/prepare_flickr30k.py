#!/usr/bin/env python3
"""Flickr30k -> data folder: the same as `fairseq-mm prepare flickr30k`."""

import sys

from fairseq_mm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "flickr30k", *sys.argv[1:]]))
