#!/usr/bin/env python3
"""Flickr30k in Karpathy's division (29,000 / 1,014 / 1,000 images) -> data folder."""

import argparse
import sys
from pathlib import Path

from fairseq_mm.cli.prepare_captions import run_script
from fairseq_mm.prepare.releases.flickr import read_flickr30k


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("division", type=Path, help="dataset_flickr30k.json")
    parser.add_argument(
        "--captions",
        type=Path,
        help="the release's results_20130124.token or results.csv, for its captions (default: "
        "those of dataset_flickr30k.json)",
    )


if __name__ == "__main__":
    sys.exit(
        run_script(
            __doc__, add_arguments, lambda args: read_flickr30k(args.division, args.captions)
        )
    )
