"""``fairseq-mm score --preset how2``: what a folder of summaries knows beside their references."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

from fairseq_mm.data.numbered_unknowns import restore_unknowns
from fairseq_mm.data.transcript_text import is_not_available
from fairseq_mm.data.unknowns_file import read_unknowns
from fairseq_mm.errors import UserError


def transcripts_path(data: Optional[str], split: str) -> Optional[Path]:
    """``<split>.transcripts.jsonl``, or None where there is none."""
    path = None if data is None else Path(data) / f"{split}.transcripts.jsonl"
    return path if path is not None and path.is_file() else None


def unknowns_path(data: Optional[str], split: str) -> Optional[Path]:
    """``<split>.unknowns.jsonl``, or None where there is none."""
    path = None if data is None else Path(data) / f"{split}.unknowns.jsonl"
    return path if path is not None and path.is_file() else None


def _read_transcripts(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text: {error}") from None
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            key, text = entry["id"], entry["transcript"]
        except (ValueError, TypeError, KeyError):
            key, text = None, None
        if not isinstance(key, str) or not isinstance(text, str):
            raise UserError(
                f'{path}:{number}: must be {{"id": "...", "transcript": "..."}}, but is '
                f"{line[:60]!r} instead."
            )
        texts[key] = text
    return texts


def read_sources(
    data: Optional[str], split: str, ids: Sequence[str], tokenize: Callable[[str], list[str]]
) -> Optional[list[Optional[list[str]]]]:
    """Tokens of the transcripts of some videos.

    Args:
        data: the data folder, or None.
        split: its split.
        ids: the videos.
        tokenize: text -> words.

    Returns:
        For each video its transcript, None for a video without one, or where it reads
        "transcript not available"; None where the folder has no transcripts at all.

    Raises:
        UserError: if a line of the file is no transcript.
    """
    path = transcripts_path(data, split)
    if path is None:
        return None
    texts = _read_transcripts(path)
    found = (texts.get(key, "") for key in ids)
    return [None if is_not_available(text) else tokenize(text) or None for text in found]


def unknowns_by_video(
    data: Optional[str], split: str, visual_ids: Sequence[str]
) -> dict[str, list[str]]:
    """Words that each video's numbered unknowns stand for; empty where the folder has none.

    Raises:
        UserError: if a line of the file is no list of words, or there are not as many as examples.
    """
    path = unknowns_path(data, split)
    if path is None:
        return {}
    unknowns = read_unknowns(str(path))
    if len(unknowns) != len(visual_ids):
        raise UserError(
            f"{path}: must have a line for each of the split's {len(visual_ids)} lines, but has "
            f"{len(unknowns)} lines."
        )
    return dict(zip(visual_ids, unknowns))


def restored(text: str, unknowns: Optional[Sequence[str]]) -> str:
    """The text with words in the place of numbered unknowns; as it is where it has none."""
    return text if unknowns is None or "<unk-" not in text else restore_unknowns(text, unknowns)
