"""Encodes images as small JPEGs in data URIs, for HTML."""

import base64
import io
from typing import Optional

from PIL import Image

QUALITY = 82


def jpeg_uri(pixels: Image.Image, *, side: Optional[int] = None, quality: int = QUALITY) -> str:
    """Encode an image as a JPEG, and return its data URI.

    Args:
        pixels: PIL image in RGB.
        side: Maximum length of the longer side in pixels; None for no limit.
        quality: JPEG quality of PIL, 1 to 95.
    """
    if side is not None:
        pixels = pixels.copy()  # thumbnail() changes the image itself
        pixels.thumbnail((side, side))
    # JPEG also for PNGs: a page with hundreds of images stays small enough for a browser
    stream = io.BytesIO()
    pixels.save(stream, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
