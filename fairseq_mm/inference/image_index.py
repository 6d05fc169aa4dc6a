"""Searches a person's own folder of images by sentences or by other images.

:func:`.index_folder` makes the index, a feature store with the vector of each image. It records
the checkpoint that made the vectors, so that a search needs the folder only. The network for images
is loaded only for query images.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.extract.hashed_file import describe_change
from fairseq_mm.extract.images import AnyImage
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.checkpoint_files import Path, checkpoint_file
from fairseq_mm.inference.embedder import Embedder
from fairseq_mm.inference.extractor_provenance import VECTORS_EXTRACTOR
from fairseq_mm.inference.readers import list_of_several
from fairseq_mm.retrieval.nearest_vectors import nearest

# hidden: neither the index nor extract lists images in it
INDEX_NAME = os.path.join(".fairseq_mm", "index.h5")
# attributes that fairseq-mm embed does not write
_ATTRIBUTES = (
    *("checkpoint", "checkpoint_bytes", "checkpoint_time", "image_extractor", "vectors_checksum"),
)
# norms of vectors of unit length, with the roundings of float32
_UNIT_NORMS = (0.999, 1.001)
# an index that is replaced while it is opened is opened again: it has then been moved into place
_OPENINGS = 5
_ANEW = "make it anew: fairseq-mm index FOLDER --checkpoint PATH --rebuild."


class NotAnIndexError(UserError):
    """Error for an undamaged feature store that is no index of images."""


class FoundImage(NamedTuple):
    """Image that a search has found.

    Attributes:
        id: Path of the image, relative to the folder.
        path: Path of the image, with the folder.
        score: Cosine (-1 to 1) between the vectors of the image and of the query.
        rank: Rank in the result, from 1.
    """

    id: str
    path: str
    score: float
    rank: int


class SearchResult(NamedTuple):
    """Result of one query.

    Attributes:
        images: The images nearest to the query, nearest first.
        unknown_words: Words of the sentence that the model does not know, which were left out.
        stale: Ids of images that would be among the nearest, but have vanished or changed since
            they were indexed; they are left out.
    """

    images: list[FoundImage]
    unknown_words: list[str]
    stale: list[str]


def index_path(folder: Path) -> str:
    """Return the path of a folder's index, ``.fairseq_mm/index.h5`` in the folder."""
    return os.path.join(os.fspath(folder), INDEX_NAME)


def check_same_model(
    attributes: Mapping[str, Any], digest: str, extractor: Mapping[str, Any], path: str, file: str
) -> None:
    """Check that an index was made with a checkpoint and its extractor.

    Args:
        attributes: Attributes of the index.
        digest: Digest of the checkpoint, see :attr:`.Checkpoint.digest`.
        extractor: Attributes of the extractor that the checkpoint records.
        path: Path of the index, for messages.
        file: Path of the checkpoint, for messages.
    """
    remedy = (
        "give that checkpoint, or index all images anew: "
        "fairseq-mm index FOLDER --checkpoint PATH --rebuild."
    )
    if attributes.get("weights") != digest:
        raise UserError(
            f"{path}: was made with the checkpoint {attributes.get('weights')}, but {file} is "
            f"{digest}: {remedy}"
        )
    if attributes.get("image_extractor") != describe_extractor(extractor):
        raise UserError(f"{path}: was made with another image extractor than {file}: {remedy}")


def describe_extractor(identity: Mapping[str, Any]) -> str:
    """Return the extractor attributes ``identity`` as JSON, as an index stores them."""
    return json.dumps(dict(identity), sort_keys=True, default=str)


def open_index_store(path: str) -> FeatureStore:
    """Open an index of images as a feature store."""
    try:
        store = FeatureStore(path)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}. If it is damaged, {_ANEW}") from None
    if store.attributes.get("extractor") != VECTORS_EXTRACTOR or not all(
        name in store.attributes for name in _ATTRIBUTES
    ):
        raise NotAnIndexError(f"{path}: is a feature store, but no index of fairseq-mm index.")
    if not store.has_checksum:
        raise UserError(f"{path}: has lost its checksum: it was cut or changed; {_ANEW}")
    return store


def find_recorded_checkpoint(store: FeatureStore) -> str:
    """Return the path of the checkpoint that an index, opened as ``store``, records. Raise
    UserError if there is no such file any more."""
    file = str(store.attributes["checkpoint"])
    if not os.path.isfile(file):
        raise UserError(
            f"{store.path}: was made with the checkpoint {file}, which is not there any more: "
            "give its path (--checkpoint PATH; in Python checkpoint=...)."
        )
    return file


