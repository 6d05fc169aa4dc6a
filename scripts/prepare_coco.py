#!/usr/bin/env python3
"""COCO captions of 2014 -> data folder, in one of three divisions.

  --split karpathy  dataset_coco.json
  --split official  captions_train2014.json captions_val2014.json
  --split m_rnn     the same two, and --split-ids valid=FILE test=FILE: the m-RNN paper's 4,000
                    and 1,000 images of val2014, numbers or file names, one a line

The division stands in prepare.json; results on different ones do not compare.
"""

import argparse
import sys
from pathlib import Path

from fairseq_mm.cli.prepare_captions import run_script, split_files
from fairseq_mm.prepare.releases.coco import COCO_IMAGES, read_coco


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", help="see above")
    parser.add_argument("--split", choices=COCO_IMAGES, required=True)
    parser.add_argument("--split-ids", nargs="+", default=[], metavar="SPLIT=FILE")


if __name__ == "__main__":
    sys.exit(
        run_script(
            __doc__,
            add_arguments,
            lambda args: read_coco(args.split, args.files, split_files(args.split_ids)),
        )
    )
