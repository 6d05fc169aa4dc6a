#!/usr/bin/env python3
"""Flickr8k's text release -> data folder.

The release has Flickr8k.token.txt, Flickr_8k.trainImages.txt, Flickr_8k.devImages.txt and
Flickr_8k.testImages.txt in one folder; a missing list other than train's leaves its split out.
"""

import argparse
import sys
from pathlib import Path

from fairseq_mm.cli.prepare_captions import run_script
from fairseq_mm.prepare.releases.flickr import read_flickr8k


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", type=Path, help="folder of the release's text files")


if __name__ == "__main__":
    sys.exit(run_script(__doc__, add_arguments, lambda args: read_flickr8k(args.release)))
