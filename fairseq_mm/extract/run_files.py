"""Writes the files next to the feature store of an extraction, and checks a finished store."""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Optional, Union

import numpy as np

from fairseq_mm.data.feature_sources import Source
from fairseq_mm.data.feature_store import SHARD_ATTRIBUTES, FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.extract.hashed_file import describe_change
from fairseq_mm.extract.identity import check_same_extractor
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.extract.readers import MediaEnd, Unreadable

logger = logging.getLogger(__name__)


def unreadable_path(output: str) -> str:
    """Return the path of the list of unreadable files, next to the store ``output``."""
    return output + ".unreadable.tsv"


def details_path(output: str, noun: str) -> str:
    """Return the path of the table with one line per image or video of the store ``output``;
    ``noun`` is ``images`` or ``videos``."""
    return f"{output}.{noun}.tsv"


def write_unreadable(output: str, unreadable: Iterable[tuple[str, Unreadable]]) -> None:
    """Write the list of unreadable files next to the store ``output``; remove it if there are none.

    ``unreadable`` has the name and the :class:`.Unreadable` of each file. A line has the name, the
    reason, and the size, time and SHA-256 of the file if they are known, separated by tabs.
    """
    rows = []
    for name, (reason, source) in unreadable:
        fields = [" ".join(field.split()) for field in (name, reason)]
        if source is not None:
            fields += [str(source.size), str(source.time), source.digest.hex()]
        rows.append(fields)
    # an empty list would look as if a file could not be read
    if rows:
        write_rows(unreadable_path(output), rows)
        return
    with contextlib.suppress(FileNotFoundError):
        os.remove(unreadable_path(output))


