"""``fairseq-mm summarize``: which videos, what is said in each, and what the models read of it."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.data.input_files import check_id, parse_object, read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import VIDEOS, MediaFile, list_images
from fairseq_mm.prepare.jsonl import key_of, text_or_file
from fairseq_mm.prepare.subtitles import TRANSCRIPT_SUFFIXES, read_transcript

# middle frames of a video on the page
PAGE_IMAGES = 6


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


class Reading(NamedTuple):
    """What the models read of an input.

    Attributes:
        name: of the input.
        index: on which the draws of ``--sampling`` depend.
        example: see :class:`.Example`.
        is_cut: the video has more frames.
        images: some of its frames, ``[height, width, 3]`` uint8.
    """

    name: str
    index: int
    example: Any
    is_cut: bool = False
    images: tuple[np.ndarray, ...] = ()

    def figures(self) -> dict[str, Any]:
        """How much was read, for records."""
        transcript, features = self.example.origin, self.example.features
        found = {
            "transcript_tokens": transcript.num_tokens,
            "transcript_tokens_cut": transcript.num_cut,
        }
        if features is not None:
            found.update(frames=len(features), frames_cut=self.is_cut)
        return found


class VideoInputs:
    """The inputs of a command line, and how they are read.

    Args:
        args: of the command line.
        model: the generator.

    Attributes:
        inputs: in the order of the command line; all items of a feature store if it names none.

    Raises:
        UserError: if an input is not understood, or is none of the models'.
    """

    def __init__(self, args: argparse.Namespace, model: Any) -> None:
        self.args = args
        self.processor = model.processor
        self.reader = model.processor.reader
        self.inputs = list_inputs(args)
        self.store: Any = None
        file = f"{model.files[0]} (--arch {model.architectures[0]})"
        if args.features:
            if not self.reader.reads_video:
                raise UserError(f"--features: is for models of videos, but {file} reads none.")
            self._open_store()
        elif not self.reader.reads_video:
            if any(item.video is not None for item in self.inputs):
                print(f"{file} reads no video: transcripts alone are summarised", file=sys.stderr)
        elif any(item.video is not None for item in self.inputs):
            self.reader.extractor  # noqa: B018  one that cannot be rebuilt is named first

    def _open_store(self) -> None:
        from fairseq_mm.data.feature_store import open_features

        store = open_features(self.args.features.split(os.pathsep))
        self.reader.check_features(store.attributes, store.dim, store.path)
        for item in self.inputs:
            store.rows_of(item.name)  # one that it lacks is named before the work begins
        self.store = store
        self.inputs = self.inputs or [Input(key) for key in store.ids]

    def read(self, index: int) -> Reading:
        """
        Args:
            index: of the input.

        Raises:
            UserError: why it cannot be read, without its name.
        """
        item = self.inputs[index]
        if item.error is not None:
            raise item.error
        value: dict[str, Any] = {"transcript": item.transcript}
        is_cut, images = False, ()
        if self.store is not None:
            value["video"] = self.store.read(item.name)
            is_cut = len(value["video"]) > self.reader.max_frames
        elif self.reader.reads_video and item.video is not None:
            value["video"], is_cut, images = self.reader.read_video(
                item.video,
                batch_size=self.args.batch_size,
                keep_damaged=self.args.keep_damaged,
                max_pixels=self.args.max_pixels,
                num_images=PAGE_IMAGES if self.args.html else 0,
            )
        (example,) = self.processor.examples([value], tokenizer=self.args.tokenizer)
        if isinstance(example, UserError):
            raise example
        return Reading(item.name, index, example, is_cut, tuple(images))


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
            inputs += read_videos_of_jsonl(Path(path), args.ids or "name")
        elif args.features:
            inputs.append(Input(path))
        else:
            inputs += _of_videos(path, args.ids or "path")
    if not args.transcripts:
        return inputs
    inputs = inputs or [Input(path) for path in args.transcripts]
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
    return UserError(str(error).removeprefix(f"{name}: "))


def read_videos_of_jsonl(path: Path, ids: str) -> Iterator[Input]:
    """The videos and transcripts of a JSONL file.

    Args:
        path: of lines ``{"video": path, "transcript": text or file}``, as ``fairseq-mm prepare
            videos`` reads them, or ``{"id": ..., "transcript": ...}``.
        ids: what a video is called: ``name``, ``stem`` or ``path``.

    Raises:
        UserError: if a line is no video, or two have one name.
    """
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
    entry = parse_object(line, where)
    names = ("id", "video", "transcript", "transcript_file")
    known = {name: entry[name] for name in names if entry.get(name) is not None}
    for name, value in known.items():
        if not isinstance(value, str):
            raise UserError(
                f"{where}: `{name}` must be text, but is {json.dumps(value)[:80]} instead."
            )
    if not known.get("id") and not known.get("video"):
        raise UserError(f'{where}: must have "video" (a path) or "id", but has {line[:80]!r}.')
    try:
        "".join(known.values()).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: text holds half a character (a lone surrogate).") from None
    if "transcript" in known and "transcript_file" in known:
        raise UserError(f"{where}: has both `transcript` and `transcript_file`; give one of them.")
    name = check_id(known.get("id") or key_of(known["video"], ids), where, what="a video")
    item = Input(name)
    if "video" in known:
        item = item._replace(video=MediaFile(name, os.path.join(folder, known["video"])))
    if "transcript" in known or "transcript_file" in known:
        try:
            item = item._replace(transcript=text_or_file(known, "transcript", folder, where))
        except UserError as error:
            item = item._replace(error=error)
    return item
