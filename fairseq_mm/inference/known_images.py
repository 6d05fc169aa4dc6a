"""Images of inputs that can be read again after the features are computed."""

import os
from typing import Any, Optional, Union

import numpy as np
from PIL import Image

from fairseq_mm.extract.media_list import MediaFile

KnownImage = Union[str, os.PathLike, bytes, Image.Image, np.ndarray, MediaFile]


def get_known_image(value: Any) -> Optional[KnownImage]:
    """Return an input as an image that can be read again; None if there is no such image.

    Args:
        value: Image in a form that a processor reads, or features of an image (a float array).
    """
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return None
    if hasattr(value, "read"):
        # kept open by hypotheses, files would run out; their content may be gone after reading
        name = getattr(value, "name", None)
        return name if isinstance(name, str) and os.path.isfile(name) else None
    return value
