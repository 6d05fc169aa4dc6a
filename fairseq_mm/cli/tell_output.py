"""``fairseq-mm tell``: what is printed for a story or for a prompt that was made up."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional, TextIO

from fairseq_mm.data.output_file import output_file
from fairseq_mm.errors import UserError
from fairseq_mm.extract.weights import sha256_of

# stories from which on a bar shows how far the work is
MANY = 50
FORMS = ("text", "raw", "jsonl")

_GREATEST = 2**53  # id that fairseq's tensors and every reader of JSON can hold


def check_numbers(args: argparse.Namespace) -> None:
    """
    Raises:
        UserError: if a number of stories, an id or the seed is out of its range.
    """
    for name, least in (("n", 1), ("batch_size", 1), ("first_id", 0), ("seed", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UserError(
                f"--{name.replace('_', '-')} must be {least} or more, but is {value} instead."
            )
    for name, value in (("n", args.n or 1), ("first_id", args.first_id)):
        if value > _GREATEST:
            raise UserError(
                f"--{name.replace('_', '-')} must be {_GREATEST} or less, but is {value} instead."
            )
    if args.beam is not None and args.beam < 1:
        raise UserError(f"--beam must be 1 or more, but is {args.beam} instead.")


def check_folder(option: str, path: Optional[str]) -> None:
    """
    Raises:
        UserError: if the folder of the file that an option names does not exist.
    """
    folder = os.path.dirname(path or "")
    if folder and not os.path.isdir(folder):
        raise UserError(f"{option} {path}: there is no folder {folder}.")


class Description:
    """
    Args:
        form: one of ``FORMS``.
        facts: entries that all objects of JSONL have.
        has_heading: before a story stand its id and its prompt.
    """

    def __init__(self, form: str, facts: dict[str, Any], *, has_heading: bool = False) -> None:
        self.form = form
        self.facts = facts
        self.has_heading = has_heading

    def of_story(self, story: Any) -> str:
        if self.form == "raw":
            return " ".join(story.words)
        if self.form == "jsonl":
            return json.dumps({**_entry_of(story), **self.facts}, ensure_ascii=False)
        if not self.has_heading:
            return story.text
        prompt = f": {' '.join(story.prompt.text.split())}" if story.prompt else ""
        return f"=== {story.item}{prompt} ===\n\n{story.text}\n"

    def of_prompt(self, item: int, prompt: Any) -> str:
        tokens = " ".join(prompt.words)
        if self.form != "jsonl":
            return tokens if self.form == "raw" else " ".join(prompt.text.split())
        entry = {"id": item, "prompt": prompt.text, "tokens": tokens, "words": len(prompt.words)}
        entry["score"] = round(prompt.score, 4)
        return json.dumps({**entry, **self.facts}, ensure_ascii=False)


def _entry_of(story: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": story.item}
    prompt = story.prompt
    if prompt is not None:
        entry["prompt"] = prompt.text
    entry["story"] = story.text
    entry["tokens"] = " ".join(story.words)
    entry["words"] = len(story.words)
    entry["score"] = round(story.score, 4)
    if prompt is not None:
        entry["prompt_tokens"] = " ".join(prompt.words)
        if prompt.score is None:
            entry["unknown_words"] = prompt.unknown
            entry["prompt_words_cut"] = prompt.num_cut
        else:
            entry["prompt_score"] = round(prompt.score, 4)
    return entry


def hashes_of(files: list[str]) -> Any:
    """SHA-256 of a file, or of each."""
    hashes = [sha256_of(file) for file in files]
    return hashes[0] if len(hashes) == 1 else hashes


@contextlib.contextmanager
def opened(path: Optional[str]) -> Iterator[TextIO]:
    """stdout, or a file that appears when it is complete."""
    if path is None:
        yield sys.stdout
        return
    with output_file(path) as file:
        yield file


def progress_bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit=" stories", file=sys.stderr, disable=total < MANY or None)
