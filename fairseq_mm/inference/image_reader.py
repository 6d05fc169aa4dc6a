"""Images -> features, by the extractor that a checkpoint was trained with.

A checkpoint carries the identity of its extractor, so that nothing but the extractor's weights is
needed beside it.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Optional, Union

import numpy as np
import torch
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import Extractor, build_extractor_from_identity
from fairseq_mm.extract.images import MAX_PIXELS, AnyImage
from fairseq_mm.inference.extractor_provenance import (
    check_recorded,
    check_trained_features,
    weights_file_of,
)


class ImageReader:
    """Reads images as the features that models were trained on.

    Args:
        provenance: what the models were trained on.
        files: their checkpoints.
        weights: the extractor's state dict file; found by its content if it lies in the folder of
            a checkpoint.
        device: where the extractor runs.

    Attributes:
        identity: of the extractor, as the feature store of the training data had it; empty if it
            had none.
        feature_dim: D, dimension of the features.
    """

    def __init__(
        self,
        provenance: Mapping[str, Any],
        *,
        files: list[str],
        weights: Optional[str] = None,
        device: torch.device,
    ) -> None:
        self.identity: dict[str, Any] = provenance["extractor"]
        self.feature_dim: int = provenance["feature_dim"]
        self.files = files
        self.weights = weights
        self.device = device

    def __repr__(self) -> str:
        name = self.identity.get("extractor", "unknown features")
        return f"{type(self).__name__}({os.pathsep.join(self.files)!r}: {name}, {self.device})"

    @cached_property
    def extractor(self) -> Extractor:
        """The extractor that the models were trained with.

        Raises:
            UserError: if it is not known, or its weights are not the ones it had.
        """
        check_recorded(self.identity, self.files[0], noun="image")
        try:
            weights_file = weights_file_of(self.identity, self.files, self.weights)
            extractor = build_extractor_from_identity(self.identity, weights_file, self.device)
        except UserError as error:
            raise UserError(f"{self.files[0]}: {error}") from None
        if extractor.dim != self.feature_dim:
            raise UserError(
                f"{self.files[0]}: was trained on features of {self.feature_dim} channels, but "
                f"{self.identity['extractor']}, layer {self.identity['layer']}, gives "
                f"{extractor.dim}."
            )
        return extractor

    def features_of(
        self,
        images: Sequence[AnyImage],
        *,
        batch_size: Optional[int] = None,
        max_pixels: int = MAX_PIXELS,
    ) -> Iterator[Union[np.ndarray, UserError]]:
        """Features of each image, or the reason why it cannot be read.

        Threads decode the next batch while the network works on this one.

        Args:
            images: whatever :func:`.read_image` takes: paths, bytes, binary files, open images,
                arrays, or members of archives.
            batch_size: images that the extractor gets at a time, by default 16 on a CPU and 128
                elsewhere; it changes nothing but the speed.
            max_pixels: larger JPEGs are decoded at reduced scale, other images refused.

        Yields:
            ``[rows, D]`` float32, or the error, in the order of the images.
        """
        extractor = self.extractor
        if batch_size is None:
            batch_size = 16 if self.device.type == "cpu" else 128
        starts = range(0, len(images), batch_size)
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, _any_size_allowed():

            def submit(start: int) -> list[Future]:
                batch = images[start : start + batch_size]
                return [pool.submit(self._pixels, image, max_pixels) for image in batch]

            following = submit(0)
            for start in starts:
                waiting, following = following, submit(start + batch_size)
                decoded = [future.result() for future in waiting]
                readable = [pixels for pixels in decoded if not isinstance(pixels, UserError)]
                rows: Iterator[Any] = iter(extractor.rows_of_each(readable))
                for pixels in decoded:
                    yield pixels if isinstance(pixels, UserError) else next(rows)

    def _pixels(self, image: AnyImage, max_pixels: int) -> Union[np.ndarray, UserError]:
        try:
            return self.extractor.pixels(image, max_pixels=max_pixels)
        except UserError as error:
            return error

    def readable_features_of(self, images: Sequence[AnyImage], **options: Any) -> list[np.ndarray]:
        """Features of each image ``[rows, D]`` float32, in their order.

        Args:
            images: see :meth:`features_of`.
            **options: of :meth:`features_of`.

        Raises:
            UserError: naming the first image that cannot be read.
        """
        features = []
        for number, rows in enumerate(self.features_of(images, **options)):
            if isinstance(rows, UserError):
                image = images[number]
                is_path = isinstance(image, (str, os.PathLike))
                raise UserError(f"{str(image) if is_path else f'image {number}'}: {rows}")
            features.append(rows)
        return features

    def check_dimension(self, features: np.ndarray, position: int) -> None:
        """
        Args:
            features: of an image.
            position: of the image among the inputs, for the message.

        Raises:
            UserError: if they are not ``[rows, D]``.
        """
        if features.ndim != 2 or features.shape[1] != self.feature_dim:
            raise UserError(
                f"features of image {position} must be [rows, {self.feature_dim}], but are "
                f"{list(features.shape)}."
            )

    def check_features(self, attributes: Mapping[str, Any], dim: int, path: str) -> None:
        """
        Args:
            attributes: of a feature store.
            dim: its channels.
            path: its file, for the message.

        Raises:
            UserError: if the models were trained on other features.
        """
        check_trained_features(
            self.identity,
            self.feature_dim,
            self.files[0],
            attributes=attributes,
            dim=dim,
            path=path,
        )


@contextlib.contextmanager
def _any_size_allowed() -> Iterator[None]:
    """Around the threads, since reading an image lifts Pillow's limit for all and puts it back."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before
