"""Makes a data folder of videos: their transcripts and their summaries.

The data is JSON lines, one video a line:

  {"video": "a.mp4", "transcript": "hi , i 'm ann ...", "summary": "learn how to ..."}

"transcript" is the text itself, or the name of a file that ends in .srt, .vtt or .txt, seen from
the folder of data.jsonl; "transcript_file" in its place names a file with any ending. Subtitles
lose their times, numbers and marks, and the lines that automatic captions repeat. For a video
without one write "transcript not available". Optional field: "split" (train, valid or test).

A pretrained model's text must become the tokens that it knows: --pretrained with the folder that
fairseq-mm convert has written, or with fairseq's BART (dict.txt, encoder.json, vocab.bpe in one
folder). The folder's features come from

  fairseq-mm extract data.jsonl --model resnext101_3d --weights FILE --output DIR/features.h5

Videos that this cannot read are named in DIR/features.h5.unreadable.tsv. Prepare again with
--features DIR/features.h5 --missing-features drop --overwrite to leave them out.
"""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.data.subwords import KINDS, Subwords
from fairseq_mm.data.transcript_text import SOURCE, TARGET, TOKENIZERS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.prepared import read_dictionary_words
from fairseq_mm.prepare.prepared_videos import MAX_TOKENS, write_video_folder
from fairseq_mm.prepare.videos_file import (
    KEYS,
    POLICIES,
    VideoCorpus,
    draw_videos,
    leave_out_videos,
    read_videos_jsonl,
)

HELP = "videos with transcripts and summaries, for the task video_summarization"

