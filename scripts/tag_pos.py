#!/usr/bin/env python3
"""Parts of speech of a prepared folder's captions: the field `tags` of its records.

A text of tags per caption, a universal tag for each of its tokens: structures for --arch sc_nlm.
NLTK or spaCy does it where it is installed with a model of English (python -m nltk.downloader
averaged_perceptron_tagger_eng universal_tagset; python -m spacy download en_core_web_sm).
--tagger rules needs neither and is rougher. Tags of any other tagger will do as well.
"""

import argparse
import sys
from pathlib import Path

from fairseq_mm.cli.script import run_script
from fairseq_mm.prepare.tagging import TAGGERS, tag_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="folder of `fairseq-mm prepare captions`")
    parser.add_argument(
        "--tagger", choices=TAGGERS, help="default: NLTK or spaCy, whichever is installed"
    )
    parser.add_argument("--model", help="of spaCy (default: en_core_web_sm)")


def run(args: argparse.Namespace) -> int:
    for line in tag_folder(args.data, tagger=args.tagger, model=args.model):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(__doc__, [add_arguments], run))
