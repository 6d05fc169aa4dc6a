"""``<split>.unknowns.jsonl``: words that ``<unk-0>``, ``<unk-1>``, ... of each line stand for."""

import json
from pathlib import Path

from fairseq_mm.errors import UserError


def read_unknowns(path: str) -> list[list[str]]:
    """Of each line of the split its words, in the order of their numbers.

    Raises:
        UserError: if the file is missing, or a line is no JSON list of words.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; it holds the words that <unk-0>, <unk-1>, ... stand for."
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
    if lines and lines[-1] == "":
        lines.pop()
    unknowns = []
    for number, line in enumerate(lines, start=1):
        try:
            words = json.loads(line)
        except ValueError:
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError(
                f'{path}:{number}: must be a JSON list of words, ["...", ...], but is '
                f"{line[:80]!r}."
            )
        unknowns.append(words)
    return unknowns
