"""Reads JPEG files for decoding on a GPU; other images are decoded by Pillow.

The decoding processes read and check the files. The main process, which runs the network, has them
decoded on the GPU by :mod:`fairseq_mm.extract.gpu_decoding`. This module does not import torch.
"""

import dataclasses
import io
from collections.abc import Generator
from typing import Any, NamedTuple, Optional

import numpy as np
from PIL import Image

from fairseq_mm.extract.images import AnyImage, allow_any_size, get_orientation
from fairseq_mm.extract.media_list import open_media
from fairseq_mm.extract.readers import ImageReader, MediaEnd

# first and last two bytes of a whole JPEG file
START, END = b"\xff\xd8", b"\xff\xd9"
# start-of-frame markers; 0xC4, 0xC8 and 0xCC begin tables and extensions
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
BASELINE = (0xC0, 0xC1)
YCBCR_COMPONENTS = (1, 2, 3)


class JpegFile(NamedTuple):
    """JPEG file that a GPU can decode.

    Attributes:
        content: Bytes of the file, ``[bytes]`` uint8.
        width: Width in pixels.
        height: Height in pixels.
    """

    content: np.ndarray
    width: int
    height: int


@dataclasses.dataclass(frozen=True)
class JpegReader(ImageReader):
    """Reader that leaves the decoding of usual JPEG files to a GPU, and decodes other images.

    A JPEG file is usual if it is complete, upright, baseline, in YCbCr colours, and has at most
    ``max_pixels`` pixels. Pillow decodes all other files, and reports the same errors as
    :class:`.ImageReader`.
    """

    # what Linux allows any user: several files
    pipe_bytes = 1 << 20

    def _decode(self, media: AnyImage) -> Generator[Any, None, MediaEnd]:
        if not isinstance(media, (np.ndarray, Image.Image)):
            if not isinstance(media, bytes):
                with open_media(media) as stream:
                    media = stream.read()
            jpeg = find_jpeg(media, max_pixels=self.max_pixels)
            if jpeg is not None:
                yield jpeg
                return MediaEnd()
        return (yield from super()._decode(media))


def find_jpeg(content: bytes, *, max_pixels: int) -> Optional[JpegFile]:
    """Return a JPEG file that a GPU can decode; None if Pillow has to decode the file.

    The head of the file is read, and no pixel is decoded.

    Args:
        content: Bytes of an image file.
        max_pixels: Largest number of pixels.
    """
    # A decoder on the GPU may decode a truncated file without an error; Pillow reports it.
    if not content.startswith(START) or not content.endswith(END):
        return None
    if _find_frame_marker(content) not in BASELINE:
        return None
    try:
        with allow_any_size(), Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            width, height = image.size
            is_usual = (
                image.format == "JPEG"  # not MPO, which has several images
                and image.mode == "RGB"
                and 0 < width * height <= max_pixels
                and image.info.get("adobe_transform", 1) == 1
                # files without either segment can have RGB colours, named by their components
                and ("jfif" in image.info or "adobe_transform" in image.info or _is_ycbcr(image))
                and get_orientation(image) == 1
            )
    except Exception:  # Pillow's readers raise nearly anything on a broken file
        return None
    if not is_usual:
        return None
    # a copy, since tensors of read-only memory make PyTorch warn
    return JpegFile(np.frombuffer(content, dtype=np.uint8).copy(), width, height)


def _find_frame_marker(content: bytes) -> Optional[int]:
    """Return the frame marker of a JPEG file, which says if the file is baseline or progressive."""
    position = len(START)
    while position + 4 <= len(content) and content[position] == 0xFF:
        marker = content[position + 1]
        if marker in FRAMES:
            return marker
        position += 2 + int.from_bytes(content[position + 2 : position + 4], "big")
    return None


def _is_ycbcr(image: Image.Image) -> bool:
    components = getattr(image, "layer", ())
    return tuple(component[0] for component in components) == YCBCR_COMPONENTS
