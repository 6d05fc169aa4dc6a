"""Computes features of images and videos with the extractor of a checkpoint's training features.

The checkpoint records the extractor, so that a user has to provide only the extractor's weights.
"""

import contextlib
import logging
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Callable, Optional, Union

import numpy as np
from PIL import Image

from fairseq_mm.data.feature_store import Source
from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import (
    Extractor,
    FirstClips,
    build_extractor,
    build_extractor_from_identity,
)
from fairseq_mm.extract.media import MAX_PIXELS, AnyImage, AnyMedia, MediaFile
from fairseq_mm.extract.readers import Unreadable
from fairseq_mm.extract.weights import (
    SUFFIXES,
    VECTORS_EXTRACTOR,
    check_store_extractor,
    has_name_and_digest,
    is_digest,
)
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.checkpoint import LoadedModels

logger = logging.getLogger(__name__)


def list_of_several(values: Any, name: str) -> list[Any]:
    """Return the images or texts of the argument ``name`` as a list."""
    # a string is iterable, too: "dog.jpg" would be read as seven images
    is_one = isinstance(values, (str, bytes, os.PathLike, Image.Image)) or hasattr(values, "read")
    if is_one or not isinstance(values, Iterable):
        raise UserError(f"`{name}` must be a list, but is a {type(values).__name__}.")
    return list(values)


def is_features(value: Any) -> bool:
    """Return True if an array has features [N, D], False if it has the pixels of an image."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def find_weights_file(
    identity: Mapping[str, Any], files: Sequence[str], given: Optional[str]
) -> Optional[str]:
    """Return the path of an extractor's weights file (state dict).

    Weights from a file are recorded in ``identity`` by the file's SHA-256; the file is searched in
    the folders of the checkpoints. Published weights are recorded by their name. If the digest of
    their values is also recorded, the user's file can replace them.

    Args:
        identity: Attributes of the extractor, from the checkpoints.
        given: Path that the user gave, or None.

    Returns:
        ``given`` if it is not None, otherwise the path that was found. None for published weights
        without ``given``, which the extractor downloads.
    """
    recorded = str(identity.get("weights", ""))
    is_published = bool(recorded) and not is_digest(recorded)
    if is_published and given is not None and not has_name_and_digest(identity):
        problem = f"the published weights {recorded}, which {given} (--weights) cannot replace"
    elif is_published or given is not None:
        return given
    else:
        for folder in dict.fromkeys(os.path.dirname(os.path.abspath(file)) for file in files):
            for name in sorted(os.listdir(folder)) if recorded else ():
                file = os.path.join(folder, name)
                # checkpoints are large, and hashing them takes seconds each
                is_candidate = name.endswith(SUFFIXES) and not name.startswith("checkpoint")
                if is_candidate and os.path.isfile(file) and compute_sha256(file) == recorded:
                    return file
        problem = f"weights from a file (SHA-256 {recorded})"
        problem = problem if recorded else "weights that are not recorded"
        problem += ". Give that file (--weights FILE; in Python weights=...)"
    raise UserError(f"was trained on features of {identity['extractor']} with {problem}.")


class MediaReader:
    """Base class of readers, which turn images or videos into features like the training data's.

    Args:
        loaded: Models that read the features.
        weights: Path of the extractor's weights (state dict). If None, the folders of the models'
            checkpoints are searched for the file whose digest the checkpoints record.

    Attributes:
        reads: Kind of extractor, ``images`` or ``videos``.
        identity: Attributes that identify the extractor, from the feature store of the training
            data; empty if the store did not record them.
        num_rows: Number of feature vectors of an image; None for any number.
        feature_dim: Dimension D of the features; 0 if the models read no features.
    """

    noun: str
    reads = "images"
    num_rows: Optional[int] = None

    def __init__(self, loaded: LoadedModels, *, weights: Optional[str] = None) -> None:
        self.identity = loaded.extractor
        self.feature_dim = loaded.feature_dim
        self.files = loaded.files
        self.weights = weights
        self.device = loaded.device

    @cached_property
    def extractor(self) -> Extractor:
        """Extractor of the models' training features."""
        name = self.identity.get("extractor")
        try:
            if name in (None, "", VECTORS_EXTRACTOR):
                about, remedy = (
                    "features whose extractor is not recorded",
                    "record it (fairseq-mm store import --extractor NAME) and train on that store",
                )
                if name:
                    checkpoint = self.identity.get("weights")
                    about = f"vectors of an embedding model (checkpoint {checkpoint})"
                    remedy = "give that checkpoint (--embedding PATH; in Python embedding=...)"
                raise UserError(
                    f"was trained on {about}, which no {self.noun} can be turned into: {remedy}, "
                    "or give features (--features STORE)."
                )
            return self._build_extractor()
        except UserError as error:
            raise UserError(f"{self.files[0]}: {error}") from None

    def _build_extractor(self) -> Extractor:
        weights_file = find_weights_file(self.identity, self.files, self.weights)
        return build_extractor_from_identity(
            self.identity, weights_file, self.device, reads=self.reads
        )

    def check_rows(self, features: np.ndarray) -> None:
        """Check the shape [rows, D] of the features of an image or a video."""
        R, D = self.num_rows or len(features), self.feature_dim
        if features.shape != (R, D) or not len(features):
            raise UserError(
                f"features must be [{self.num_rows or 'rows'}, {D}], but are "
                f"{list(features.shape)}."
            )

    def check_features(self, attributes: Mapping[str, Any], dim: int, path: str) -> None:
        """Check that a feature store has the same kind of features as the models' training data."""
        mine = (self.identity, self.feature_dim, self.files[0])
        check_store_extractor(*mine, attributes, dim, path)


