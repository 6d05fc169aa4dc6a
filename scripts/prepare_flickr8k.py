#!/usr/bin/env python3
"""Flickr8k -> data folder: the same as `fairseq-mm prepare flickr8k`."""

import sys

from fairseq_mm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", "flickr8k", *sys.argv[1:]]))
