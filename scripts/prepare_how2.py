#!/usr/bin/env python3
"""How2 (Sanabria et al. 2018), transcripts, summaries and action features -> data folder.

TEXT has a folder for each set: sum_train, sum_cv and sum_devtest with tran.tok.txt and
desc.tok.txt, or with *_tran_text.txt, *_desc_text.txt and *_action.txt. Features are VIDEO.npy,
[T, 2048]. Several sets make one split:

  prepare_how2.py TEXT --features video_action_features --output data-bin/how2
  prepare_how2.py TEXT --train sum_train sum_asr_train --valid sum_cv --test sum_devtest ...

An interrupted import of features continues when started again with --overwrite.
"""

import argparse
import functools
import sys
from pathlib import Path

from tqdm import tqdm

from fairseq_mm.cli.prepare_script import run_prepare_script
from fairseq_mm.cli.prepare_videos import add_folder_arguments, prepare, print_report
from fairseq_mm.prepare.prepared import locked_output
from fairseq_mm.prepare.releases.how2 import (
    FEATURES_FILE,
    SETS,
    find_features,
    read_how2,
    write_features,
)
from fairseq_mm.prepare.videos_file import POLICIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", type=Path, metavar="TEXT", help="the folder with the sets")
    for split, sets in SETS.items():
        parser.add_argument(
            f"--{split}",
            nargs="*",
            default=sets,
            metavar="SET",
            help=f"the sets that make the {split} split (default: {' '.join(sets)}); none after it "
            "for no such split",
        )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="DIR",
        help="folder of VIDEO.npy; without it the folder is for models that read text alone",
    )
    parser.add_argument(
        "--missing-features",
        choices=POLICIES,
        default="error",
        help="what to do about videos without features (default: error)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "float32"),
        default="float32",
        help="of the feature store (default: float32)",
    )


def run(args: argparse.Namespace) -> int:
    corpus = read_how2(args.text, {split: getattr(args, split) for split in SETS})
    source = None
    if args.features is not None:
        source = find_features(corpus, args.features, missing=args.missing_features)
    # features of another run than the text's would be as wrong as another run's text
    with locked_output(args.output):
        report = prepare(corpus, args, tokenizer="none")
        print_report(report, args.output)
        if source is not None:
            path = args.output / FEATURES_FILE
            bar = functools.partial(tqdm, desc="features", unit=" videos", disable=None)
            written = write_features(source, path, dtype=args.dtype, progress=bar)
            number = f"{len(source.keys):,} videos"
            stays = f"{path} has the features of all {number} already and stays; delete it to have"
            print(f"wrote {path}: {number}" if written else f"{stays} it made anew")
    return 0


if __name__ == "__main__":
    sys.exit(run_prepare_script(__doc__, [add_arguments, add_folder_arguments], run))