# kind of subwords -> name of its file -> option that gives it
FILE_OPTIONS = {
    "gpt2": {"encoder.json": "--gpt2-encoder-json", "vocab.bpe": "--gpt2-vocab-bpe"},
    "sentencepiece": {"sentencepiece.model": "--sentencepiece-model"},
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
    parser.add_argument(
        "--keys",
        choices=KEYS,
        default="name",
        help="what videos are called in the feature store: their files' names, the same without "
        'the ending, or as they stand in "video"; as fairseq-mm extract --ids (default: name)',
    )
    for split in ("valid", "test"):
        parser.add_argument(
            f"--{split}-size",
            type=int,
            default=0,
            metavar="N",
            help=f"draw N training videos as {split} split",
        )
    parser.add_argument("--seed", type=int, default=1, help="for drawn splits")
    parser.add_argument(
        "--features",
        nargs="+",
        metavar="STORE",
        help="look for the videos in these feature stores",
    )
    parser.add_argument(
        "--missing-features",
        choices=POLICIES,
        default="error",
        help="with --features: what to do about videos that the stores lack (default: error)",
    )
    add_folder_arguments(parser)


def run(args: argparse.Namespace) -> Optional[int]:
    paths = {None: args.data, "valid": args.valid, "test": args.test}
    corpus = read_videos_jsonl(paths, keys=args.keys)
    for split in ("valid", "test"):
        draw_videos(corpus, split, getattr(args, f"{split}_size"), seed=args.seed)
    if args.features:
        from fairseq_mm.data.feature_store import open_features

        known = open_features(args.features)
        leave_out_videos(corpus, known, known.path, missing=args.missing_features)
    elif args.missing_features != "error":
        raise UserError("--missing-features needs --features, which says what is missing.")
    report = prepare(corpus, args, tokenizer="words")
    print_report(report, args.output)
    return 0


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """What all preparations of videos share; ``prepare`` reads it."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the data folder")
    parser.add_argument("--overwrite", action="store_true", help="replace prepared data in DIR")
    text = parser.add_argument_group("text")
    text.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help="none: the text as it is (for words: split at spaces); lower: the same in lower case; "
        "words: lower case, split into words and punctuation (default for one's own data in words; "
        "none for subwords and How2)",
    )
    text.add_argument(
        "--subwords",
        choices=KINDS,
        help="what the tokens are: words, the pieces of GPT-2's BPE, as BART's, or of a "
        "sentencepiece model, as T5's (default: none)",
    )
    for options in FILE_OPTIONS.values():
        for name, option in options.items():
            text.add_argument(option, type=Path, metavar="FILE", help=f"{name} of these subwords")
    text.add_argument(
        "--pretrained",
        type=Path,
        metavar="DIR",
        help="take dictionary and subwords of this pretrained model's folder",
    )
    text.add_argument(
        "--dictionary",
        type=Path,
        metavar="dict.txt",
        help="take these tokens instead of train's, for both transcripts and summaries",
    )
    text.add_argument(
        "--threshold",
        type=int,
        metavar="N",
        help="tokens that occur less than N times in the training text become <unk> (default: 1)",
    )
    text.add_argument(
        "--max-words", type=int, metavar="N", help="keep but the N most frequent tokens"
    )
    text.add_argument(
        "--numbered-unknowns",
        type=int,
        default=0,
        metavar="N",
        help="for pointer_generator: write words outside the dictionary as <unk-0>, <unk-1>, ..., "
        "up to N a video, so that the model can copy them",
    )
    text.add_argument(
        "--skip-empty",
        action="store_true",
        help="leave out, and list, videos whose transcript or summary has no word instead of "
        "refusing them",
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
        help="write text, ids and references, and only print the fairseq-preprocess command",
    )


def prepare(corpus: VideoCorpus, args: argparse.Namespace, *, tokenizer: str) -> dict[str, Any]:
    """Checks and writes the folder.

    Args:
        corpus: videos by split.
        args: of :func:`add_folder_arguments`.
        tokenizer: the default for words.

    Returns:
        The content of ``prepare.json``.

    Raises:
        UserError: for everything that the user can put right.
    """
    # before fairseq-preprocess, which would send its log to stdout
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    dictionary = _checked_dictionary(args)
    subwords = subwords_of(args)
    for line in [*corpus.notes, *corpus.deviations()]:
        print(line, file=sys.stderr)
    if "valid" not in corpus.videos and "train" in corpus.videos:
        print("no valid split: train with --disable-validation", file=sys.stderr)
    tokenizer = args.tokenizer or (tokenizer if subwords.kind == "none" else "none")
    return write_video_folder(
        corpus,
        args.output,
        tokenize=TOKENIZERS[tokenizer],
        subwords=subwords,
        settings={
            "tokenizer": tokenizer,
            "pretrained": str(args.pretrained) if args.pretrained else None,
        },
        threshold=1 if args.threshold is None else args.threshold,
        max_words=args.max_words or 0,
        dictionary=dictionary,
        skip_empty=args.skip_empty,
        workers=args.workers,
        binarize=not args.no_binarize,
        overwrite=args.overwrite,
    )


def _checked_dictionary(args: argparse.Namespace) -> Optional[Path]:
    if args.dictionary is not None and args.pretrained is not None:
        raise UserError("--pretrained brings its dictionary; leave --dictionary out with it.")
    dictionary = args.dictionary
    if args.pretrained is not None:
        dictionary = args.pretrained / "dict.txt"
        if not args.pretrained.is_dir():
            raise UserError(f"--pretrained {args.pretrained}: no such folder.")
        if not dictionary.exists():
            raise UserError(
                f"--pretrained {args.pretrained}: has no dict.txt; fairseq-mm convert writes one "
                "beside a checkpoint."
            )
    for name in ("threshold", "max_words"):
        value, flag = getattr(args, name), f"--{name.replace('_', '-')}"
        if value is not None and value < 1:
            raise UserError(f"{flag} must be at least 1, but is {value} instead.")
        if value is not None and dictionary is not None:
            raise UserError(f"{dictionary} fixes the tokens; leave {flag} out with it.")
    if dictionary is not None:
        read_dictionary_words(dictionary)  # refuses what fairseq would stumble over
    if args.numbered_unknowns < 0:
        raise UserError(
            f"--numbered-unknowns must be at least 0, but is {args.numbered_unknowns} instead."
        )
    if args.workers < 1:
        raise UserError(f"--workers must be at least 1, but is {args.workers} instead.")
    return dictionary


def subwords_of(args: argparse.Namespace) -> Subwords:
    """The subwords that the options describe.

    Raises:
        UserError: if options contradict each other, or a file is missing or damaged.
    """
    kind = args.subwords
    paths = {}
    for other, options in FILE_OPTIONS.items():
        for name, option in options.items():
            value = getattr(args, option[2:].replace("-", "_"))
            if other == kind and value is None:
                raise UserError(f"--subwords {kind} needs {option}, its {name}.")
            if other == kind:
                paths[name] = value
            elif value is not None:
                raise UserError(f"{option} is for --subwords {other}.")
    if kind is None and args.pretrained is not None:
        subwords = Subwords.of_pretrained(args.pretrained)
        if args.numbered_unknowns:
            return Subwords.from_paths(  # refuses what has pieces
                subwords.kind, {}, numbered_unknowns=args.numbered_unknowns
            )
        return subwords
    return Subwords.from_paths(kind or "none", paths, numbered_unknowns=args.numbered_unknowns)


def print_report(report: dict[str, Any], output: Path) -> None:
    for split, counts in report["counts"].items():
        print(f"{split}: {_describe(counts)}")
    for what, ids in report["exceptions"].items():
        shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
        print(f"exception, {what}: {len(ids):,} ({shown}; all in prepare.json)")
    if "dictionary_words" in report:
        numbered = report["options"]["numbered_unknowns"]
        of_them = f", {numbered:,} of them numbered unknowns" if numbered else ""
        print(
            f"dict.{SOURCE}.txt = dict.{TARGET}.txt: {report['dictionary_words']:,} words{of_them}"
        )
    print(report["command"])
    print(f"wrote {output}")


def _describe(counts: dict[str, int]) -> str:
    parts = [f"{counts['videos']:,} videos"]
    for name, plural, side in (
        ("transcript", "transcripts", SOURCE),
        ("summary", "summaries", TARGET),
    ):
        tokens = counts[f"{name}_tokens"]
        part = f"{tokens:,} tokens in {plural}"
        remarks = []
        if f"unknown_{name}_tokens" in counts:
            share = 100 * counts[f"unknown_{name}_tokens"] / tokens
            remarks.append(f"{share:.2f} % unknown")
        if f"numbered_in_{plural}" in counts:
            remarks.append(f"{100 * counts[f'numbered_in_{plural}'] / tokens:.2f} % numbered")
        if counts[f"{plural}_cut"]:
            remarks.append(
                f"{counts[f'{plural}_cut']:,} {plural} longer than {MAX_TOKENS[side]} with </s>"
            )
        parts.append(part + (f" ({', '.join(remarks)})" if remarks else ""))
    if counts["transcripts_not_available"]:
        parts.append(f"{counts['transcripts_not_available']:,} transcripts not available")
    return ", ".join(parts)
