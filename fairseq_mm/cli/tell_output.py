"""``fairseq-mm tell``: what is printed for a story or for a prompt that was made up."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any, Optional, TextIO

from fairseq_mm.data.output_file import output_file
from fairseq_mm.extract.weights import sha256_of

# stories from which on a bar shows how far the work is
MANY = 50
FORMS = ("text", "raw", "jsonl")


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
