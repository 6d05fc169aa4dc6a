"""Indexes a person's own folder of images, and searches it by sentences or by other images.

An index is a feature store of embeddings, as ``fairseq-mm embed`` writes them. It records the path
and the digest of the checkpoint, so that a search needs only the folder.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from tqdm.auto import tqdm

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.extract.hashed_file import describe_change
from fairseq_mm.extract.media import AnyImage, MediaFile, list_folder
from fairseq_mm.extract.weights import VECTORS_EXTRACTOR
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.checkpoint_files import Path
from fairseq_mm.inference.embedder import Embedder, load_embedder
from fairseq_mm.inference.image_processor import list_of_several
from fairseq_mm.retrieval.nearest_vectors import VectorStore

# images whose vectors are computed and written at a time: an interruption loses at most so many
_PIECE = 32
# with fewer images, a progress bar would only flash
_MANY = 20


class IndexSummary(NamedTuple):
    """Numbers of images in an index, and of changes. An image also counts as removed if it can no
    longer be read; ``unreadable`` has path and reason of unreadable files and subfolders."""

    path: str
    num_images: int
    num_new: int
    num_changed: int
    num_removed: int
    unreadable: list[tuple[str, str]]


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
        stale: Ids of images that would be among the nearest, but have vanished since they were
            indexed; they are left out.
    """

    images: list[FoundImage]
    unknown_words: list[str]
    stale: list[str]


def index_path(folder: Path) -> str:
    """Return the path of a folder's index, ``.fairseq_mm/index.h5`` in the folder."""
    # a hidden folder: neither the index nor extract lists images in it
    return os.path.join(os.fspath(folder), ".fairseq_mm", "index.h5")


def _load_model(
    store: Optional[FeatureStore],
    checkpoint: Optional[Path],
    weights: Optional[Path],
    device: Optional[str],
) -> Embedder:
    """Load the embedding model ``checkpoint`` or, if it is None, the model that ``store`` records;
    check that this model made the vectors of the store."""
    recorded = {} if store is None else store.attributes
    checkpoint = checkpoint or str(recorded.get("checkpoint", ""))
    if weights is None and os.path.isfile(str(recorded.get("image_weights", ""))):
        weights = str(recorded["image_weights"])
    if not checkpoint or (store is not None and not os.path.exists(checkpoint)):
        where = f"{store.path}: its checkpoint {checkpoint} is missing" if store else "no index yet"
        raise UserError(
            f"{where}: give the checkpoint of an embedding model (--checkpoint PATH; in Python "
            "checkpoint=...)."
        )
    weights = None if weights is None else os.fspath(weights)
    embedder = load_embedder(checkpoint, weights=weights, device=device)
    if store is not None:
        embedder.check_vectors(store.attributes, store.dim, what=store.path)
    return embedder


def index_folder(
    folder: Path,
    checkpoint: Optional[Path] = None,
    *,
    weights: Optional[Path] = None,
    index: Optional[Path] = None,
    device: Optional[str] = None,
    show_progress: bool = False,
    **options: Any,
) -> IndexSummary:
    """Make or update the index of a folder: embed all images, or only new and changed images.

    If the call is interrupted, the next call continues it.

    Args:
        folder: Folder of the images, which is searched with all subfolders.
        checkpoint: Checkpoint of an embedding model (such as ``vse_bow``), or folder with one;
            None for the path that the existing index records.
        weights: Weights file (state dict) of the image extractor; None for the file beside the
            checkpoint that has the recorded digest.
        index: Path of the index; None for ``.fairseq_mm/index.h5`` in the folder.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU if there is one.
        show_progress: Show a progress bar on stderr, if it is a terminal.
        **options: ``batch_size`` and ``max_pixels`` of :meth:`.ImageReader.read_features`.
    """
    listed, unreadable = list_folder(os.fspath(folder))
    files = {file.key: file for file in listed}
    path = index_path(folder) if index is None else os.fspath(index)
    old = FeatureStore(path) if os.path.exists(path) else None
    if old is not None and "checkpoint" not in old.attributes:
        raise UserError(f"{path}: is a feature store, but no index of fairseq-mm index.")
    embedder = _load_model(old, checkpoint, weights, device)
    attributes = {
        "extractor": VECTORS_EXTRACTOR,
        "weights": embedder.digest,
        "checkpoint": os.path.abspath(embedder.files[0]),
        "image_weights": os.path.abspath(embedder.weights) if embedder.weights else "",
    }
    if index is None:
        with contextlib.suppress(OSError):  # the writer reports it
            os.makedirs(os.path.dirname(path), exist_ok=True)
    dim = embedder.models[0].embed_dim
    with FeatureStoreWriter(
        path, dim=dim, dtype="float32", attributes=attributes, overwrite=True
    ) as writer:
        # an interrupted run has left vectors, whose files may have changed since
        if not all(_is_unchanged(files.get(key), writer) for key in writer.done):
            writer.clear()
        before = set() if old is None else set(old.ids)
        for key, file in files.items():
            if old and key not in writer.done and key in before and _is_unchanged(file, old):
                writer.append(key, old.read(key), old.get_source(key))
        kept = before & set(writer.done)
        unread = [file for key, file in files.items() if key not in writer.done]
        results = zip(unread, embedder.read_files(unread, **options))
        # without a terminal, None disables the bar
        is_hidden = None if show_progress and len(unread) >= _MANY else True
        with tqdm(total=len(unread), unit=" images", disable=is_hidden) as bar:
            while piece := list(itertools.islice(results, _PIECE)):
                unreadable += [(x.name, str(y)) for x, (y, _) in piece if isinstance(y, UserError)]
                good = [(x.key, y, source) for x, (y, source) in piece if isinstance(y, np.ndarray)]
                vectors = embedder.embed_features([features for _, features, _ in good])
                for (key, _, source), vector in zip(good, vectors):
                    writer.append(key, vector, source)
                bar.update(len(piece))
        present = set(writer.done)
        if not present:
            first = f": {': '.join(unreadable[0])}" if unreadable else ""
            raise UserError(f"{folder}: has no image that can be read{first}")
        writer.finish()
    return IndexSummary(
        path,
        num_images=len(present),
        num_new=len(present - before),
        num_changed=len(present & before) - len(kept),
        num_removed=len(before - present),
        unreadable=sorted(unreadable),
    )


