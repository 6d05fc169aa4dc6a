"""Pictures as small JPEGs in data URIs."""

import base64
import io
from collections import Counter
from pathlib import Path

from fairseq_mm.errors import UserError
from fairseq_mm.extract.picture_list import Picture, list_pictures
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
    pixels.thumbnail((side, side))
    stream = io.BytesIO()
    pixels.save(stream, "JPEG", quality=_QUALITY)
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
        paths = {picture.key: picture for picture in list_pictures(inputs, ids="path")}
        self._by_key = dict(paths)
        # a store's keys are names, stems or paths, as the user chose when extracting; a name that
        # several pictures have stands for none of them
        for form in (lambda key: Path(key).name, lambda key: Path(key).stem):
            named = Counter(map(form, paths))
            for key in paths:
                if named[form(key)] == 1:
                    self._by_key.setdefault(form(key), paths[key])

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
