"""``fairseq-mm tell``: the prompts that are given, and what is wrong with them."""

import sys
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.data.story_text import check_encodable
from fairseq_mm.errors import UserError

# prompts whose unknown words are named
NAMED = 5


class Given(NamedTuple):
    """A prompt that was given.

    Attributes:
        name: where, for messages.
        text: as it was given.
    """

    name: str
    text: str


def given_prompts(texts: list[str], files: list[str]) -> list[Given]:
    """
    Args:
        texts: prompts.
        files: with a prompt a line; ``-`` is the standard input.

    Raises:
        UserError: if a file cannot be read, or is empty, or a prompt is no UTF-8 text.
    """
    for number, text in enumerate(texts, start=1):
        check_encodable(text, f"--prompt {number}")
    given = [Given(f"prompt {number}", text) for number, text in enumerate(texts, start=1)]
    for path in files:
        try:
            content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
            lines = content.decode("utf-8-sig").split("\n")
        except OSError as error:
            raise UserError(f"--prompts {path}: cannot be read ({error.strerror}).") from None
        except UnicodeDecodeError as error:
            raise UserError(f"--prompts {path}: is no UTF-8 text ({error}).") from None
        if not lines[-1]:
            lines.pop()
        if not lines:
            raise UserError(f"--prompts {path}: must have prompts, but is empty.")
        name = "standard input" if path == "-" else path
        given += [Given(f"{name}:{number}", line) for number, line in enumerate(lines, start=1)]
    return given


def read_prompts(given: list[Given], teller: Any, *, truncate: bool) -> list[Optional[Any]]:
    """Prompts as the model reads them, None for those that it cannot read.

    What is wrong with a prompt is said on stderr.

    Args:
        given: the prompts.
        teller: a Storyteller.
        truncate: cut prompts that are too long.

    Raises:
        UserError: if the only one cannot be read.
    """
    prompts = []
    with_unknown = []
    for name, text in given:
        try:
            prompt = teller.read_prompt(text, truncate=truncate)
        except UserError as error:
            if len(given) == 1:
                raise
            _say(f"{name}: {error}")
            prompts.append(None)
            continue
        prompts.append(prompt)
        if prompt.num_cut:
            _say(f"{name}: cut to {len(prompt.words)} words, {prompt.num_cut} are left out")
        if prompt.unknown:
            with_unknown.append((name, list(dict.fromkeys(prompt.unknown))))
    for name, words in with_unknown[:NAMED]:
        _say(
            f"{name}: the model does not know, and reads as unknown, {counted(len(words), 'word')}"
            f": {' '.join(words)}"
        )
    if len(with_unknown) > NAMED:
        more = counted(len(with_unknown) - NAMED, "further prompt")
        _say(f"{more} with unknown words (--jsonl has them all)")
    return prompts


def counted(number: int, one: str, several: Optional[str] = None) -> str:
    """``1 story``, ``1,200 stories``."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def _say(message: str) -> None:
    print(f"fairseq-mm tell: {message}", file=sys.stderr)
