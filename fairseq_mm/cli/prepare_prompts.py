"""Makes a data folder of prompts with their stories.

The data is JSON lines, one pair a line:

  {"prompt": "[WP] You can't die.", "story": "It began with \\"a walk\\".\\n\\nThen ..."}

Optional fields: "split" (train, valid or test) and "id", which <split>.ids lists line by line.
Text is split into words as WritingPrompts is; line breaks become <newline>. The folder gets
text, dictionaries and fairseq-preprocess's files for the task hierarchical_story, and for
language models the folders prompts and stories.
"""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any, Callable, Optional

from fairseq_mm.data.story_text import tokenize_story_text
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.prepared import read_dictionary_words
from fairseq_mm.prepare.prepared_prompts import write_prompt_folder
from fairseq_mm.prepare.prompts import StoryCorpus, read_prompts_jsonl

HELP = "prompts with stories, for the task hierarchical_story"

TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "story": tokenize_story_text,
    "whitespace": str.split,
}


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
    for split in ("valid", "test"):
        parser.add_argument(
            f"--{split}-size",
            type=int,
            default=0,
            metavar="N",
            help=f"draw N training prompts, with all their stories, as {split} split",
        )
    parser.add_argument("--seed", type=int, default=1, help="for drawn splits")
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        default="story",
        help="story: as WritingPrompts is split (default); whitespace: the text is split already "
        "(line breaks are lost; write them as <newline>)",
    )
    add_folder_arguments(parser)


def run(args: argparse.Namespace) -> Optional[int]:
    paths = {None: args.data, "valid": args.valid, "test": args.test}
    draw = {"valid": args.valid_size, "test": args.test_size}
    return prepare(
        read_prompts_jsonl(paths, draw=draw, seed=args.seed), args, tokenizer=args.tokenizer
    )


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """What all preparations of prompts share; ``prepare`` reads it."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the data folder")
    parser.add_argument("--overwrite", action="store_true", help="replace prepared data in DIR")
    text = parser.add_argument_group("text")
    text.add_argument(
        "--story-words",
        type=int,
        default=1000,
        metavar="N",
        help="cut stories to their first N words (default: 1000); 0 leaves them whole",
    )
    for side, half in (("source", "prompts"), ("target", "stories")):
        text.add_argument(
            f"--{side}-threshold",
            type=int,
            metavar="N",
            help=f"words that occur less than N times in the training {half} become <unk> "
            "(default: 10)",
        )
        text.add_argument(
            f"--{side}-dictionary",
            type=Path,
            metavar=f"dict.wp_{side}.txt",
            help=f"take these words for {half} instead of train's: those of an existing model",
        )
    text.add_argument(
        "--skip-empty",
        action="store_true",
        help="leave out, and count, pairs whose prompt or story has no word instead of refusing "
        "them",
    )
    text.add_argument(
        "--split-symbols",
        action="store_true",
        help="write fairseq's control symbols, <s>, </s> and <pad>, as three words, < s >, where "
        "the text has them, instead of refusing them",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=min(8, os.cpu_count() or 1),
        metavar="N",
        help="processes of fairseq-preprocess (default: one a core, at most 8)",
    )
    parser.add_argument(
        "--no-binarize",
        action="store_true",
        help="write text, and only print the fairseq-preprocess commands",
    )


def prepare(
    corpus: StoryCorpus, args: argparse.Namespace, *, tokenizer: str, strict: bool = False
) -> int:
    """Checks, writes the folder and says what it wrote.

    Raises:
        UserError: for everything that the user can put right.
    """
    # before fairseq-preprocess, which would send its log to stdout
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("fairseq_mm.prepare").setLevel(logging.INFO)
    _check(args)
    deviations = corpus.deviations()
    if deviations and strict:
        raise UserError(f"--strict: {'; '.join(deviations)}.")
    if "valid" not in corpus.num_pairs:
        print("no valid split: train with --disable-validation", file=sys.stderr)
    report = write_prompt_folder(
        corpus,
        args.output,
        tokenize=TOKENIZERS[tokenizer],
        settings={"tokenizer": tokenizer},
        story_words=args.story_words,
        source_threshold=args.source_threshold or 10,
        target_threshold=args.target_threshold or 10,
        source_dictionary=args.source_dictionary,
        target_dictionary=args.target_dictionary,
        skip_empty=args.skip_empty,
        split_symbols=args.split_symbols,
        workers=args.workers,
        strict=strict,
        binarize=not args.no_binarize,
        overwrite=args.overwrite,
    )
    for line in report["deviations"]:
        print(line, file=sys.stderr)
    _print_report(report, args.output)
    return 0


def _check(args: argparse.Namespace) -> None:
    for side in ("source", "target"):
        dictionary = getattr(args, f"{side}_dictionary")
        threshold = getattr(args, f"{side}_threshold")
        if dictionary is not None and threshold is not None:
            raise UserError(
                f"--{side}-dictionary fixes the words; leave --{side}-threshold out with it."
            )
        if dictionary is not None:
            read_dictionary_words(dictionary)  # refuses what fairseq would stumble over
        if threshold is not None and threshold < 1:
            raise UserError(f"--{side}-threshold must be at least 1, but is {threshold} instead.")
    if args.story_words < 0:
        raise UserError(f"--story-words must be at least 0, but is {args.story_words} instead.")
    if args.workers < 1:
        raise UserError(f"--workers must be at least 1, but is {args.workers} instead.")


def _print_report(report: dict[str, Any], output: Path) -> None:
    for split, counts in report["counts"].items():
        print(f"{split}: {_describe(counts)}")
    for name, words in report.get("dictionary_words", {}).items():
        print(f"{name}: {words:,} words, {words + 4:,} types with fairseq's control symbols")
    for command in report["commands"]:
        print(command)
    print(f"wrote {output}")


def _describe(counts: dict[str, int]) -> str:
    parts = [f"{counts['pairs']:,} pairs of {counts['prompts']:,} different prompts"]
    for half, words_of in (("prompt", "prompts"), ("story", "stories")):
        words = counts[f"{half}_words"]
        part = f"{words:,} words in {words_of}"
        if f"unknown_{half}_words" in counts:
            part += f" ({100 * counts[f'unknown_{half}_words'] / words:.2f} % unknown)"
        parts.append(part)
    parts.append(f"{counts['stories_cut']:,} stories cut by {counts['words_cut']:,} words")
    remarks = {
        "empty_pairs_skipped": "empty pairs left out",
        "unpaired_lines": "unpaired lines left out",
        "duplicate_pairs": "pairs that stood before",
        "symbols_split": "control symbols split",
        "prompts_in_train": "prompts that train has too",
    }
    return ", ".join(
        parts + [f"{counts[key]:,} {what}" for key, what in remarks.items() if counts.get(key)]
    )
