"""WritingPrompts (Fan et al. 2018): prompts and stories, both tokenized already.

The release has {train,valid,test}.wp_source and .wp_target: a line of the first is a prompt, the
same line of the second its story.

The published models have vocabularies of 19,025 types for prompts and 104,960 types for stories,
including fairseq's four control symbols. To get them, cut stories to 1,000 words, keep words that
occur at least ten times (the paper says "more than 10", but fairseq keeps a count equal to the
threshold), and use a padding factor of 1. Two other sizes are common: 112,832 (stories not cut) and
19,032 (fairseq's default padding factor). A size that differs is reported, since the published
models cannot be loaded with it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from fairseq_mm.data.input_files import SPLITS, read_lines, unreadable
from fairseq_mm.data.record_split import PROMPTS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example, Examples, Streamed

WRITING_PROMPTS_PAIRS = {"train": 272_600, "valid": 15_620, "test": 15_138}
# sizes of the published models' dictionaries, fairseq's four control symbols included
WRITING_PROMPTS_TYPES = {"dict.wp_source.txt": 19_025, "dict.wp_target.txt": 104_960}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", metavar="RELEASE", type=Path, help="The folder writingPrompts.")


def read(args: argparse.Namespace) -> Corpus:
    return read_writingprompts(args.release)


def read_writingprompts(folder: Path) -> Corpus:
    """Read WritingPrompts from the folder of the release's files; a split may be missing."""
    splits: dict[str, Examples] = {}
    files: list[str] = []
    for split in SPLITS:
        source, target = folder / f"{split}.wp_source", folder / f"{split}.wp_target"
        if not source.exists() and not target.exists():
            continue
        lengths = count_lines(source), count_lines(target)
        if lengths[0] != lengths[1]:
            raise UserError(
                f"{source} has {lengths[0]:,} lines and {target} {lengths[1]:,}, where a line of "
                "each makes a pair."
            )
        splits[split] = _pairs(source, target, lengths[0])
        files += [str(source), str(target)]
    if not files:
        raise UserError(
            f"{folder}: no train.wp_source, valid.wp_source or test.wp_source found in this folder."
        )

    published = WRITING_PROMPTS_PAIRS
    corpus = Corpus(PROMPTS, "writingprompts", "official", splits, files, published=published)
    # a part of the training pairs has a smaller vocabulary, which is no mistake
    if len(splits.get("train", ())) == WRITING_PROMPTS_PAIRS["train"]:
        corpus.published_types = WRITING_PROMPTS_TYPES
    return corpus


def _pairs(source: Path, target: Path, length: int) -> Streamed:
    def read() -> Iterator[Example]:
        for (number, prompt), (_, story) in zip(read_lines(source), read_lines(target)):
            texts = {"prompt": [prompt], "story": [story]}
            yield Example(texts, f"{source}:{number}", places={"story": f"{target}:{number}"})

    return Streamed(read, length)


def count_lines(path: Path) -> int:
    try:
        with open(path, "rb") as file:
            # as bytes: a line break is the same byte in UTF-8, and nothing need be decoded
            return sum(1 for _ in file)
    except OSError as error:
        raise unreadable(path, error) from None
