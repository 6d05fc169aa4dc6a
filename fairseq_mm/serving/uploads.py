"""Reads the bodies of requests, forms with files or JSON, within the limits of the server."""

import asyncio
import json
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Optional

import numpy as np
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from fairseq_mm.data.numpy_files import read_array
from fairseq_mm.data.story_text import NUM_IMAGES
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.subtitles import TRANSCRIPT_SUFFIXES, decode_transcript
from fairseq_mm.serving.batching import WatchedFile
from fairseq_mm.serving.requests import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_FILES,
    MAX_ID_LENGTH,
    Limits,
    Query,
    RefusedError,
)
from fairseq_mm.serving.systems import System

# seconds in which the rest of a body that is too large is received and thrown away
_DRAINING = 5.0
# bytes in which a form must have its end; a boundary has at most 70
_TAIL = 256
_FORM, _JSON = "multipart/form-data", "application/json"
# name of a missing image, as in records
_NO_IMAGE = "-"


class Body(NamedTuple):
    """Content of a request.

    Attributes:
        fields: Values by name: strings of a form, or values of a JSON object.
        files: Uploaded files by name, in the order of the form.
    """

    fields: Mapping[str, Any]
    files: Mapping[str, list[UploadFile]]

    def has(self, name: str) -> bool:
        """Return True if the request has a text or a file of this name."""
        return name in self.fields or name in self.files

    def close(self) -> None:
        """Close the uploaded files, which removes them."""
        for files in self.files.values():
            for file in files:
                file.file.close()


