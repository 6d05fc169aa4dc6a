"""``fairseq-mm summarize``: which videos, and what is said in each."""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.data.input_files import check_id, read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import VIDEOS, MediaFile, list_images
from fairseq_mm.prepare.jsonl import key_of, text_or_file
from fairseq_mm.prepare.subtitles import TRANSCRIPT_SUFFIXES, read_transcript


class Input(NamedTuple):
    """A video, its transcript, or both.

    Attributes:
        name: what is printed.
        video: where it lies; None where there is none, or its features are given.
        transcript: what is said; None where there is none.
        error: why it cannot be summarised.
    """

    name: str
    video: Optional[MediaFile] = None
    transcript: Optional[str] = None
    error: Optional[UserError] = None


def list_inputs(args: argparse.Namespace) -> list[Input]:
    """
    Args:
        args: of the command line.

    Returns:
        In the order of the command line.

    Raises:
        UserError: if there are not as many transcripts as videos, a line of a JSONL file is none,
            or two videos have one name.
    """
    inputs: list[Input] = []
    for path in args.videos:
        if path.lower().endswith(".jsonl"):
            inputs += _of_jsonl(Path(path), args.ids or "name")
        elif args.features:
            inputs.append(Input(path))
        else:
            inputs += _of_videos(path, args.ids or "path")
    if not args.transcripts:
        return inputs
    if not inputs:
        inputs = [Input(path) for path in args.transcripts]
    if len(inputs) != len(args.transcripts):
        raise UserError(
            f"there must be a transcript for each video, in their order, but there are "
            f"{len(args.transcripts)} transcripts and {len(inputs)} videos."
        )
    return [_with_transcript(item, Path(path)) for item, path in zip(inputs, args.transcripts)]


def _with_transcript(item: Input, path: Path) -> Input:
    if item.error is not None:
        return item
    try:
        return item._replace(transcript=read_transcript(path))
    except UserError as error:
        return item._replace(error=_reason(error, item.name))


def _of_videos(path: str, ids: str) -> Iterator[Input]:
    try:
        if path.lower().endswith(TRANSCRIPT_SUFFIXES):
            raise UserError("is no video, but a transcript: --transcript FILE.")
        videos = list_images([path], ids=ids, kind=VIDEOS)
    except UserError as error:
        yield Input(path, error=_reason(error, path))
    else:
        for video in videos:
            yield Input(video.name if ids == "path" else video.key, video)


def _reason(error: UserError, name: str) -> UserError:
    """The error without the name, which is printed before it."""
    message = str(error)
    return UserError(message[len(name) + 2 :]) if message.startswith(f"{name}: ") else error


def _of_jsonl(path: Path, ids: str) -> Iterator[Input]:
    seen: dict[str, str] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        item = _of_line(line, path.parent, ids, where)
        if item.name in seen:
            raise UserError(
                f"{where}: video {item.name} was given before, at {seen[item.name]}; --ids path "
                "tells files of one name apart."
            )
        seen[item.name] = where
        yield item
    if not seen:
        raise UserError(f"{path}: no videos.")


def _of_line(line: str, folder: Path, ids: str, where: str) -> Input:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}).") from None
    names = ("id", "video", "transcript", "transcript_file")
    if not isinstance(entry, dict) or not any(entry.get(name) for name in ("id", "video")):
        raise UserError(
            f'{where}: must be an object with "video" (a path) or "id", and "transcript", but is '
            f"{line[:80]!r}."
        )
    known = {name: entry[name] for name in names if entry.get(name) is not None}
    for name, value in known.items():
        if not isinstance(value, str):
            raise UserError(
                f"{where}: `{name}` must be text, but is {json.dumps(value)[:80]} instead."
            )
    try:
        "".join(known.values()).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: text holds half a character (a lone surrogate).") from None
    if "transcript" in known and "transcript_file" in known:
        raise UserError(f"{where}: has both `transcript` and `transcript_file`; give one of them.")
    name = known.get("id") or key_of(known["video"], ids)
    item = Input(check_id(name, where, what="a video"))
    if "video" in known:
        item = item._replace(video=MediaFile(item.name, os.path.join(folder, known["video"])))
    if "transcript" in known or "transcript_file" in known:
        try:
            item = item._replace(transcript=text_or_file(known, "transcript", folder, where))
        except UserError as error:
            item = item._replace(error=error)
    return item


def stored_inputs(inputs: list[Input], store: Any) -> list[Input]:
    """The inputs as they are in a feature store; without any, all that it has.

    Raises:
        UserError: if it lacks one.
    """
    for item in inputs:
        store.rows_of(item.name)
    return inputs or [Input(key) for key in store.ids]
