"""``<split>.references.jsonl``: the references of each item, one JSON object a line.

``{"id": line of visual_ids, "references": [sentences]}``
"""

import json
from pathlib import Path

from fairseq_mm.errors import UserError


def read_references(path: str) -> dict[str, list[str]]:
    """Item id -> its references, in the order of the file.

    Raises:
        UserError: if the file is missing, or a line is no such object or repeats an id.
    """
    references: dict[str, list[str]] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; it holds the references of each item.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            key, sentences = entry["id"], entry["references"]
        except (ValueError, TypeError, KeyError):
            entry, key, sentences = None, None, None
        if (
            not isinstance(key, str)
            or not isinstance(sentences, list)
            or not sentences
            or not all(isinstance(sentence, str) for sentence in sentences)
        ):
            raise UserError(
                f'{path}:{number}: must be {{"id": "...", "references": ["...", ...]}}, but is '
                f"{line[:80]!r}."
            )
        if key in references:
            raise UserError(f"{path}:{number}: the id {key!r} stands in an earlier line already.")
        references[key] = sentences
    return references
