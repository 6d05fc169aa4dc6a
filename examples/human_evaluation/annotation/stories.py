"""Reads files of stories: JSONL with ``id``, ``prompt`` and ``hypothesis``."""

from pathlib import Path
from typing import NamedTuple

from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.story_text import NEWLINE
from fairseq_mm.errors import UserError


class Story(NamedTuple):
    """Line of a file of stories.

    Attributes:
        id: Id of the story; a number in the file becomes text.
        prompt: Prompt; empty if the line has no prompt.
        story: Readable story, words separated by spaces; line breaks are ``<newline>``.
    """

    id: str
    prompt: str
    story: str


def read_stories(path: Path) -> list[Story]:
    """Read a file of stories; the field ``story`` is accepted in place of ``hypothesis``."""
    stories: dict[str, Story] = {}
    for where, entry in read_objects(path):
        # files of `retrieve prompts` call it `story`
        text, prompt = entry.get("hypothesis", entry.get("story")), entry.get("prompt") or ""
        key = str(entry.get("id", ""))
        texts = [" ".join(str(x).replace("\n", f" {NEWLINE} ").split()) for x in (prompt, text)]
        if not key or key in stories or not isinstance(text, str) or not texts[1]:
            raise UserError(
                f'{where}: must be {{"id": ..., "prompt": "...", "hypothesis": "..."}} with an id '
                f"that no earlier line has, but is {entry!r:.60}."
            )
        stories[key] = Story(key, *texts)
    if not stories:
        raise UserError(f"{path}: must have stories, but is empty.")
    return list(stories.values())