def find_recorded_weights(store: FeatureStore) -> Optional[str]:
    """Return the path of the extractor's weights file that an index, opened as ``store``, records.
    Return None if it records no path, or there is no such file any more."""
    path = str(store.attributes.get("extractor_weights", ""))
    return path if os.path.isfile(path) else None


class ImageIndex:
    """Index of a folder of images, in memory.

        index = ImageIndex.open("photos")
        for image in index.search(["a dog in the snow"])[0].images:
            print(image.path, image.score)

    Args:
        folder: Folder of the images.
        store: Index of the folder.
        checkpoint: Checkpoint of the embedding model, or folder with one; None for the path that
            the index records.
        weights: Weights file (state dict) of the image extractor, for query images. With None,
            the file is searched at the path that the index records, then beside the checkpoint.
        device: Device of the models, such as ``cpu`` or ``cuda``.

    Attributes:
        path: Path of the index.
        ids: Path of each image, relative to the folder.
        vectors: [images, K] float32 vectors of unit length.
    """

    def __init__(
        self,
        folder: Path,
        store: FeatureStore,
        *,
        checkpoint: Optional[Path] = None,
        weights: Optional[Path] = None,
        device: str = "cpu",
    ) -> None:
        self.folder = os.fspath(folder)
        self.path = store.path
        self.ids = store.ids
        self.vectors = store.read_all()
        self._checkpoint = checkpoint
        self._weights = weights
        self._device = device
        self._store = store
        self._check(store)
        # the records of the files are read now: the index may be replaced later
        if store.count_sources() != len(store):
            raise UserError(f"{self.path}: has no record of some images; {_ANEW}")
        store.close()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        index: Optional[Path] = None,
        checkpoint: Optional[Path] = None,
        weights: Optional[Path] = None,
        device: str = "cpu",
    ) -> "ImageIndex":
        """Read the index of a folder into memory.

        If another process replaces the index at the same time, either the former or the new index
        is read.

        Args:
            folder: Folder of the images.
            index: Path of the index; None for ``.fairseq_mm/index.h5`` in the folder.
            checkpoint: See :class:`ImageIndex`.
            weights: See :class:`ImageIndex`.
            device: See :class:`ImageIndex`.
        """
        folder = os.fspath(folder)
        if not os.path.isdir(folder):
            raise UserError(f"{folder}: no such folder.")
        path = index_path(folder) if index is None else os.fspath(index)
        if not os.path.exists(path):
            raise UserError(
                f"{path}: no such index. Make it first: fairseq-mm index {folder} --checkpoint "
                "PATH."
            )
        options: Any = {"checkpoint": checkpoint, "weights": weights, "device": device}
        for _ in range(_OPENINGS - 1):
            before = _identify_file(path)
            try:
                return cls(folder, open_index_store(path), **options)
            except UserError:
                if _identify_file(path) == before:
                    raise
        return cls(folder, open_index_store(path), **options)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"ImageIndex({self.folder!r}: {len(self)} images, {self.path!r})"

    @cached_property
    def embedder(self) -> Embedder:
        """Embedding model that made the vectors."""
        if self._checkpoint is None:
            file = find_recorded_checkpoint(self._store)
        else:
            file = checkpoint_file(os.fspath(self._checkpoint))
        attributes = self._store.attributes
        status = os.stat(file)
        recorded = (attributes["checkpoint_bytes"], attributes["checkpoint_time"])
        checkpoint = Checkpoint.open(file)
        checkpoint.check_embedding()
        digest = str(attributes["weights"])
        # hashing takes longer than all the rest, so that path, size and time of the file decide
        # first; of another path, they do not: files of an archive may all have one time, and
        # checkpoints of one architecture one size
        is_recorded = os.path.realpath(file) == os.path.realpath(str(attributes["checkpoint"]))
        if not is_recorded or (status.st_size, status.st_mtime_ns) != recorded:
            digest = checkpoint.digest
        check_same_model(attributes, digest, checkpoint.extractor, self.path, file)
        weights = self._weights or find_recorded_weights(self._store)
        return Embedder(
            checkpoint.build(self._device), weights=None if weights is None else os.fspath(weights)
        )

    def search(self, texts: Iterable[str], count: int = 10) -> list[SearchResult]:
        """Find the images that are nearest to each sentence.

        Args:
            texts: Sentences or words. Words that the model does not know are left out.
            count: Number of images to find for each sentence.

        Returns:
            One result for each sentence, with all images if the index has fewer than ``count``.
        """
        texts = list_of_several(texts, "texts")
        for text in texts:
            if not typed_option("texts", text, str).strip():
                raise UserError("a query must be a sentence or a word, but is empty.")
        vectors = self.embedder.embed_texts(texts, ignore_unknown=True)
        results = self.search_vectors(vectors, count)
        return [
            result._replace(unknown_words=self.embedder.find_unknown_words(text))
            for text, result in zip(texts, results)
        ]

    def search_images(self, images: Iterable[AnyImage], count: int = 10) -> list[SearchResult]:
        """Find the images that are nearest to each query image.

        If a query image is in the folder, it is its own first result.

        Args:
            images: Paths, contents of files (bytes), open images or arrays.
            count: Number of images to find for each query image.

        Returns:
            One result for each query image.
        """
        return self.search_vectors(self.embedder.embed_images(images), count)

    def search_vectors(self, vectors: np.ndarray, count: int = 10) -> list[SearchResult]:
        """Find the images that are nearest to each vector.

        The search is exact. Images with equal scores keep the order of the index.

        Args:
            vectors: [queries, K] float32 vectors of unit length, made by the same model.
            count: Number of images to find for each vector.

        Returns:
            One result for each vector.
        """
        count = typed_option("count", count, int)
        if count < 1:
            raise UserError(f"`count` must be 1 or more, but is {count}.")
        if vectors.ndim != 2 or vectors.shape[1] != self.vectors.shape[1]:
            raise UserError(
                f"query vectors must be [queries, {self.vectors.shape[1]}], but are "
                f"{list(vectors.shape)}."
            )
        is_stale: dict[str, bool] = {}
        return [self._search_one(vector[None], count, is_stale) for vector in vectors]

    def _search_one(self, query: np.ndarray, count: int, is_stale: dict[str, bool]) -> SearchResult:
        """Find the ``count`` images that are nearest to the vector ``query`` [1, K].

        Images that have vanished or changed since they were indexed are left out. ``is_stale`` says
        which of the images checked so far have vanished or changed, by id; it is updated.
        """
        number = min(count, len(self))
        while True:
            places, scores = nearest(query, self.vectors, number, longest=_UNIT_NORMS[1])
            images: list[FoundImage] = []
            stale = []
            for place, score in zip(places[0].tolist(), scores[0].tolist()):
                name = self.ids[place]
                if name not in is_stale:
                    is_stale[name] = self._has_changed(name)
                if is_stale[name]:
                    stale.append(name)
                elif len(images) < count:
                    path = os.path.join(self.folder, name)
                    images.append(FoundImage(name, path, score, len(images) + 1))
            if len(images) == count or number == len(self):
                return SearchResult(images, [], stale)
            # some of the nearest are stale: others take their places
            number = min(2 * number, len(self))

    def _has_changed(self, name: str) -> bool:
        source = self._store.get_source(name)
        assert source is not None  # checked when the index was opened
        file = MediaFile(name, os.path.join(self.folder, name))
        return describe_change(file, source) is not None

    def _check(self, store: FeatureStore) -> None:
        """Raise UserError if the index does not have one vector of unit length per image, or if the
        vectors do not match the checksum of ``store``, from which they were read."""
        if not len(store) or self.vectors.shape[0] != len(store):
            raise UserError(
                f"{self.path}: must have one vector for each image, but has "
                f"{len(self.vectors)} for {len(store)}; {_ANEW}"
            )
        norms = np.sqrt(np.einsum("nk,nk->n", self.vectors, self.vectors))
        low, high = _UNIT_NORMS
        # not the store's own checksum of its content, which takes ten times as long
        if (
            zlib.crc32(self.vectors) != store.attributes["vectors_checksum"]
            or self.vectors.dtype != np.float32
            or not ((norms >= low) & (norms <= high)).all()
        ):
            raise UserError(f"{self.path}: its vectors are damaged; {_ANEW}")


def _identify_file(path: str) -> Optional[Sequence[int]]:
    """Return three numbers that change if another file replaces the file at ``path``: inode, size
    and time. Return None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
