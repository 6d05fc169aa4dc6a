"""Reads the pixels of images by key, with the interface of a feature store."""

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import MediaFile, by_any_key, list_images
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.readers import ImageReader

logger = logging.getLogger(__name__)


class PhotoStore:
    """Images of a folder, decoded and preprocessed as ``fairseq-mm extract`` does; an image has one
    row, its ``dim`` uint8 pixels in the order height, width, channel.

    Args:
        folder: Folder of the images, which is searched with its subfolders. A key is the
            image's path in the folder, its name, or its name without suffix.
        preprocessing: Preprocessing that gives all images the same size.
        num_rows: Number of rows that a network makes of an image, for ``--max-tokens``.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, folder: str, preprocessing: Preprocessing, *, num_rows: int = 1) -> None:
        self.path = folder
        self.dim = int(np.prod(preprocessing.input_shape))
        self.num_rows = num_rows
        self._reader = ImageReader(preprocessing)
        self._files: dict[str, MediaFile] = by_any_key(list_images([folder], ids="path"))
        self._pixels: dict[str, np.ndarray] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._files

    def count_rows(self, key: str) -> int:
        return self.num_rows

    def check_keys(self, keys: Iterable[str], split: str) -> None:
        """Raise UserError if the folder lacks images of a split."""
        keys = set(keys)
        missing = sorted(key for key in keys if key not in self._files)
        if missing:
            raise UserError(
                f"{self.path}: must have the images of {split}, each name once, but has not "
                f"{len(missing)} of {len(keys)}, such as {missing[0]!r}."
            )

    def preload(self, keys: Iterable[str]) -> None:
        """Decode images, and keep their pixels in memory; forked processes share them."""
        missing = sorted(set(keys) - set(self._pixels))
        if not missing:
            return
        size = len(missing) * self.dim / 2**20
        logger.info(f"{self.path}: decodes {len(missing)} images to memory ({size:,.0f} MiB)")
        # one array, because pages with Python objects would be copied in forked processes
        pixels = np.empty((len(missing), 1, self.dim), np.uint8)
        for row, key in zip(pixels, missing):
            row[:] = self._decode(key)
        self._pixels.update(zip(missing, pixels))

    def read(self, key: str) -> np.ndarray:
        """Return the pixels ``[1, dim]`` uint8 of an image."""
        pixels = self._pixels.get(key)
        return self._decode(key) if pixels is None else pixels

    def _decode(self, key: str) -> np.ndarray:
        file = self._files[key]
        (pixels,) = self._reader.inputs(file, file.name)
        return pixels.reshape(1, -1)

    def __getstate__(self) -> dict[str, Any]:
        # a process that is spawned decodes its images itself
        return {**self.__dict__, "_pixels": {}}