async def read_body(request: Request, limits: Limits) -> Body:
    """Receive the body of a request.

    Raises:
        RefusedError: if the body is too large, comes too slowly, is malformed, or is of another
            type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (_FORM, _JSON):
        raise RefusedError(
            415, f"`Content-Type` must be {_FORM} or {_JSON}, but is {kind[:80] or 'missing'}."
        )
    # JSON has texts only
    most = limits.upload_bytes if kind == _FORM else min(limits.upload_bytes, MAX_FIELD_BYTES)
    counted = Request(request.scope, _Counting(request.receive, most))
    read = _read_form if kind == _FORM else _read_json
    try:
        return await asyncio.wait_for(read(counted), limits.seconds)
    except asyncio.TimeoutError:
        message = f"the request was not complete after {limits.seconds:g} seconds."
        raise RefusedError(408, message) from None
    except _TooLargeError as error:
        if error.has_more:
            await _drain(request.receive)
        raise RefusedError(
            413, f"the request is larger than the {most / 2**20:g} MiB that are accepted."
        ) from None
    except ClientDisconnect:
        raise RefusedError(400, "the client has gone.") from None


class _TooLargeError(Exception):
    """Raised if a body exceeds the limit; ``has_more`` is False if the body has been received."""

    def __init__(self, *, has_more: bool) -> None:
        super().__init__()
        self.has_more = has_more


class _Counting:
    """ASGI ``receive`` function that raises an error after too many bytes.

    Attributes:
        tail: Last bytes that were received.
    """

    def __init__(self, receive: Receive, most: int) -> None:
        self.receive = receive
        self.left = most
        self.tail = b""

    async def __call__(self) -> Message:
        message = await self.receive()
        body = message.get("body", b"")
        self.left -= len(body)
        self.tail = (self.tail + body[-_TAIL:])[-_TAIL:]
        if self.left < 0:
            raise _TooLargeError(has_more=message.get("more_body", False))
        return message


async def _drain(receive: Receive) -> None:
    """Receive the rest of a body, because a browser reads the answer only after sending it."""

    async def drain() -> None:
        while True:
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body"):
                return

    try:
        await asyncio.wait_for(drain(), _DRAINING)
    except asyncio.TimeoutError:
        return


async def _read_form(request: Request) -> Body:
    try:
        form = await request.form(
            max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
        )
    except HTTPException as error:
        raise RefusedError(400, f"malformed form: {error.detail}") from None
    _check_end(request)
    fields: dict[str, Any] = {}
    files: dict[str, list[UploadFile]] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files.setdefault(name, []).append(value)
        elif name in fields:
            raise RefusedError(400, f"`{name[:80]}` must be given once.")
        else:
            fields[name] = value
    for name in fields.keys() & files.keys():
        raise RefusedError(400, f"`{name[:80]}` must be a text or a file, but is both.")
    for name in ("options", "index"):
        if name in fields:
            fields[name] = _parse_json(fields[name], f"`{name}`")
    return Body(fields, files)


def _check_end(request: Request) -> None:
    """Raise RefusedError if a form was cut off; its last field would silently be left out."""
    _, options = parse_options_header(request.headers["content-type"])
    channel: Any = request.receive
    if b"--" + options[b"boundary"] + b"--" not in channel.tail:
        raise RefusedError(400, "malformed form: it ends before its last boundary.")


async def _read_json(request: Request) -> Body:
    content = _parse_json(await request.body(), "the body")
    if not isinstance(content, dict):
        raise RefusedError(400, "the body must be a JSON object.")
    return Body(content, {})


def _parse_json(text: Any, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise RefusedError(400, f"{what} must be JSON, but is malformed.") from None


def _refuse_constant(name: str) -> Any:
    # NaN and Infinity are no JSON
    raise ValueError(name)


def find_system(body: Body, systems: list[System]) -> System:
    """Return the checkpoint or index that the field ``system`` names (default: the first).

    Args:
        body: Body of the request.
        systems: Checkpoints or indexes of one kind, at least one.

    Raises:
        RefusedError: if there is none of this name.
    """
    name = body.fields.get("system", systems[0].name)
    for system in systems:
        if system.name == name:
            return system
    names = ", ".join(system.name for system in systems)
    raise RefusedError(404, f"`system` must be one of {names}, but is {str(name)[:80]!r}.")


def build_query(body: Body, system: System) -> Query:
    """Convert the body of a request to a query.

    Args:
        body: Body of the request.
        system: Model that will answer the query; its kind decides which fields the body must have.

    Raises:
        RefusedError: if a field is missing, unknown, or of another type.
    """
    build = {
        "captions": _image_query,
        "albums": _images_query,
        "prompts": _prompt_query,
        "summaries": _video_query,
        "search": _search_query,
    }[system.kind]
    options = body.fields.get("options", {})
    if not isinstance(options, dict):
        raise RefusedError(400, "`options` must be a JSON object.")
    index = body.fields.get("index", 0)
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < 2**53:
        raise RefusedError(400, "`index` must be an integer of 0 or more.")
    for value in (*body.fields.values(), *options, *options.values()):
        _check_text(value)
    query = build(body, system, {"index": index, "options": options})
    name = body.fields.get("id", query.name)
    is_name = isinstance(name, (str, int)) and not isinstance(name, bool)
    if not is_name or len(str(name)) > MAX_ID_LENGTH:
        raise RefusedError(
            400, f"`id` must be a number or a text of at most {MAX_ID_LENGTH} characters."
        )
    return replace(query, name=name)


def _check_text(value: Any) -> None:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise RefusedError(400, "a text has half of a surrogate pair, which is no text.") from None


def _check_names(body: Body, *names: str) -> None:
    """Check that a request has only the inputs ``names`` and common fields, such as options."""
    common = ("system", "id", "index", "options")
    for name in (*body.fields, *body.files):
        if name not in (*common, *names):
            raise RefusedError(400, f"there is no field {name[:80]!r}.")
    for name in common:
        if name in body.files:
            raise RefusedError(400, f"`{name}` must be text, but is a file.")


def _file_name(file: UploadFile) -> str:
    """Return the name of an uploaded file, in one line and without folders."""
    name = " ".join(posixpath.basename((file.filename or "").replace("\\", "/")).split())
    return name[:MAX_ID_LENGTH] or "file"


def _one_file(body: Body, name: str, what: str) -> UploadFile:
    files = body.files.get(name, [])
    if len(files) != 1:
        count = f"there are {len(files)}" if files else "is missing"
        raise RefusedError(400, f"`{name}` must be {what}, but {count}.")
    return files[0]


def _image_query(body: Body, system: System, common: dict[str, Any]) -> Query:
    _check_names(body, "image")
    file = _one_file(body, "image", "a file")
    name = _file_name(file)
    return Query(WatchedFile(file.file), name, name, **common)


def _images_query(body: Body, system: System, common: dict[str, Any]) -> Query:
    _check_names(body, "images")
    files = body.files.get("images", [])
    if len(files) != NUM_IMAGES:
        raise RefusedError(
            400,
            f"`images` must be {NUM_IMAGES} files, empty ones for missing images, but there are "
            f"{len(files)}.",
        )
    names = [_file_name(file) if file.size else _NO_IMAGE for file in files]
    inputs = [WatchedFile(file.file) if file.size else None for file in files]
    return Query(inputs, "\t".join(names), images=names, **common)


def _check_words(text: Any, name: str, limits: Limits) -> str:
    if not isinstance(text, str):
        kind = "is missing" if text is None else f"is {type(text).__name__}"
        raise RefusedError(400, f"`{name}` must be text, but {kind}.")
    count = len(text.split())
    if count > limits.words:
        raise RefusedError(
            413, f"`{name}` must have at most {limits.words} words, but has {count}."
        )
    return text


def _prompt_query(body: Body, system: System, common: dict[str, Any]) -> Query:
    _check_names(body, "prompt")
    prompt = body.fields.get("prompt")
    if system.reads_prompt:
        prompt = _check_words(prompt, "prompt", system.limits)
    elif body.has("prompt"):
        raise RefusedError(400, f"{system.name} is a language model, which reads no `prompt`.")
    return Query(prompt, common["index"], **common)


def _search_query(body: Body, system: System, common: dict[str, Any]) -> Query:
    _check_names(body, "query", "image")
    if not body.has("image"):
        text = _check_words(body.fields.get("query"), "query", system.limits)
        return Query(text, common["index"], **common)
    if body.has("query"):
        raise RefusedError(400, "`query` and `image`: leave one of the two out.")
    return _image_query(Body({}, body.files), system, common)


def _video_query(body: Body, system: System, common: dict[str, Any]) -> Query:
    _check_names(body, "video", "transcript")
    inputs: dict[str, Any] = {}
    name: Optional[str] = None
    if body.has("video"):
        file = _one_file(body, "video", "one file")
        name = _file_name(file)
        inputs["video"] = WatchedFile(file.file)
        if name.lower().endswith(".npy"):
            inputs["video"] = _read_features(file, name)
    try:
        if "transcript" in body.files:
            file = _one_file(body, "transcript", "text or one file")
            label = _file_name(file)
            if not label.lower().endswith(TRANSCRIPT_SUFFIXES):
                endings = ", ".join(TRANSCRIPT_SUFFIXES)
                raise RefusedError(415, f"{label}: a transcript must be text or {endings}.")
            if (file.size or 0) > MAX_FIELD_BYTES:
                raise RefusedError(413, f"{label}: must have at most {MAX_FIELD_BYTES:,} bytes.")
            inputs["transcript"] = decode_transcript(file.file.read(), label)
            name = name or label
        elif "transcript" in body.fields:
            inputs["transcript"] = body.fields["transcript"]
    except UserError as error:
        raise RefusedError(422, str(error)) from None
    if inputs.get("transcript") is not None:
        _check_words(inputs["transcript"], "transcript", system.limits)
    return Query(inputs, name or str(common["index"]), name or "", **common)


def _read_features(file: UploadFile, name: str) -> Any:
    """Return the features [frames, D] of an uploaded ``.npy`` file."""
    try:
        features = read_array(file.file.read(), name)
    except UserError as error:
        raise RefusedError(422, str(error)) from None
    if features.dtype.kind != "f":
        raise RefusedError(422, f"{name}: features must be floats, but are {features.dtype}.")
    if not np.isfinite(features).all():
        raise RefusedError(422, f"{name}: features must be finite, but some are NaN or infinite.")
    return features
