"""Reads files of generated or retrieved stories: JSONL with ``id``, ``prompt`` and ``hypothesis``.

The field ``story`` is accepted in place of ``hypothesis``; further fields are ignored.
"""

from pathlib import Path
from typing import NamedTuple, Optional, Union

from fairseq_mm.data.input_files import parse_object, read_lines
from fairseq_mm.data.story_text import NEWLINE
from fairseq_mm.errors import UserError


class Story(NamedTuple):
    """Line of a file of stories.

    Attributes:
        id: Id of the story; a number in the file becomes text.
        prompt: Prompt; empty if the line has no prompt.
        story: Readable story, words separated by spaces; line breaks are ``<newline>``.
        tokens: Generated tokens, separated by spaces, before they were turned into readable text;
            the words of ``story`` if the line has no tokens.
    """

    id: str
    prompt: str
    story: str
    tokens: str = ""


def read_stories(path: Union[str, Path]) -> list[Story]:
    """Read a file of stories."""
    stories: dict[str, Story] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        story = _parse_story(line)
        if story is None:
            raise UserError(
                f'{path}:{number}: must be {{"id": ..., "prompt": "...", "hypothesis": "..."}}, '
                f"but is {line[:60]!r}."
            )
        problem = "" if story.story else f"the story of {story.id!r} is empty"
        if story.id in stories:
            problem = f"the id {story.id!r} stands in an earlier line"
        if problem:
            raise UserError(f"{path}:{number}: {problem}.")
        stories[story.id] = story
    if not stories:
        raise UserError(f"{path}: must have stories, but is empty.")
    return list(stories.values())


def _parse_story(line: str) -> Optional[Story]:
    try:
        entry = parse_object(line, "")
    except UserError:
        return None
    key, prompt = entry.get("id"), entry.get("prompt") or ""
    # files of version 0.1 and of `retrieve prompts` call it `story`
    story = entry.get("hypothesis", entry.get("story"))
    # `true` is an int to Python, but no id
    if (
        not isinstance(key, (str, int))
        or isinstance(key, bool)
        or not isinstance(prompt, str)
        or not isinstance(story, str)
    ):
        return None
    words = " ".join(story.replace("\n", f" {NEWLINE} ").split())
    tokens = entry.get("tokens")
    as_written = " ".join(tokens.split()) if isinstance(tokens, str) else ""
    return Story(str(key), " ".join(prompt.split()), words, as_written or words)