def _is_unchanged(file: Optional[MediaFile], store: Any) -> bool:
    source = file and store.get_source(file.key)
    return file is not None and source is not None and describe_change(file, source) is None


class ImageIndex:
    """Index of a folder of images, in memory.

        index = ImageIndex.open("photos")
        for image in index.search(["a dog in the snow"])[0].images:
            print(image.path, image.score)

    Args:
        folder: Folder of the images.
        store: Feature store of embeddings; its ids are the paths of the images in the folder.
        embedder: Embedding model that made the vectors.
    """

    def __init__(self, folder: Path, store: FeatureStore, embedder: Embedder) -> None:
        self.folder = os.fspath(folder)
        self.path = store.path
        self.store = VectorStore(store)
        self.embedder = embedder

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
        """Read the index of a folder into memory, and load its embedding model.

        Args:
            index: Path of the index; None for ``.fairseq_mm/index.h5`` in the folder.
            checkpoint: Checkpoint that made the index; None for the path that the index records.
            weights: Weights file (state dict) of the image extractor, for query images; None for
                the path that the index records, or else the file beside the checkpoint.
            device: Device of the models, such as ``cpu`` or ``cuda``.
        """
        store = FeatureStore(index_path(folder) if index is None else os.fspath(index))
        return cls(folder, store, _load_model(store, checkpoint, weights, device))

    def __len__(self) -> int:
        return len(self.store.ids)

    def search(self, texts: Iterable[str], count: int = 10) -> list[SearchResult]:
        """Find the images that are nearest to each sentence; all if there are fewer than ``count``.

        Words that the model does not know are left out.
        """
        texts = list_of_several(texts, "texts")
        vectors = self.embedder.embed_texts(texts, ignore_unknown=True)
        results = self.search_vectors(vectors, count)
        return [
            result._replace(unknown_words=self.embedder.find_unknown_words(text))
            for text, result in zip(texts, results)
        ]

    def search_images(self, images: Iterable[AnyImage], count: int = 10) -> list[SearchResult]:
        """Find the images that are nearest to each query image: a path, bytes or an open image.

        If a query image is in the folder, it is its own first result.
        """
        return self.search_vectors(self.embedder.embed_images(images), count)

    def search_vectors(self, vectors: np.ndarray, count: int = 10) -> list[SearchResult]:
        """Find the images that are nearest to each of ``vectors`` [queries, K].

        The search is exact. Images with equal scores keep the order of the index.
        """
        count = typed_option("count", count, int, least=1)
        results = []
        for vector in vectors:
            number = count
            while True:
                (items,) = self.store.search(vector[None], number)
                paths = [os.path.join(self.folder, key) for key, _ in items]
                there = [item for item in zip(items, paths) if os.path.exists(item[1])]
                # some of the nearest may have vanished: others take their places
                if len(there) >= count or number >= len(self):
                    break
                number *= 2
            stale = [key for (key, _), path in zip(items, paths) if not os.path.exists(path)]
            images = [FoundImage(k, p, x, i) for i, ((k, x), p) in enumerate(there[:count], 1)]
            results.append(SearchResult(images, [], stale))
        return results
