"""Makes a data folder of images with captions.

The data is JSON lines, one image a line:

  {"image": "photo.jpg", "captions": ["A dog runs .", "A brown dog on grass ."]}

Optional fields: "split" (train, valid or test) and "id", the image's key in the feature
store, its file name by default. The folder gets text, ids, references and fairseq-preprocess's
files; its features come from `fairseq-mm extract` or `fairseq-mm store import`.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Callable, Optional

from fairseq_mm.cli.prepare_script import run_prepare_script
from fairseq_mm.data.caption_text import TOKENIZERS, CaptionTokenizer
from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import CaptionCorpus, draw_split, read_captions_jsonl
from fairseq_mm.prepare.prepared import read_dictionary_words
from fairseq_mm.prepare.prepared_captions import write_caption_folder

HELP = "images with captions, for the task multimodal_captioning"


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
        help='the default of "id": the image\'s file name, or "image" as it stands',
    )
    for split in ("valid", "test"):
        add_size_argument(parser, split)
    add_folder_arguments(parser)


def run(args: argparse.Namespace) -> Optional[int]:
    paths = {None: args.data, "valid": args.valid, "test": args.test}
    return prepare(read_captions_jsonl(paths, keys=args.keys), args)


def add_size_argument(parser: argparse.ArgumentParser, split: str) -> None:
    parser.add_argument(
        f"--{split}-size",
        type=int,
        default=0,
        metavar="N",
        help=f"draw N training images, with all their captions, as {split} split",
    )


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """What all preparations of captions share; ``prepare`` reads it."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the data folder")
    parser.add_argument("--overwrite", action="store_true", help="replace prepared data in DIR")
    parser.add_argument("--seed", type=int, default=1, help="for drawn splits")
    text = parser.add_argument_group("text")
    text.add_argument(
        "--tokenizer",
        choices=(*TOKENIZERS, "ptb"),
        default="words",
        help="words: simple rules, for text as people write it (default); whitespace: the text "
        "is split already; m_rnn: the released m-RNN code's rules; ptb: coco-caption's, as scoring "
        "uses them",
    )
    text.add_argument("--keep-case", action="store_true", help="do not lower-case")
    text.add_argument(
        "--keep-punctuation", action="store_true", help="keep tokens without a letter or digit"
    )
    text.add_argument(
        "--threshold",
        type=int,
        metavar="N",
        help="words that occur less than N times in train become <unk> (default: 5)",
    )
    text.add_argument(
        "--max-words", type=int, metavar="N", help="keep the N most frequent words at most"
    )
    text.add_argument(
        "--dictionary", type=Path, metavar="dict.txt", help="take these words instead of train's"
    )
    text.add_argument(
        "--skip-empty",
        action="store_true",
        help="leave out, and count, captions without any word instead of refusing them",
    )
    parser.add_argument(
        "--features",
        nargs="+",
        metavar="STORE",
        help="check that these feature stores hold every image; nothing of them is recorded",
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse splits of other sizes than published ones"
    )
    parser.add_argument(
        "--no-binarize",
        action="store_true",
        help="write text, ids and references, and only print the fairseq-preprocess command",
    )


def prepare(corpus: CaptionCorpus, args: argparse.Namespace) -> int:
    """Draws splits, checks, writes the folder and says what it wrote.

    Raises:
        UserError: for everything that the user can put right.
    """
    # before fairseq-preprocess, which would send its log to stdout
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    threshold = _checked_threshold(args)
    tokenize, settings = _tokenizer_of(args)
    for split in ("valid", "test"):
        draw_split(corpus, split, getattr(args, f"{split}_size", 0), seed=args.seed)
    _report_deviations(corpus, strict=args.strict)
    if args.features:
        check_features(corpus, args.features)
    report = write_caption_folder(
        corpus,
        args.output,
        tokenize=tokenize,
        settings=settings,
        threshold=threshold,
        max_words=args.max_words or 0,
        dictionary=args.dictionary,
        skip_empty=args.skip_empty,
        binarize=not args.no_binarize,
        overwrite=args.overwrite,
    )
    _print_report(report, args.output)
    return 0


