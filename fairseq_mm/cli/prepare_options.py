"""Options of ``fairseq-mm prepare``: one table for all kinds of data and all releases."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional

from fairseq_mm.cli.arguments import FLAG, NATURAL, POSITIVE, REPEATED, at_least
from fairseq_mm.data import record_split, transcript_text
from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.story_text import STORY_TOKENIZERS
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import UserError
from fairseq_mm.prepare import captions, prompts, videos, visual_stories
from fairseq_mm.prepare.captions import CaptionWriter, TextWriter
from fairseq_mm.prepare.corpus import POLICIES
from fairseq_mm.prepare.jsonl import KEYS
from fairseq_mm.prepare.prompts import PromptWriter
from fairseq_mm.prepare.videos import VideoWriter
from fairseq_mm.prepare.visual_stories import VisualStoryWriter
from fairseq_mm.prepare.writer import FolderWriter, Vocabulary

_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
_JSONL: dict[str, Any] = {**_FILE, **REPEATED, "metavar": "FILE.jsonl"}
_RARE = "Words that occur fewer than N times in the training {} become <unk> (default: "
_KEEP = (
    "; keep visual stories that have an image left, with the missing ones as padding, listed in "
    "missing_images.txt"
)
_DICTIONARY = "Dictionary of an existing model{}, not a new one."
# option -> help text, in which {names} are filled by add_options, and further settings of argparse
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "--valid": ("JSON lines of valid alone; may be given again.", _JSONL),
    "--test": ("JSON lines of test alone; may be given again.", _JSONL),
    "--valid-size": ("Number of {groups} to draw as valid (default: 0).", NATURAL),
    "--test-size": ("Number of {groups} to draw as test (default: 0).", NATURAL),
    "--without-images": ("Read text alone, also from .txt files.", FLAG),
    "--keys": (
        "What {visual}s are called in the feature store: by the name, the stem (without ending) or "
        "the path of their file; as --ids of fairseq-mm extract (default: name).",
        {"choices": KEYS},
    ),
    "--features": (
        "Feature stores of the {visual}s; {visual}s that none of them has are missing.",
        {"nargs": "+", "metavar": "STORE"},
    ),
    "--missing": (
        "Policy for missing {visual}s: refuse them; drop the examples that need them{keep} "
        "(default: {missing}).",
        {"choices": POLICIES},
    ),
    "--output": ("Data folder to write.", {**_DIR, "required": True}),
    "--overwrite": ("Replace prepared data in DIR.", FLAG),
    "--strict": ("Refuse splits and dictionaries of other sizes than the published ones.", FLAG),
    "--keep-case": ("Do not lower-case the text.", FLAG),
    "--keep-punctuation": ("Keep tokens without a letter or a digit.", FLAG),
    "--threshold": (_RARE.format("split") + "{threshold}).", POSITIVE),
    "--source-threshold": (_RARE.format("prompts") + "{threshold}).", POSITIVE),
    "--target-threshold": (_RARE.format("stories") + "{threshold}).", POSITIVE),
    "--max-words": ("Keep only the N most frequent words (default: all).", POSITIVE),
    "--dictionary": (_DICTIONARY.format(""), _FILE),
    "--source-dictionary": (_DICTIONARY.format(" for prompts"), _FILE),
    "--target-dictionary": (_DICTIONARY.format(" for stories"), _FILE),
    "--story-words": ("Truncate stories to N words; 0 for no limit (default: 1000).", NATURAL),
    "--pretrained": ("Pretrained model, whose dictionary and subwords are taken.", _DIR),
    "--indexed-oov": (
        "Maximum number of indexed OOV tokens per video, for pointer_generator: words outside the "
        "dictionary are written as <unk-0>, <unk-1>, ..., so that the model can copy them "
        "(default: 0).",
        # transcripts have tens of unknown words; each indexed token is a row of the model's
        # embeddings, so that a number that was mistyped would fill the memory of a training
        {"type": at_least(0, 100_000), "metavar": "N"},
    ),
}
# defaults of options, and of settings without an option; a kind or a release may replace some
DEFAULTS: dict[str, Any] = {
    "valid_size": 0,
    "test_size": 0,
    "without_images": False,
    "keys": "name",
    "features": None,
    "missing": None,
    "missing_by_default": "refuse",
    "strict": False,
    "by_stem": False,
    "skip_empty": False,
    "keep_case": False,
    "keep_punctuation": False,
    "tokenizer_of_words": "words",
    "caption_writer": CaptionWriter,
    "story_words": 1000,  # the limit of Fan et al. 2018
    "indexed_oov": 0,
}
OWN = ("--valid", "--test", "--valid-size", "--test-size")
FOLDER = ("--output", "--overwrite")


class Kind(NamedTuple):
    """Kind of data that ``fairseq-mm prepare`` accepts, such as captions."""

    records: record_split.Kind  # kind of the records
    task: str
    module: ModuleType  # module whose docstring shows the format of the user's own JSON lines
    writer: Callable[[argparse.Namespace], FolderWriter]
    # dict from the name of a tokenizer to its description for the help text
    tokenizers: dict[str, str]
    # name of the default tokenizer; None if the default depends on other options
    tokenizer: Optional[str]
    threshold: int  # default of ``--threshold``
    text_options: str  # options about text, separated by spaces
    # options for the user's own data, separated by spaces
    own_options: str = "--keys --features --missing"


def add_options(
    parser: Any, kind: Kind, options: Iterable[str], settled: Mapping[str, Any]
) -> None:
    """Add options of the table ``OPTIONS``, or ``--tokenizer``, to a parser or a group. The help
    texts show the defaults in ``settled``."""
    # the same option concerns images of captions, but videos of summaries
    names = {
        "groups": kind.records.groups,
        "visual": kind.records.visual_noun,
        "missing": settled["missing_by_default"],
        # of an example of one image or video nothing is left
        "keep": "" if kind.records.id_is_key else _KEEP,
        "threshold": settled["default_threshold"],
    }
    how = "; ".join(f"{name} ({what})" for name, what in kind.tokenizers.items())
    default = settled["tokenizer"] or "words, but none for subwords and How2"
    tokenizer = f"Tokenizer: {how} (default: {default}).", {"choices": tuple(kind.tokenizers)}
    for option in options:
        text, more = tokenizer if option == "--tokenizer" else OPTIONS[option]
        if option == "--missing" and kind.records.id_is_key:
            more = {"choices": POLICIES[:2]}
        parser.add_argument(option, help=text.format(**names), **more)


def _vocabulary(args: argparse.Namespace, text: str, **options: Any) -> Vocabulary:
    return Vocabulary(
        text, args.default_threshold, args.threshold, dictionary=args.dictionary, **options
    )


def _common(args: argparse.Namespace, **settings: object) -> dict[str, Any]:
    """Return the arguments of every writer; ``settings`` are saved in prepare.json."""
    return {"settings": settings, "skip_empty": args.skip_empty}


def _caption_writer(args: argparse.Namespace) -> CaptionWriter:
    vocabulary = _vocabulary(args, "captions")
    writer = TextWriter if args.without_images else args.caption_writer
    # refused instead of ignored: prepare.json would record options that had no effect
    if args.tokenizer in ("m_rnn", "ptb") and (args.keep_case or args.keep_punctuation):
        raise UserError(
            f"--tokenizer {args.tokenizer} has its own rules for case and punctuation; leave "
            "--keep-case and --keep-punctuation out with it."
        )
    if args.tokenizer == "ptb":
        from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize

        def split(text: str) -> list[str]:
            # a token may hold a no-break space ("1 1/2"), at which fairseq splits text again
            return " ".join(ptb_tokenize(text)).split()

        return writer(split, {"dict.txt": vocabulary}, **_common(args, tokenizer="ptb"))
    tokenize = CaptionTokenizer(
        args.tokenizer, keep_case=args.keep_case, keep_punctuation=args.keep_punctuation
    )
    return writer(tokenize, {"dict.txt": vocabulary}, **_common(args, **tokenize.settings()))


def _story_writer(args: argparse.Namespace) -> VisualStoryWriter:
    vocabulary = _vocabulary(args, "stories")
    tokenize = CaptionTokenizer(args.tokenizer, keep_case=args.keep_case, keep_punctuation=True)
    # recorded, because it decides which stories and images are in the folder
    policy = args.missing or args.missing_by_default
    settings = _common(args, **tokenize.settings(), missing=policy)
    return VisualStoryWriter(tokenize, {"dict.txt": vocabulary}, **settings)


def _prompt_writer(args: argparse.Namespace) -> PromptWriter:
    vocabularies = {
        f"dict.{side}.txt": Vocabulary(
            text,
            args.default_threshold,
            getattr(args, f"{prefix}_threshold"),
            dictionary=getattr(args, f"{prefix}_dictionary"),
            prefix=f"{prefix}-",  # messages name --source-threshold or --target-threshold
        )
        for side, prefix, text in zip(
            record_split.PROMPTS.sides, ("source", "target"), ("prompts", "stories")
        )
    }
    return PromptWriter(
        STORY_TOKENIZERS[args.tokenizer],
        vocabularies,
        story_words=args.story_words,
        **_common(args, tokenizer=args.tokenizer),
    )


def _video_writer(args: argparse.Namespace) -> VideoWriter:
    if args.dictionary is not None and args.pretrained is not None:
        raise UserError("--pretrained brings its dictionary; leave --dictionary out with it.")
    if args.pretrained is not None:
        args.dictionary = args.pretrained / "dict.txt"
    vocabulary = _vocabulary(args, "text", max_words=args.max_words)
    subwords = Subwords(indexed_oov=args.indexed_oov)
    if args.pretrained is not None:
        subwords = Subwords.from_pretrained(args.pretrained)
        if args.indexed_oov:  # for its error: pieces have no unknown words to index
            subwords = Subwords(subwords.kind, files=subwords.files, indexed_oov=args.indexed_oov)
    pretrained = None if args.pretrained is None else str(args.pretrained)
    # after a tokenizer, the text would become pieces that the pretrained model never saw
    tokenizer = args.tokenizer or (args.tokenizer_of_words if subwords.kind == "none" else "none")
    return VideoWriter(
        transcript_text.TOKENIZERS[tokenizer],
        vocabulary,
        subwords,
        **_common(args, tokenizer=tokenizer, pretrained=pretrained),
    )


KINDS = {
    "captions": Kind(
        record_split.CAPTIONS,
        "multimodal_captioning",
        captions,
        _caption_writer,
        {
            "words": "simple rules for text as people write it",
            "whitespace": "the text is split already",
            "m_rnn": "the released m-RNN code's rules",
            "ptb": "coco-caption's rules, as in scoring",
        },
        "words",
        5,
        "--tokenizer --keep-case --keep-punctuation --threshold --dictionary",
        own_options="--without-images --keys --features --missing",
    ),
    "stories": Kind(
        record_split.VISUAL_STORIES,
        "visual_storytelling",
        visual_stories,
        _story_writer,
        # the m-RNN paper's rules are for captions: they drop the full stops that end sentences
        {
            "words": "simple rules for text as people write it, with punctuation",
            "whitespace": "the text is split already",
        },
        "words",
        10,
        "--tokenizer --keep-case --threshold --dictionary",
    ),
    "prompts": Kind(
        record_split.PROMPTS,
        "hierarchical_story",
        prompts,
        _prompt_writer,
        {
            "story": "the rules of WritingPrompts",
            "whitespace": "the text is split already; line breaks are lost, write <newline>",
        },
        "story",
        # the paper says "more than 10 times", but its dictionary sizes result from 10 or more
        10,
        "--tokenizer --story-words --source-threshold --source-dictionary --target-threshold "
        "--target-dictionary",
        own_options="",
    ),
    "videos": Kind(
        record_split.VIDEOS,
        "video_summarization",
        videos,
        _video_writer,
        {
            "none": "the text as it is; for words, split at spaces",
            "lower": "the same in lower case",
            "words": "lower case, split into words and punctuation",
        },
        None,
        1,
        "--tokenizer --pretrained --dictionary --threshold --max-words --indexed-oov",
    ),
}
