#!/usr/bin/env python3
"""WritingPrompts, official release (Fan et al. 2018) -> data folder.

The release's folder has {train,valid,test}.wp_source and .wp_target. As for the published
models, stories are cut to 1,000 words and words that occur less than 10 times become <unk>: the
paper says "more than 10", fairseq-preprocess keeps those that occur exactly 10 times. The full
release gives dictionaries of 19,025 and 104,960 types; other sizes are named with their usual
cause, since the published models do not load with them.
"""

import argparse
import sys
from pathlib import Path

from fairseq_mm.cli.prepare_prompts import add_folder_arguments, prepare
from fairseq_mm.cli.prepare_script import run_prepare_script
from fairseq_mm.prepare.releases.writingprompts import read_writingprompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", type=Path, help="the folder writingPrompts")
    parser.add_argument(
        "--drop-unpaired",
        action="store_true",
        help="where a split's two files have different numbers of lines, leave out, and count, "
        "the last lines of the longer one instead of refusing them",
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse other sizes than the published ones"
    )


def run(args: argparse.Namespace) -> int:
    corpus = read_writingprompts(args.release, drop_unpaired=args.drop_unpaired)
    return prepare(corpus, args, tokenizer="whitespace", strict=args.strict)


if __name__ == "__main__":
    sys.exit(run_prepare_script(__doc__, [add_arguments, add_folder_arguments], run))
