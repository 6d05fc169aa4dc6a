#!/usr/bin/env python3
"""VIST, official release (Huang et al. 2016) -> data folder.

  scripts/prepare_vist.py FOLDER --output DIR       stories, for the task visual_storytelling
  ... --tier description-in-sequence                the same of that tier, for whoever has it
  ... --tier description-in-isolation               for the task multimodal_captioning

FOLDER has {train,val,test}.TIER.json; a split may be missing (train only with --dictionary).
Stories are put into the order of worker_arranged_photo_order. The release's text is tokenised: it
is lower-cased and split at white space, so that placeholders such as [male] stay one word.
--text original_text --tokenizer words takes the text as it was written.

Images are called by their Flickr number, such as 4996714644. Their features come from

  fairseq-mm extract PHOTOS --ids stem --model resnet152 --output DIR/features.h5

or, where a store calls them otherwise (4996714644.jpg), give it as --features: its keys are taken.

Some images of VIST are gone from Flickr or cannot be read. --images PHOTOS or --features
STORE finds out which, and --missing says what becomes of their stories.
"""

import argparse
import sys
from pathlib import Path

from fairseq_mm.cli import prepare_captions
from fairseq_mm.cli.image_lookup import keys_in_stores, missing_in_folders
from fairseq_mm.cli.prepare_script import run_prepare_script
from fairseq_mm.cli.prepare_stories import THRESHOLD, add_folder_arguments, prepare
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.releases.vist import (
    IN_ISOLATION,
    STORIES,
    TEXT_FIELDS,
    TIERS,
    read_vist_descriptions,
    read_vist_stories,
)

MISSING = "drop"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", type=Path, help="folder of one tier's JSON files")
    parser.add_argument("--tier", choices=TIERS, default=STORIES)
    parser.add_argument(
        "--text",
        choices=TEXT_FIELDS,
        default=TEXT_FIELDS[0],
        help="which field is taken (default: %(default)s)",
    )
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        "--images",
        nargs="+",
        metavar="PHOTOS",
        help="folders or .tar of images, ID.jpg or with another suffix; others are missing",
    )
    images.add_argument(
        "--features", nargs="+", metavar="STORE", help="feature stores; others are missing"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="with --images: decode every image; those that cannot be are missing too",
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse splits of other sizes than published ones"
    )
    add_folder_arguments(parser, tokenizer="whitespace", missing=MISSING)


def look_up(names: list[str], args: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Keys of the images that can be had, and why the others cannot."""
    if args.verify and not args.images:
        raise UserError("--verify decodes the images of --images; give both or neither.")
    if args.images:
        return {}, missing_in_folders(names, args.images, verify=args.verify)
    if args.features:
        return keys_in_stores(names, args.features, by_stem=True)
    if args.missing is not None:
        raise UserError("--missing needs --images or --features, which say what is missing.")
    return {}, {}


def run(args: argparse.Namespace) -> int:
    if args.tier == IN_ISOLATION:
        return run_descriptions(args)
    corpus = read_vist_stories(args.release, tier=args.tier, text_field=args.text)
    keys, missing = look_up(corpus.images(), args)
    args.missing = args.missing or MISSING
    corpus.rename_images(keys)
    return prepare(
        corpus,
        args,
        missing=missing,
        skip_empty=True,
        settings={"tier": args.tier, "text": args.text},
        strict=args.strict,
    )


def run_descriptions(args: argparse.Namespace) -> int:
    if args.missing == "keep":
        raise UserError(
            "--missing keep: a description in isolation has no other image; give drop or refuse."
        )
    corpus = read_vist_descriptions(args.release, text_field=args.text)
    if "train" not in corpus.items and args.dictionary is None:
        raise UserError(
            f"{args.release}: no training descriptions; without them --dictionary must give the "
            "words."
        )
    items = [item for several in corpus.items.values() for item in several]
    keys, missing = look_up([item.id for item in items], args)
    for split, several in corpus.items.items():
        lost = [item for item in several if item.id in missing]
        if lost and args.missing == "refuse":
            raise UserError(
                f"{lost[0].where}: image {lost[0].id} is missing ({missing[lost[0].id]})."
            )
        if lost:
            corpus.exceptions[f"{split} images missing"] = [item.id for item in lost]
        corpus.items[split] = [item for item in several if item.id not in missing]
    for item in items:
        item.id = keys.get(item.id, item.id)
    if args.dictionary is None and args.threshold is None:
        args.threshold = THRESHOLD
    # what that command has options for, and descriptions need not; nothing is drawn
    settled = {
        "keep_punctuation": True,
        "max_words": None,
        "skip_empty": True,
        "features": None,
        "seed": 0,
    }
    return prepare_captions.prepare(corpus, argparse.Namespace(**{**vars(args), **settled}))


if __name__ == "__main__":
    sys.exit(run_prepare_script(__doc__, [add_arguments], run))