def write_rows(path: str, rows: Iterable[Sequence[str]]) -> None:
    """Write ``rows`` to a file, one per line, fields separated by tabs."""
    # Linux allows any bytes in paths; Python decodes those that are not UTF-8 to surrogates
    with open(path + ".tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines("\t".join(row) + "\n" for row in rows)
    os.replace(path + ".tmp", path)


def _read_unreadable(path: str) -> dict[str, Optional[Source]]:
    """Read the list of unreadable files.

    Return a dict from the name of a file to its size, time and SHA-256, or to None if the list does
    not have them.
    """
    sources: dict[str, Optional[Source]] = {}
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                name, _, *fields = [*line.rstrip("\n").split("\t"), ""]
                sources[name] = None
                with contextlib.suppress(ValueError):
                    size, time, digest, _ = fields
                    sources[name] = Source(int(size), int(time), bytes.fromhex(digest))
    except FileNotFoundError:
        pass
    return sources


class Journal:
    """Table of the finished videos, kept in the folder ``<path>.partial`` until the feature store
    ``<path>`` is finished.

    Args:
        writer: Writer of the store.
        noun: ``videos``, as part of the table's file name.
        columns: Names of the columns: the id, the number of clips, and the columns of the reader.

    Attributes:
        rows: Header of the table, and one line per video.
        num_inputs: Dict from id to number of clips, for videos that an interrupted run has
            finished.
    """

    def __init__(self, writer: FeatureStoreWriter, noun: str, columns: Sequence[str]) -> None:
        self.output = details_path(writer.path, noun)
        self.path = os.path.join(writer.partial_path, f"{noun}.tsv")
        rows = [line.rstrip("\n").split("\t") for line in self._read_lines() if line.endswith("\n")]
        # a line is written before its video is appended: the last may be incomplete or too early
        latest = {row[0]: row for row in rows if len(row) == len(columns) and row[0] in writer.done}
        lost = writer.done - latest.keys()
        if lost:
            raise UserError(
                f"{self.path}: lacks {min(lost)!r}, which stands in the store. Delete "
                f"{writer.partial_path} to begin anew."
            )
        self.num_inputs = {key: int(row[1]) for key, row in latest.items()}
        self.rows: list[Sequence[str]] = [columns, *latest.values()]
        write_rows(self.path, latest.values())
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115

    def _read_lines(self) -> list[str]:
        try:
            with open(self.path, encoding="utf-8", newline="\n") as file:
                return list(file)
        except FileNotFoundError:
            return []

    def note(self, key: str, num_inputs: int, end: MediaEnd) -> None:
        row = (key, str(num_inputs), *end.fields)
        self.rows.append(row)
        self._file.write("\t".join(row) + "\n")
        self._file.flush()  # a kill must not lose the row of a video that the store has

    def finish(self) -> None:
        """Write the table of the finished videos next to the feature store."""
        write_rows(self.output, self.rows)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class RunSummary(NamedTuple):
    """Results of a run.

    Attributes:
        num_items: Number of images or videos in the store.
        num_unreadable: Number of listed files that are not in the store.
        num_damaged: Number of damaged videos of which this run has stored only a part.
        num_extracted: Number of images or videos that this run has added.
        num_inputs: Number of images or clips whose features this run has computed.
        seconds: Duration of this run, from the first file on.
        seconds_waiting: Seconds of waiting for the decoding processes.
        seconds_network: Seconds in which the device computed features. With a GPU, this time
            overlaps with ``seconds_waiting``.
        was_finished: True if the store was finished before this run, which has added nothing.
        unlisted: Ids in a finished store that are not among the files of this run.
    """

    num_items: int
    num_unreadable: int
    num_damaged: int = 0
    num_extracted: int = 0
    num_inputs: int = 0
    seconds: float = 0.0
    seconds_waiting: float = 0.0
    seconds_network: float = 0.0
    was_finished: bool = False
    unlisted: Sequence[str] = ()


def check_finished(
    identity: Mapping[str, object], items: Sequence[MediaFile], output: str, dtype: str, noun: str
) -> RunSummary:
    """Check that a finished store equals the store that a run would write. Raise UserError if it
    differs.

    Args:
        identity: Attributes that the run would record in the store.
        items: Files of the run.
        output: Path of the store.
        dtype: ``float16`` or ``float32``, as the run would write.
        noun: ``images`` or ``videos``.

    Returns:
        Summary of a run that has nothing to do.
    """
    store = FeatureStore(output)
    try:
        check_same_extractor(
            store.attributes,
            identity,
            recorded_by=f"the features in {output}",
            given_by="those asked for",
        )
        if store.dtype != np.dtype(dtype):
            raise UserError(f"{output}: is {store.dtype}, but --dtype asks for {dtype}.")
        for name in SHARD_ATTRIBUTES:
            if store.attributes.get(name, identity.get(name)) != identity.get(name):
                shard = store.attributes.get("shard", "1/1")
                raise UserError(f"{output}: is part {shard} of another list of {noun}.")
    except UserError as error:
        raise UserError(f"{error} Choose another --output, or --overwrite.") from None
    # files that the finished run could not read are not missing, unless they were replaced since
    unreadable = _read_unreadable(unreadable_path(output))
    missing = [item for item in items if item.key not in store]
    new = [item for item in missing if _is_new(item, unreadable)]
    if new:
        raise UserError(
            f"{output}: is finished, but lacks {len(new)} of the {len(items)} {noun}, such as "
            f"{new[0].name}. Extract them into a second store (--except {output} --output "
            f"FILE), or all of them anew (--overwrite)."
        )
    check_unchanged(
        store, items, noun, "Extract all of them anew (--overwrite), or choose another --output."
    )
    keys = {item.key for item in items}
    unlisted = [key for key in store.ids if key not in keys]
    return RunSummary(len(store), len(missing), was_finished=True, unlisted=unlisted)


def _is_new(item: MediaFile, unreadable: Mapping[str, Optional[Source]]) -> bool:
    """Return True if an image or video that a finished store lacks must be read.

    A file must be read if no run has tried it, or if it was unreadable and has changed since.

    Args:
        item: Image or video.
        unreadable: Dict from the name of an unreadable file to its size, time and SHA-256; None if
            they are not known.
    """
    name = " ".join(item.name.split())  # as the list has it, which separates fields by tabs
    source = unreadable.get(name)
    return name not in unreadable or (source is not None and bool(describe_change(item, source)))


def check_same_items(writer: FeatureStoreWriter, items: Sequence[MediaFile], noun: str) -> None:
    """Check that a continued run has the same files, with the same content.

    Raise UserError if a file in the store is not among ``items``, or has changed.

    Args:
        writer: Writer that continues the store.
        items: Files of the run.
        noun: ``images`` or ``videos``.
    """
    stray = sorted(writer.done - {item.key for item in items})
    if stray:
        raise UserError(
            f"{writer.partial_path}: has {len(stray)} {noun} that are not given now, such as "
            f"{stray[0]!r}. Give the same {noun} to continue, or delete it to begin anew."
        )
    check_unchanged(writer, items, noun, f"Delete {writer.partial_path} to begin anew.")


def check_unchanged(
    store: Union[FeatureStore, FeatureStoreWriter],
    items: Sequence[MediaFile],
    noun: str,
    remedy: str,
) -> None:
    """Check that the files from which the features of a store were computed have not changed since.

    Log a warning if the store has no size, time and SHA-256 of the files. Raise UserError that
    names the first file that has changed.

    Args:
        store: Finished store, or writer that continues a store.
        items: Files to check; files that are not in the store are ignored.
        noun: ``images`` or ``videos``.
        remedy: Last sentence of the error message.
    """
    keys = store.done if isinstance(store, FeatureStoreWriter) else store
    shared = shared_sizes_and_times(store, items)
    changes = []
    num_items = num_unknown = 0
    for item in items:
        if item.key not in keys:
            continue
        num_items += 1
        source = store.get_source(item.key)
        if source is None:
            num_unknown += 1
        elif change := describe_change(
            item, source, reads_always=not item.member and source[:2] in shared
        ):
            changes.append((item.name, change))
    if changes:
        name, change = changes[0]
        raise UserError(
            f"{store.path}: was made of other files: {len(changes)} of {num_items} {noun} have "
            f"changed since, such as {name} ({change}). {remedy}"
        )
    if num_unknown:
        logger.warning(
            f"{store.path}: does not record the files of {num_unknown} of {num_items} {noun}: "
            "whether they have changed since cannot be told."
        )


def shared_sizes_and_times(
    store: Union[FeatureStore, FeatureStoreWriter], items: Iterable[MediaFile]
) -> set[tuple[int, int]]:
    """Return the pairs (size, time of last change) that several files share.

    For a file with such a pair, equal size and time do not show that the file is unchanged.

    Args:
        store: Finished store, or writer that continues a store; both record sizes and times.
        items: Files that exist now.
    """
    # tools may set one time for all files; then such a pair does not identify the file of an item.
    # Members of an archive share its time, but their names identify them.
    paths: dict[tuple[int, int], str] = {}
    shared = set()
    for item in items:
        with contextlib.suppress(OSError, UserError):
            pair = item.size_and_time()
            if not item.member and paths.setdefault(pair, item.path) != item.path:
                shared.add(pair)
    keys = store.done if isinstance(store, FeatureStoreWriter) else store.ids
    digests: dict[tuple[int, int], bytes] = {}
    for source in filter(None, map(store.get_source, keys)):
        if digests.setdefault(source[:2], source.digest) != source.digest:
            shared.add(source[:2])
    return shared
