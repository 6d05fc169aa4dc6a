"""Turns images into features like the training data's, and into examples of the task
``multimodal_captioning``.

The checkpoint records the extractor of its training features, so that a user has to provide only
the extractor's weights.
"""

import contextlib
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
    build_extractor_from_identity,
)
from fairseq_mm.extract.media import (
    IMAGES,
    MAX_PIXELS,
    AnyImage,
    Kind,
    MediaFile,
    list_images,
)
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
from fairseq_mm.inference.processor import Example, Processor, read_field

ImageOrFeatures = Union[AnyImage, np.ndarray]
# image that can be read again after its features are computed
KnownImage = Union[str, os.PathLike, bytes, Image.Image, np.ndarray, MediaFile]


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
        """Return the features of images, as :meth:`read_features` does, or the images themselves if
        all are features. Check the shapes."""
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
        embedding: :class:`.Embedder` on whose vectors the captioning models were trained. Images
            are then embedded, with the extractor of the embedding model.
    """

    batch_sizes = (100, 100)
    input_fields = ("image",)
    reading_options: Mapping[str, type] = {"batch_size": int, "max_pixels": int}

    def __init__(
        self,
        loaded: LoadedModels,
        *,
        weights: Optional[str] = None,
        embedding: Any = None,
    ) -> None:
        super().__init__(loaded)
        self.embedder = embedding
        if embedding is None:
            self.reader = ImageReader(loaded, weights=weights)
        else:
            embedding.check_vectors(
                loaded.extractor, loaded.feature_dim, what=f"what {loaded.files[0]} was trained on"
            )
            self.reader = embedding
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
