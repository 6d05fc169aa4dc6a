#!/usr/bin/env python3
"""IAPR TC-12's English descriptions, in Guillaumin's division -> data folder."""

import argparse
import sys
from pathlib import Path

from fairseq_mm.cli.prepare_captions import add_size_argument, run_script, split_files
from fairseq_mm.prepare.releases.iapr_tc12 import CAPTION_UNITS, read_iapr_tc12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("annotations", type=Path, help="the folder annotations_complete_eng")
    parser.add_argument(
        "--split-ids",
        nargs="+",
        required=True,
        metavar="SPLIT=FILE",
        help="train=iaprtc12_train_list.txt test=iaprtc12_test_list.txt",
    )
    parser.add_argument(
        "--captions",
        choices=CAPTION_UNITS,
        default="sentences",
        help="each sentence of a description is a caption (default), or all of it is one",
    )
    add_size_argument(parser, "valid")


if __name__ == "__main__":
    sys.exit(
        run_script(
            __doc__,
            add_arguments,
            lambda args: read_iapr_tc12(
                args.annotations, split_files(args.split_ids), captions=args.captions
            ),
        )
    )
