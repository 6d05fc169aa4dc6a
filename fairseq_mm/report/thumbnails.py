"""Pictures as small JPEGs in data URIs."""

import base64
import io
from typing import Optional

from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.picture_list import Picture, by_any_key, list_pictures
from fairseq_mm.extract.pictures import read_picture

_QUALITY = 82


def thumbnail_uri(picture: Picture, side: int) -> str:
    """The data URI of a JPEG whose longer side has at most ``side`` pixels.

    Raises:
        UserError: naming the file, if it cannot be read as a picture.
    """
    try:
        pixels = read_picture(picture.content())
    except (UserError, OSError) as error:
        raise UserError(f"{picture.name}: {error}") from None
    return jpeg_uri(pixels, side=side)


def jpeg_uri(pixels: Image.Image, *, side: Optional[int] = None, quality: int = _QUALITY) -> str:
    """The data URI of a JPEG.

    Args:
        pixels: the picture.
        side: the longer side is at most so many pixels; None leaves it.
        quality: the JPEG's.
    """
    if side is not None:
        pixels = pixels.copy()
        pixels.thumbnail((side, side))
    stream = io.BytesIO()
    pixels.save(stream, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


class Thumbnails:
    """Thumbnails of the pictures of a folder or archive, by key.

    Args:
        inputs: what ``fairseq-mm extract`` takes: folders, picture files, archives.
        side: the longer side is at most so many pixels.

    Raises:
        UserError: if an input has no pictures.
    """

    def __init__(self, inputs: list[str], side: int) -> None:
        self.side = side
        self._by_key = by_any_key(list_pictures(inputs, ids="path"))

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def picture(self, key: str) -> Picture:
        """Where the picture lies."""
        return self._by_key[key]

    def data_uri(self, key: str) -> str:
        """
        Raises:
            UserError: naming the file, if it cannot be read as a picture.
        """
        return thumbnail_uri(self._by_key[key], self.side)
