"""Images that stories tell of and that cannot be had: gone, unreadable, or not in the store.

``missing_images.txt`` in a data folder lists those of stories that were kept, one id a line: they
have no features, and are padding in the batch. The file is only there when there are any.
"""

import os
from pathlib import Path
from typing import Union

from fairseq_mm.data.input_files import read_lines
from fairseq_mm.errors import UserError

MISSING_IMAGES = "missing_images.txt"


def read_missing_images(folder: Union[str, os.PathLike]) -> frozenset[str]:
    """Ids of the images that have no features, none where the data folder has no such list.

    Raises:
        UserError: if the list cannot be read, or has an empty line.
    """
    path = Path(folder) / MISSING_IMAGES
    if not path.exists():
        return frozenset()
    ids = []
    for number, line in read_lines(path):
        if not line.strip():
            raise UserError(f"{path}:{number}: must have the id of an image, but is empty.")
        ids.append(line)
    return frozenset(ids)
