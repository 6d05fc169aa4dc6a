"""Turns images into examples of the task ``multimodal_captioning``."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.images import AnyImage
from fairseq_mm.extract.media_list import IMAGES, Kind, MediaFile, list_images
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.inference.embedder import load_embedder
from fairseq_mm.inference.processor import Example, Processor, read_field
from fairseq_mm.inference.readers import ImageReader

# default number of images whose vectors are computed at a time
_EMBEDDED = 100

ImageOrFeatures = Union[AnyImage, np.ndarray]
# image that can be read again after its features are computed
KnownImage = Union[str, os.PathLike, bytes, Image.Image, np.ndarray, MediaFile]


def is_features(value: Any) -> bool:
    """Return True if an array has features [N, D], False if it has the pixels of an image."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def get_known_image(value: Any) -> Optional[KnownImage]:
    """Return ``value`` if it is an image that can be read again, or its path if it is an open file.

    Return None for features (a float array), and for open files without a path.
    """
    if is_features(value):
        return None
    if hasattr(value, "read"):
        # kept open by hypotheses, files would run out; their content may be gone after reading
        name = getattr(value, "name", None)
        return name if isinstance(name, str) and os.path.isfile(name) else None
    return value


def list_media(
    paths: Sequence[str], kind: Kind
) -> list[tuple[dict[str, Any], Optional[UserError]]]:
    """List images or videos, see :meth:`.Processor.list_files`."""
    records: list[tuple[dict[str, Any], Optional[UserError]]] = []
    for path in paths:
        try:
            files = list_images([path], ids="path", kind=kind)
        except UserError as error:
            records.append(({"id": path}, error))
        else:
            records += [({"id": file.name, kind.field: file}, None) for file in files]
    return records


class CaptionProcessor(Processor[ImageOrFeatures]):
    """Processor that turns images, or features of images, into examples for captioning models.

    An image is a path, its file's content (bytes), a binary file, a PIL image, or a uint8 array
    [H, W, 3]. Features are a float array [N, D] of N feature vectors.

    Args:
        loaded: Captioning models.
        weights: Path of the extractor's weights file (state dict), see :class:`.MediaReader`.
        embedding: Checkpoint of an embedding model, for captioning models that were trained on its
            vectors. Images are then embedded, with the extractor of the embedding model.
    """

    batch_sizes = (100, 100)
    reading_options: Mapping[str, type] = {"batch_size": int, "max_pixels": int}

    def __init__(
        self,
        loaded: LoadedModels,
        *,
        weights: Optional[str] = None,
        embedding: Optional[Union[str, os.PathLike]] = None,
    ) -> None:
        super().__init__(loaded)
        self.embedder = None
        if embedding is None:
            self.reader = ImageReader(loaded, weights=weights)
            return
        self.embedder = load_embedder(embedding, weights=weights, device=str(loaded.device))
        self.embedder.check_vectors(
            loaded.extractor, loaded.feature_dim, what=f"what {loaded.files[0]} was trained on"
        )
        self.reader = self.embedder

    def is_single(self, inputs: Any) -> bool:
        if isinstance(inputs, np.ndarray):
            return True
        return isinstance(inputs, (str, bytes, os.PathLike, Image.Image)) or hasattr(inputs, "read")

    def from_record(self, record: Mapping[str, Any], folder: str) -> ImageOrFeatures:
        image = record.get("image")
        if isinstance(image, MediaFile):
            return image
        return os.path.join(folder, read_field(record, "image"))

    def list_files(self, paths: Sequence[str]) -> list[tuple[dict[str, Any], Optional[UserError]]]:
        return list_media(paths, IMAGES)

    def examples(
        self, inputs: Sequence[ImageOrFeatures], **options: Any
    ) -> Iterator[Union[Example, UserError]]:
        """Yield the example of each image, or the error of an unreadable image.

        The keyword options are ``batch_size`` and ``max_pixels``, as in
        :meth:`.ImageReader.read_features`.
        """
        are_features = all(map(is_features, inputs))
        images: Any = iter(inputs) if are_features else self.reader.read_features(inputs, **options)
        if self.embedder is not None:
            images = self._embedded(images, options.get("batch_size") or _EMBEDDED)
        for position, features in enumerate(images):
            if isinstance(features, UserError):
                yield features  # not raised: the other images can still be captioned
                continue
            # the reader has checked the dimension of its extractor, and the embedder the features
            if are_features and self.embedder is None:
                self.reader.check_dimension(features, position)
            origin = get_known_image(inputs[position])
            yield Example(features=features.astype(np.float32), origin=origin)

    def _embedded(self, features: Iterator[Any], size: int) -> Iterator[Any]:
        """Yield the embedding [1, K] of each image's features, computed ``size`` images at a time.

        If ``features`` has the error of an unreadable image, the error is yielded unchanged.
        """
        assert self.embedder is not None
        while True:
            batch = list(itertools.islice(features, size))
            if not batch:
                return
            readable = [rows for rows in batch if not isinstance(rows, UserError)]
            vectors = iter(self.embedder.embed_features(readable) if readable else ())
            for rows in batch:
                yield rows if isinstance(rows, UserError) else next(vectors)[None]
