"""Makes and updates the index of a person's own folder of images.

The index is a feature store with the vector of each image, and the size, time and SHA-256 of its
file. An update reads only new and changed files. The whole store is written again, under a
temporary name, and moved into place.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Optional

import h5py
from tqdm.auto import tqdm

from fairseq_mm.data.feature_sources import Source
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError
from fairseq_mm.extract.hashed_file import describe_change
from fairseq_mm.extract.images import MAX_PIXELS
from fairseq_mm.extract.media_list import IMAGES, MediaFile, list_folder
from fairseq_mm.extract.run_files import shared_sizes_and_times
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.checkpoint_files import Path, checkpoint_file
from fairseq_mm.inference.embedder import Embedder
from fairseq_mm.inference.extractor_provenance import VECTORS_EXTRACTOR, check_recorded
from fairseq_mm.inference.image_index import (
    NotAnIndexError,
    check_same_model,
    describe_extractor,
    find_recorded_checkpoint,
    find_recorded_weights,
    index_path,
    open_index_store,
)

# images whose vectors are computed and written at a time: an interruption loses at most so many
_PIECE = 32
# with fewer images, a progress bar would only flash
_MANY = 20


class IndexSummary(NamedTuple):
    """Result of :func:`index_folder`: the content of the index, and its changes.

    Attributes:
        path: Path of the index.
        num_images: Number of images in the index.
        num_new: Number of images that were not in the index before.
        num_changed: Number of images in the index whose files had changed.
        num_removed: Number of images that were removed from the index, because their files have
            vanished or can no longer be read.
        unreadable: Path and reason of each file that is not in the index because it cannot be
            read, and of each subfolder that cannot be read.
    """

    path: str
    num_images: int
    num_new: int
    num_changed: int
    num_removed: int
    unreadable: list[tuple[str, str]]


class _Plan(NamedTuple):
    """Files of a folder that an update of its index must read, and images that need no update.

    Attributes:
        unread: Files that are new or have changed.
        kept: Dictionary from the id of each image that need not be read again to the record of its
            file: size, present time of change, and SHA-256.
        is_touched: True if a file has another time than in the index, but the same content.
    """

    unread: list[MediaFile]
    kept: dict[str, Source]
    is_touched: bool


def index_folder(
    folder: Path,
    checkpoint: Optional[Path] = None,
    *,
    weights: Optional[Path] = None,
    index: Optional[Path] = None,
    rebuild: bool = False,
    device: Optional[str] = None,
    batch_size: Optional[int] = None,
    max_pixels: int = MAX_PIXELS,
    show_progress: bool = False,
) -> IndexSummary:
    """Make or update the index of a folder: embed all images, or only new and changed images.

    If the call is interrupted, the next call continues it.

    Args:
        folder: Folder of the images, which is searched with all subfolders.
        checkpoint: Checkpoint of an embedding model (such as ``vse_bow``), or folder with one;
            None for the path that the existing index records, without ``rebuild``.
        weights: Weights file (state dict) of the image extractor; None for the file beside the
            checkpoint that has the recorded digest.
        index: Path of the index; None for ``.fairseq_mm/index.h5`` in the folder.
        rebuild: Embed all images anew, also if there is an index.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU if there is one.
        batch_size: Number of images per batch, see :meth:`.ImageReader.read_features`.
        max_pixels: Maximum number of pixels of an image, see :meth:`.ImageReader.read_features`.
        show_progress: Show a progress bar on stderr, if it is a terminal.

    Returns:
        Summary of the index and its changes.
    """
    folder = os.fspath(folder)
    files, refused = list_folder(folder)
    if not files:
        suffixes = " ".join(sorted(IMAGES.suffixes))
        raise UserError(f"{folder}: no images found (suffixes: {suffixes}).")
    path = index_path(folder) if index is None else os.fspath(index)
    if rebuild and index is not None and os.path.exists(path):
        _check_replaceable(path)
    old = open_index_store(path) if os.path.exists(path) and not rebuild else None
    if rebuild and checkpoint is None:
        raise UserError(
            "--rebuild: does not read the former index: give the checkpoint of an embedding model, "
            "too (--checkpoint PATH; in Python checkpoint=...)."
        )
    opened = _open_checkpoint(folder, checkpoint, old)
    if old is not None:
        check_same_model(old.attributes, opened.digest, opened.extractor, path, opened.path)
        weights = weights or find_recorded_weights(old)
    run = _Run(opened, files, old, path, weights=weights, device=device)
    if run.is_up_to_date and not os.path.exists(f"{path}.partial"):
        return IndexSummary(path, len(files), 0, 0, 0, refused)
    with run.open_writer(rebuild, is_default=index is None) as writer:
        options = {"batch_size": batch_size, "max_pixels": max_pixels}
        unreadable = run.read(writer, show_progress, **options)
        return run.finish(writer, sorted([*unreadable, *refused]))


def _check_replaceable(path: str) -> None:
    """Check that an existing file, which the user has named, is an index, damaged or not."""
    try:
        open_index_store(path)
    except UserError as error:
        if not h5py.is_hdf5(path) or isinstance(error, NotAnIndexError):
            raise UserError(
                f"{path}: is no index, and is not replaced: delete it, or choose another --output."
            ) from error


def _open_checkpoint(
    folder: str, checkpoint: Optional[Path], old: Optional[FeatureStore]
) -> Checkpoint:
    """Open ``checkpoint``; if it is None, open the checkpoint that the index ``old`` records.

    ``folder`` is the folder of the images, for messages. Raise UserError if there is no checkpoint
    to open, or its model does not embed images.
    """
    if checkpoint is not None:
        file = checkpoint_file(os.fspath(checkpoint))
    elif old is not None:
        file = find_recorded_checkpoint(old)
    else:
        raise UserError(
            f"{folder}: has no index yet: give the checkpoint of an embedding model (--checkpoint "
            "PATH; in Python checkpoint=...)."
        )
    opened = Checkpoint.open(file)
    opened.check_embedding()
    check_recorded(opened.extractor, opened.path, noun="image")
    return opened


def _compare(files: Sequence[MediaFile], old: Optional[FeatureStore]) -> _Plan:
    """Find the files that must be read, and the images that need not be embedded again.

    ``files`` are the images of the folder, ``old`` is the former index; None if there is none.
    """
    if old is None:
        return _Plan(list(files), {}, is_touched=False)
    shared = shared_sizes_and_times(old, files)
    unread, kept, is_touched = [], {}, False
    for file in files:
        source = old.get_source(file.key) if file.key in old else None
        if source is None or describe_change(file, source, reads_always=source[:2] in shared):
            unread.append(file)
            continue
        with contextlib.suppress(OSError):  # a file that has vanished just now is removed next time
            # the record gets the new time, or the file would be hashed again at each update
            touched = source._replace(time=file.size_and_time()[1])
            is_touched = is_touched or touched != source
            kept[file.key] = touched
    return _Plan(unread, kept, is_touched)


class _Run:
    """One run that makes or updates an index.

    Args:
        checkpoint: Checkpoint of the embedding model.
        files: Images of the folder.
        old: Former index, or None.
        path: Path of the index.
        weights: Weights file of the image extractor; None for the file beside the checkpoint that
            has the recorded digest.
        device: Device of the models; None for a GPU if there is one.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        files: Sequence[MediaFile],
        old: Optional[FeatureStore],
        path: str,
        *,
        weights: Optional[Path],
        device: Optional[str],
    ) -> None:
        self.checkpoint = checkpoint
        self.files = {file.key: file for file in files}
        self.old = old
        self.path = path
        self.weights = None if weights is None else os.fspath(weights)
        self.device = device
        self.paths = self._describe_paths()
        self.plan = _compare(files, old)

    @cached_property
    def embedder(self) -> Embedder:
        # built only if there is something to read or to write
        return Embedder(self.checkpoint.build(self.device), weights=self.weights)

    @property
    def keeps_all(self) -> bool:
        """True if every vector of the former index, and its attributes, can stay unchanged."""
        return (
            self.old is not None
            and not self.plan.is_touched
            and len(self.plan.kept) == len(self.old)
            and all(self.old.attributes.get(name) == value for name, value in self.paths.items())
        )

    @property
    def is_up_to_date(self) -> bool:
        """True if there is nothing to read, and the former index can stay unchanged."""
        return self.keeps_all and not self.plan.unread

    def _describe_paths(self) -> dict[str, Any]:
        """Return the attributes with the paths of the checkpoint and of the extractor's weights."""
        status = os.stat(self.checkpoint.path)
        return {
            "checkpoint": os.path.abspath(self.checkpoint.path),
            "checkpoint_bytes": status.st_size,
            "checkpoint_time": status.st_mtime_ns,
            "extractor_weights": "" if self.weights is None else os.path.abspath(self.weights),
        }

    @contextlib.contextmanager
    def open_writer(self, rebuild: bool, *, is_default: bool) -> Iterator[FeatureStoreWriter]:
        """Open the writer of the index in a ``with`` block; continue an interrupted run.

        Vectors of the interrupted run are dropped if their files have vanished or changed since.

        Args:
            rebuild: True to drop the vectors of an interrupted run with another checkpoint; if
                False, raise UserError for such a run.
            is_default: True if the index lies in the subfolder ``.fairseq_mm`` of the images, which
                is created if necessary.
        """
        attributes = {
            "extractor": VECTORS_EXTRACTOR,
            "weights": self.checkpoint.digest,
            "image_extractor": describe_extractor(self.checkpoint.extractor),
        }
        folder = os.path.dirname(os.path.abspath(self.path))
        is_other = _is_begun_with_other_attributes(f"{self.path}.partial", attributes)
        if is_other and not rebuild:
            raise UserError(
                f"{self.path}.partial: was begun with another checkpoint: give that checkpoint, or "
                "index all images anew: fairseq-mm index FOLDER --checkpoint PATH --rebuild."
            )
        try:
            _check_writable_folder(folder, is_default)
            with FeatureStoreWriter(
                self.path,
                dim=self.embedder.models[0].embed_dim,
                dtype="float32",
                attributes=attributes,
                overwrite=True,
                resume=not is_other,
            ) as writer:
                stale = {key for key in writer.done if self._has_changed(writer, key)}
                if stale:
                    writer.remove(stale)
                yield writer
        finally:
            if is_default:
                with contextlib.suppress(OSError):  # only an empty folder can be removed
                    os.rmdir(folder)

    def _has_changed(self, writer: FeatureStoreWriter, key: str) -> bool:
        source = writer.get_source(key)
        file = self.files.get(key)
        return file is None or source is None or describe_change(file, source) is not None

    def read(
        self,
        writer: FeatureStoreWriter,
        show_progress: bool,
        **options: Any,
    ) -> list[tuple[str, str]]:
        """Embed the new and changed files, and append their vectors.

        Args:
            writer: Writer of the index; files that it already has are not read.
            show_progress: Show a progress bar.
            **options: Options of :meth:`.ImageReader.read_files`.

        Returns:
            Path of each file that cannot be read, with the reason.
        """
        unread = self.plan.unread
        unreadable: list[tuple[str, str]] = []
        files = [file for file in unread if file.key not in writer.done]
        if not files:
            return unreadable
        # without a terminal, None disables the bar
        is_hidden = None if show_progress and len(files) >= _MANY else True
        results = zip(files, self.embedder.read_files(files, **options))
        with tqdm(
            total=len(unread), initial=len(unread) - len(files), unit=" images", disable=is_hidden
        ) as bar:
            while piece := list(itertools.islice(results, _PIECE)):
                readable = [
                    (file, features, source)
                    for file, (features, source) in piece
                    if not isinstance(features, UserError)
                ]
                vectors = self.embedder.embed_features([features for _, features, _ in readable])
                for (file, _, source), vector in zip(readable, vectors):
                    writer.append(file.key, vector, source)
                unreadable += [
                    (file.name, str(features))
                    for file, (features, _) in piece
                    if isinstance(features, UserError)
                ]
                bar.update(len(piece))
        return unreadable

    def finish(self, writer: FeatureStoreWriter, failures: list[tuple[str, str]]) -> IndexSummary:
        """Copy the unchanged vectors of the former index, and replace the index.

        If nothing has changed, the former index stays in place. Returns a summary of the run.

        Args:
            writer: Writer of the index, which has the vectors of the new and changed files.
            failures: Path of each file that cannot be read, with the reason.
        """
        before = set() if self.old is None else set(self.old.ids)
        read = set(writer.done) - self.plan.kept.keys()
        if self.keeps_all and not read:
            writer.discard()
            return IndexSummary(self.path, len(before), 0, 0, 0, failures)
        for key, source in self.plan.kept.items():
            if self.old is not None and key not in writer.done:
                writer.append(key, self.old.read(key), source)
        present = set(writer.done)
        if not present:
            writer.discard()
            name, reason = failures[0]
            raise UserError(
                f"none of the {len(self.files):,} images can be read; the first is {name}: {reason}"
            )
        checksum = writer.compute_rows_checksum()
        writer.add_attributes({**self.paths, "vectors_checksum": checksum})
        writer.finish()
        return IndexSummary(
            self.path,
            num_images=len(present),
            num_new=len(present - before),
            num_changed=len(read & before),
            num_removed=len(before - present),
            unreadable=failures,
        )


def _check_writable_folder(folder: str, is_made: bool) -> None:
    """Raise UserError if the index cannot be written to a folder.

    If ``is_made`` is True, a missing folder is created.
    """
    try:
        if is_made:
            os.makedirs(folder, exist_ok=True)
        if not os.path.isdir(folder):
            raise FileNotFoundError(0, "No such folder")
        if not os.access(folder, os.W_OK):
            raise PermissionError(0, "Permission denied")
    except OSError as error:
        raise UserError(
            f"{folder}: the index cannot be written there ({error.strerror}): give the path of a "
            "file elsewhere (--output FILE; in Python index=...)."
        ) from None


def _is_begun_with_other_attributes(partial_path: str, attributes: dict[str, Any]) -> bool:
    """Return True if an interrupted run, whose folder is ``partial_path``, used another checkpoint
    or extractor than ``attributes`` name."""
    header = os.path.join(partial_path, "header.json")
    if not os.path.exists(header):
        return False
    try:
        begun = read_json(header)
        return any(begun.get(f"attribute {name}") != x for name, x in attributes.items())
    except (UserError, AttributeError):
        return True  # a damaged header