class ImageReader(MediaReader):
    """Reader that turns images into features like the training data's; see :class:`MediaReader`."""

    noun = "image"

    def read_features(
        self,
        images: Sequence[AnyImage],
        *,
        batch_size: Optional[int] = None,
        max_pixels: int = MAX_PIXELS,
    ) -> list[Union[np.ndarray, UserError]]:
        """Return the features of each image, or the error of an unreadable image.

        Threads decode the next batch while the network computes the current one.

        Args:
            images: Paths, bytes, binary files, open images, arrays, or members of archives.
            batch_size: Number of images per batch of the extractor, by default 16 on a CPU and 128
                on other devices; it changes only the speed.
            max_pixels: Maximum number of pixels of an image. Larger JPEGs are decoded at a reduced
                scale; for other larger images, the result is an error.

        Returns:
            N feature vectors [N, D] float32, or an error, for each image in order.
        """

        def decode(image: AnyImage) -> tuple[Union[np.ndarray, UserError], None]:
            try:
                return self.extractor.pixels(image, max_pixels=max_pixels), None
            except UserError as error:
                return error, None

        return [features for features, _ in self._read_batches(images, decode, batch_size)]

    def features_of(
        self, images: Sequence[Any], **options: Any
    ) -> list[Union[np.ndarray, UserError]]:
        """Return the features of images as :meth:`read_features`; if all images are features,
        return them. Check the shapes."""
        are_features = all(map(is_features, images))
        values = [*images] if are_features else self.read_features(images, **options)
        for place, rows in enumerate(values):
            try:
                if not isinstance(rows, UserError):
                    self.check_rows(rows)
            except UserError as error:
                values[place] = error
        return values

    def read_files(
        self,
        files: Sequence[MediaFile],
        *,
        batch_size: Optional[int] = None,
        max_pixels: int = MAX_PIXELS,
    ) -> Iterator[tuple[Union[np.ndarray, UserError], Optional[Source]]]:
        """Yield the features or the error of each image file, and the :class:`.Source` of the file.

        The :class:`.Source` has size, time and SHA-256; it is None if the file cannot be opened or
        was changed while it was read. The options are the same as in :meth:`read_features`.
        """
        reader = self.extractor.reader(max_pixels=max_pixels)

        def decode(file: MediaFile) -> tuple[Union[np.ndarray, UserError], Optional[Source]]:
            events: Any = list(reader.events(file))
            # the image, then its end, which may say that the file was changed meanwhile
            end = events[-1]
            is_bad = isinstance(end, Unreadable)
            return UserError(end.reason) if is_bad else events[0], end.source

        yield from self._read_batches(files, decode, batch_size)

    def _read_batches(
        self,
        images: Sequence[Any],
        decode: Callable[[Any], tuple[Union[np.ndarray, UserError], Any]],
        batch_size: Optional[int],
    ) -> Generator[tuple[Union[np.ndarray, UserError], Any], None, None]:
        """Yield, for each image, its features or an error, and the second result of ``decode``.

        ``decode`` returns the pixels of an image, or the error if it cannot be read, and a second
        value of any type.
        """
        extractor = self.extractor
        # no default in the signatures: it depends on the device, and the command line passes None
        size = 16 if self.device.type == "cpu" else 128
        if batch_size is not None:
            size = typed_option("batch_size", batch_size, int, least=1)
        starts = range(0, len(images), size)
        # threads suffice: Pillow and zlib release the GIL while they decode
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, _any_size_allowed():

            def submit(start: int) -> list[Future]:
                return [pool.submit(decode, image) for image in images[start : start + size]]

            following = submit(0)
            for start in starts:
                # one batch ahead, and no more: decoded images take more memory than their files
                waiting, following = following, submit(start + size)
                decoded = [future.result() for future in waiting]
                readable = [pixels for pixels, _ in decoded if not isinstance(pixels, UserError)]
                # unreadable images are not part of the batch, but keep their places in the output
                rows: Iterator[Any] = iter(extractor.rows_of_each(readable))
                for pixels, record in decoded:
                    yield (pixels if isinstance(pixels, UserError) else next(rows)), record

    def read_all_features(self, images: Sequence[AnyImage], **options: Any) -> list[np.ndarray]:
        """Return the features [N, D] float32 of each image, see :meth:`read_features`."""
        features = []
        for number, rows in enumerate(self.read_features(images, **options)):
            if isinstance(rows, UserError):
                image = images[number]
                is_path = isinstance(image, (str, os.PathLike))
                raise UserError(f"{str(image) if is_path else f'image {number}'}: {rows}")
            features.append(rows)
        return features


