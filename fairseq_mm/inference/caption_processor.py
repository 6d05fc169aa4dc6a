"""Turns images into examples of the task ``multimodal_captioning``."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import IMAGES, AnyImage, Kind, MediaFile, list_images
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.inference.embedder import load_embedder
from fairseq_mm.inference.processor import Example, Processor, read_field
from fairseq_mm.inference.readers import ImageReader, is_features

ImageOrFeatures = Union[AnyImage, np.ndarray]
# image that can be read again after its features are computed
KnownImage = Union[str, os.PathLike, bytes, Image.Image, np.ndarray, MediaFile]


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
    input_fields = ("image",)
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
        else:
            self.embedder = load_embedder(embedding, weights=weights, device=str(loaded.device))
            self.embedder.check_vectors(
                loaded.extractor, loaded.feature_dim, what=f"what {loaded.files[0]} was trained on"
            )
            self.reader = self.embedder
        self.extractor_identity = self.reader.identity

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
    ) -> Iterable[Union[Example, UserError]]:
        """Return the example of each image, or the error of an unreadable image.

        The keyword options are ``batch_size`` and ``max_pixels``, as in
        :meth:`.ImageReader.read_features`.
        """
        values = self.reader.features_of(inputs, **options)
        if self.embedder is not None:
            good = [rows for rows in values if not isinstance(rows, UserError)]
            vectors = iter(self.embedder.embed_features(good))
            values = [x if isinstance(x, UserError) else next(vectors)[None] for x in values]
        return [
            x
            if isinstance(x, UserError)
            else Example(features=x.astype(np.float32), origin=get_known_image(image))
            for image, x in zip(inputs, values)
        ]