def _checked_threshold(args: argparse.Namespace) -> int:
    if args.dictionary is not None:
        if args.threshold is not None or args.max_words is not None:
            raise UserError(
                "--dictionary fixes the words; leave --threshold and --max-words out with it."
            )
        read_dictionary_words(args.dictionary)  # refuses what fairseq would stumble over
    if args.threshold is not None and args.threshold < 1:
        raise UserError(f"--threshold must be at least 1, but is {args.threshold} instead.")
    if args.max_words is not None and args.max_words < 1:
        raise UserError(f"--max-words must be at least 1, but is {args.max_words} instead.")
    return 5 if args.threshold is None else args.threshold


def _tokenizer_of(
    args: argparse.Namespace,
) -> tuple[Callable[[str], list[str]], dict[str, object]]:
    if args.tokenizer in ("m_rnn", "ptb") and (args.keep_case or args.keep_punctuation):
        raise UserError(
            f"--tokenizer {args.tokenizer} has its own rules for case and punctuation; leave "
            "--keep-case and --keep-punctuation out with it."
        )
    if args.tokenizer == "ptb":
        from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize

        # its tokens may hold a no-break space, where fairseq would split them
        return lambda text: " ".join(ptb_tokenize(text)).split(), {"tokenizer": "ptb"}
    tokenizer = CaptionTokenizer(
        args.tokenizer, keep_case=args.keep_case, keep_punctuation=args.keep_punctuation
    )
    return tokenizer, tokenizer.settings()


def _report_deviations(corpus: CaptionCorpus, *, strict: bool) -> None:
    deviations = corpus.deviations()
    if deviations and strict:
        raise UserError(f"--strict: {'; '.join(deviations)}.")
    for line in [*corpus.notes, *deviations]:
        print(line, file=sys.stderr)
    if "valid" not in corpus.items:
        print("no valid split: train with --disable-validation", file=sys.stderr)


def check_features(corpus: CaptionCorpus, paths: list[str]) -> None:
    """
    Raises:
        UserError: if an image of the corpus is in none of the stores.
    """
    from fairseq_mm.data.feature_store import open_features

    store = open_features(paths)
    missing = [item for items in corpus.items.values() for item in items if item.id not in store]
    if missing:
        images = sum(map(len, corpus.items.values()))
        raise UserError(
            f"--features {' '.join(paths)}: {len(missing):,} of {images:,} images are not in the "
            f"store, the first is {missing[0].id} ({missing[0].where})."
        )


def _print_report(report: dict, output: Path) -> None:
    for split, counts in report["counts"].items():
        line = "{images:,} images, {captions:,} captions, {words:,} words".format(**counts)
        if "unknown" in counts:
            line += f", {100 * counts['unknown'] / counts['words']:.2f} % of them unknown"
        if counts["empty_captions_skipped"]:
            line += f", {counts['empty_captions_skipped']:,} empty captions left out"
        print(f"{split}: {line}")
    for what, ids in report["exceptions"].items():
        shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
        print(f"exception, {what}: {len(ids):,} ({shown}; all in prepare.json)")
    if "dictionary_words" in report:
        print(f"dict.txt: {report['dictionary_words']:,} words")
    print(report["command"])
    print(f"wrote {output}")


def split_files(pairs: list[str]) -> dict[str, Path]:
    """Reads ``SPLIT=FILE`` arguments.

    Raises:
        UserError: if one has another form, an unknown split or one given before.
    """
    files: dict[str, Path] = {}
    for pair in pairs:
        split, _, file = pair.partition("=")
        if split not in SPLITS or not file:
            raise UserError(
                f"--split-ids must be train=FILE, valid=FILE or test=FILE, but is {pair} instead."
            )
        if split in files:
            raise UserError(f"--split-ids gives {split} twice.")
        files[split] = Path(file)
    return files


def run_script(
    description: Optional[str],
    add_release_arguments: Callable[[argparse.ArgumentParser], None],
    read: Callable[[argparse.Namespace], CaptionCorpus],
) -> int:
    """Main function of ``scripts/prepare_*.py``: reads a release and prepares it.

    Args:
        description: the script's docstring.
        add_release_arguments: adds what the release needs to the parser.
        read: parsed arguments -> corpus.

    Returns:
        Exit status.
    """
    return run_prepare_script(
        description,
        [add_release_arguments, add_folder_arguments],
        lambda args: prepare(read(args), args),
    )