class VideoReader(MediaReader):
    """Reader that turns videos into features like the training data's; see :class:`MediaReader`.

    Attributes:
        reads_video: False if the models read only transcripts.
        max_frames: Maximum number of clips of a video; each clip has one feature vector. Further
            clips are not read.
    """

    noun = "video"
    reads = "videos"

    def __init__(self, loaded: LoadedModels, *, weights: Optional[str] = None) -> None:
        super().__init__(loaded, weights=weights)
        self.reads_video = bool(loaded.task.reads_video)
        self.max_frames: int = loaded.task.max_frames

    def _build_extractor(self) -> Extractor:
        # How2's features name their network, but record no weights file
        if "weights" in self.identity or self.weights is None:
            return super()._build_extractor()
        name = str(self.identity["extractor"])
        extractor = build_extractor(name, weights=str(self.weights), device=self.device)
        logger.warning(
            "%s: its features do not record their weights and preprocessing: taken to be %s and "
            "%s's own",
            *(self.files[0], self.weights, name),
        )
        return extractor

    def read_video(
        self, video: AnyMedia, *, batch_size: Optional[int] = None, **options: Any
    ) -> FirstClips:
        """Compute the features of the first clips of a video, at most ``max_frames``.

        Args:
            batch_size: Number of clips per batch of the extractor, by default 8 on a CPU and 64
                on other devices; it changes only the speed.
            **options: Options of :meth:`.Extractor.first_clips`.
        """
        size = batch_size or (8 if self.device.type == "cpu" else 64)
        return self.extractor.first_clips(video, self.max_frames, batch_size=size, **options)


@contextlib.contextmanager
def _any_size_allowed() -> Iterator[None]:
    """Disable Pillow's limit of the number of pixels while threads read images."""
    # each reading lifts the limit and restores it for all threads, whatever they read
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before
