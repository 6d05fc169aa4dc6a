"""Makes a data folder of stories, each of five images and five sentences.

The data is JSON lines, one story a line:

  {"images": ["1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"],
   "sentences": ["We got up early .", "...", "...", "...", "We came home late ."]}

(on one line). Optional fields: "id"; "album", stories of which are references for each other and
stay in one split; "split" (train, valid or test). The folder gets text, ids, references and
fairseq-preprocess's files; its features come from

  fairseq-mm extract data.jsonl --model resnet152 --output DIR/features.h5

Images that this cannot read are named in DIR/features.h5.unreadable.tsv. Prepare again with
--features DIR/features.h5 --missing drop (or keep) --overwrite to leave out their stories, or to
keep them without those images.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.cli.image_lookup import keys_in_stores
from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.missing_images import POLICIES, leave_out_missing
from fairseq_mm.prepare.prepared import read_dictionary_words
from fairseq_mm.prepare.prepared_visual_stories import write_visual_story_folder
from fairseq_mm.prepare.visual_stories import (
    VisualStoryCorpus,
    draw_albums,
    read_visual_stories_jsonl,
)

HELP = "stories of five images, for the task visual_storytelling"

# the m-RNN paper's rules are for captions: they drop the full stops that end sentences
TOKENIZERS = ("words", "whitespace")
THRESHOLD = 10
MISSING = "refuse"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="+", metavar="data.jsonl", help="see above")
    for split in ("valid", "test"):
        parser.add_argument(
            f"--{split}",
            type=Path,
            action="append",
            default=[],
            metavar="FILE.jsonl",
            help=f"a file that holds the {split} split alone; may be given again",
        )
    parser.add_argument(
        "--keys",
        choices=("name", "path"),
        default="name",
        help="what images are called in the feature store: their files' names, or as they stand "
        'in "images"; as fairseq-mm extract --ids',
    )
    for split in ("valid", "test"):
        parser.add_argument(
            f"--{split}-size",
            type=int,
            default=0,
            metavar="N",
            help=f"draw N albums of training stories as {split} split; stories without an album "
            "are drawn with those of the same images",
        )
    parser.add_argument("--seed", type=int, default=1, help="for drawn splits")
    parser.add_argument(
        "--features",
        nargs="+",
        metavar="STORE",
        help="look for the images in these feature stores; those that they lack are missing",
    )
    parser.add_argument(
        "--skip-empty",
        action="store_true",
        help="leave out, and list, stories with a sentence that has no word instead of refusing "
        "them",
    )
    add_folder_arguments(parser, tokenizer="words", missing=MISSING)


def run(args: argparse.Namespace) -> Optional[int]:
    paths = {None: args.data, "valid": args.valid, "test": args.test}
    corpus = read_visual_stories_jsonl(paths, keys=args.keys)
    for split in ("valid", "test"):
        draw_albums(corpus, split, getattr(args, f"{split}_size"), seed=args.seed)
    missing: dict[str, str] = {}
    if args.features:
        _, missing = keys_in_stores(corpus.images(), args.features, by_stem=False)
    elif args.missing is not None:
        raise UserError("--missing needs --features, which says what is missing.")
    args.missing = args.missing or MISSING
    return prepare(corpus, args, missing=missing, skip_empty=args.skip_empty)


def add_folder_arguments(parser: argparse.ArgumentParser, *, tokenizer: str, missing: str) -> None:
    """What all preparations of stories share; ``prepare`` reads it.

    Args:
        parser: of the subcommand or script.
        tokenizer: the default.
        missing: the policy without ``--missing``, which is None then.
    """
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the data folder")
    parser.add_argument("--overwrite", action="store_true", help="replace prepared data in DIR")
    parser.add_argument(
        "--missing",
        choices=POLICIES,
        help="stories of missing images: drop them, keep them with those images as padding "
        "(listed in missing_images.txt; a story without any image is dropped), or refuse them "
        f"(default: {missing})",
    )
    text = parser.add_argument_group("text")
    text.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        default=tokenizer,
        help="words: simple rules, for text as people write it; whitespace: the text is split "
        "already (default: %(default)s). Punctuation is kept",
    )
    text.add_argument("--keep-case", action="store_true", help="do not lower-case")
    text.add_argument(
        "--threshold",
        type=int,
        metavar="N",
        help=f"words that occur less than N times in train become <unk> (default: {THRESHOLD})",
    )
    text.add_argument(
        "--dictionary", type=Path, metavar="dict.txt", help="take these words instead of train's"
    )
    parser.add_argument(
        "--no-binarize",
        action="store_true",
        help="write text, ids and references, and only print the fairseq-preprocess command",
    )


def prepare(
    corpus: VisualStoryCorpus,
    args: argparse.Namespace,
    *,
    missing: dict[str, str],
    skip_empty: bool,
    settings: Optional[dict[str, object]] = None,
    strict: bool = False,
) -> int:
    """Checks, writes the folder and says what it wrote.

    Args:
        corpus: stories by split.
        args: of :func:`add_folder_arguments`.
        missing: image -> why it cannot be used.
        skip_empty: leave out stories with a sentence that has no word.
        settings: further ones for ``prepare.json``.
        strict: refuse splits of other sizes than published ones.

    Raises:
        UserError: for everything that the user can put right.
    """
    # before fairseq-preprocess, which would send its log to stdout
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    threshold = _checked_threshold(args)
    deviations = corpus.deviations()
    if deviations and strict:
        raise UserError(f"--strict: {'; '.join(deviations)}.")
    for line in [*corpus.notes, *deviations]:
        print(line, file=sys.stderr)
    if "valid" not in corpus.stories and "train" in corpus.stories:
        print("no valid split: train with --disable-validation", file=sys.stderr)
    leave_out_missing(corpus, missing, policy=args.missing)
    tokenize = CaptionTokenizer(args.tokenizer, keep_case=args.keep_case, keep_punctuation=True)
    report = write_visual_story_folder(
        corpus,
        args.output,
        tokenize=tokenize,
        settings={**tokenize.settings(), "missing": args.missing, **(settings or {})},
        threshold=threshold,
        dictionary=args.dictionary,
        skip_empty=skip_empty,
        binarize=not args.no_binarize,
        overwrite=args.overwrite,
    )
    _print_report(report, args.output)
    return 0


def _checked_threshold(args: argparse.Namespace) -> int:
    if args.dictionary is not None:
        if args.threshold is not None:
            raise UserError("--dictionary fixes the words; leave --threshold out with it.")
        read_dictionary_words(args.dictionary)  # refuses what fairseq would stumble over
    if args.threshold is not None and args.threshold < 1:
        raise UserError(f"--threshold must be at least 1, but is {args.threshold} instead.")
    return THRESHOLD if args.threshold is None else args.threshold


def _print_report(report: dict[str, Any], output: Path) -> None:
    for split, counts in report["counts"].items():
        line = (
            "{stories:,} stories of {photo_sequences:,} photo sequences, {albums:,} albums and "
            "{images:,} images, {words:,} words".format(**counts)
        )
        if "unknown" in counts:
            line += f", {100 * counts['unknown'] / counts['words']:.2f} % of them unknown"
        print(f"{split}: {line}")
    for what, ids in report["exceptions"].items():
        shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
        print(f"exception, {what}: {len(ids):,} ({shown}; all in prepare.json)")
    if report["masked"]:
        print(f"missing_images.txt: images without features: {len(report['masked']):,}")
    if "dictionary_words" in report:
        print(f"dict.txt: {report['dictionary_words']:,} words")
    print(report["command"])
    print(f"wrote {output}")
