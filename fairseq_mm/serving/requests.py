"""Limits of the server, requests of clients, and errors that are sent to clients."""

from dataclasses import dataclass, field
from typing import Any, Optional

# limits that no option changes: width of a beam, length of an id, number of parts of a form
MAX_BEAM = 20
MAX_ID_LENGTH = 200
MAX_FILES = 8
MAX_FIELDS = 16
MAX_FIELD_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of the number of requests.

    Args:
        upload_bytes: Maximum number of bytes of the body of a request.
        pixels: Maximum number of pixels of an image or a frame; larger JPEGs are decoded at a
            reduced scale, larger images of other formats are refused.
        frames: Maximum number of frames (clips) of a video that are read; None for the models' own
            maximum.
        words: Maximum number of words of a prompt or transcript, and of a generated text.
        seconds: Maximum time from the arrival of a request to its answer.
        waiting: Maximum number of requests that are unanswered at a time.
    """

    upload_bytes: int = 32 << 20
    pixels: int = 32_000_000
    frames: Optional[int] = None
    words: int = 5000
    seconds: float = 60
    waiting: int = 64


class RefusedError(Exception):
    """Error that is sent to the client as the answer to a request.

    Args:
        status: HTTP status, from 400.
        message: One sentence for the client.
        retry_after: Seconds after which the client may try again; None if it should not.
    """

    def __init__(self, status: int, message: str, *, retry_after: Optional[int] = None) -> None:
        # messages of libraries may have line breaks
        super().__init__(" ".join(message.split()))
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True)
class Query:
    """Request of a client to generate a text or to search images.

    Args:
        inputs: Input of the model: a binary file of an image; a list of five such files, with None
            for a missing image; a prompt, or None for a language model; or a dictionary with
            ``video`` and ``transcript``.
        name: Id of the answer.
        label: Name of the input in messages, such as the name of the uploaded file.
        images: Names of the images of an image sequence, ``-`` for a missing one.
        index: Index of the input; with sampling, the random numbers depend on it.
        options: Dict from the name of an option, such as ``beam``, to its value.
    """

    inputs: Any
    name: Any
    label: str = ""
    images: list[str] = field(default_factory=list)
    index: int = 0
    options: dict[str, Any] = field(default_factory=dict)
