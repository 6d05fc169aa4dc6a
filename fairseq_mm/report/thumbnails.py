"""Converts images to small JPEGs in data URIs."""

from typing import Optional

from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.data_uris import jpeg_uri
from fairseq_mm.extract.media import MediaFile, by_any_key, list_images, read_image


def read_listed(image: MediaFile) -> Image.Image:
    """Open an image of :func:`fairseq_mm.extract.media.list_images` with PIL."""
    try:
        return read_image(image)
    except UserError as error:
        raise UserError(f"{image.name}: {error}") from None


def thumbnail_uri(image: MediaFile, side: int) -> str:
    """Return an image file as the data URI of a JPEG.

    ``side`` is the maximum length of the longer side in pixels.
    """
    return jpeg_uri(read_listed(image), side=side)


class Thumbnails:
    """Thumbnails of the images in folders and archives, looked up by the id of the image; ``side``
    is the maximum length of the longer side in pixels. ``missing`` has the ids that :meth:`find`
    did not find."""

    def __init__(self, inputs: Optional[list[str]], side: int) -> None:
        self.side = side
        self.missing: list[str] = []
        # ids may be names, stems or paths: it depends on the options with which data was prepared
        self._by_key = by_any_key(list_images(inputs, ids="path") if inputs else ())

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def image(self, key: str) -> MediaFile:
        return self._by_key[key]

    def data_uri(self, key: str) -> str:
        """Return the data URI of the thumbnail of the image with the id ``key``."""
        return thumbnail_uri(self._by_key[key], self.side)

    def find(self, key: str) -> dict[str, str]:
        """Return the data URI of each image of an item, by image id. The item's id ``key`` consists
        of the image ids, separated by tabs."""
        names = key.split("\t")
        self.missing += [name for name in names if name not in self]
        return {name: self.data_uri(name) for name in names if name in self}

    def describe_missing(self) -> str:
        """Return a clause about missing images for a message; empty if all images were found."""
        if not self.missing:
            return ""
        return f"; {len(self.missing):,} images not found, the first is {self.missing[0]}"
