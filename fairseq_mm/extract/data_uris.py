"""Encodes images as small JPEGs in data URIs, for HTML."""

import base64
import io
from typing import Optional

from PIL import Image

QUALITY = 82


def jpeg_uri(pixels: Image.Image, *, side: Optional[int] = None, quality: int = QUALITY) -> str:
    """Return the data URI of an RGB image as a JPEG, whose longer side is at most ``side``."""
    if side is not None:
        pixels = pixels.copy()  # thumbnail() changes the image itself
        pixels.thumbnail((side, side))
    # JPEG also for PNGs: a page with hundreds of images stays small enough for a browser
    stream = io.BytesIO()
    pixels.save(stream, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
