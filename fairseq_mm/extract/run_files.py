"""Writes the files next to the feature store of an extraction, and checks a finished store."""

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Union

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.extract.hashed_file import describe_change
from fairseq_mm.extract.media import MediaFile
from fairseq_mm.extract.readers import MediaEnd

logger = logging.getLogger(__name__)


def unreadable_path(output: str) -> str:
    """Return the path of the list of unreadable files, next to the store ``output``."""
    return output + ".unreadable.tsv"


def write_unreadable(output: str, unreadable: Iterable[tuple[str, str]]) -> None:
    """Write names and reasons of unreadable files, separated by tabs, next to the store ``output``;
    remove the list if there are none."""
    rows = [[" ".join(field.split()) for field in pair] for pair in unreadable]
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


class Journal:
    """Table with a line per finished video, kept in the folder ``<path>.partial`` until the feature
    store ``<path>`` is finished. ``num_inputs`` has the number of clips of each video that an
    interrupted run has finished."""

    def __init__(self, writer: FeatureStoreWriter, noun: str, columns: Sequence[str]) -> None:
        self.output = f"{writer.path}.{noun}.tsv"
        self.path = os.path.join(writer.partial_path, f"{noun}.tsv")
        rows = [line.rstrip("\n").split("\t") for line in self._read_lines() if line.endswith("\n")]
        # a line is written before its video is appended: the last may be incomplete or too early
        latest = {row[0]: row for row in rows if len(row) == len(columns) and row[0] in writer.done}
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
    """Results of a run: numbers of items in the store, of unreadable files, and of items and inputs
    (images or clips) of this run. With a GPU, ``seconds_network`` and ``seconds_waiting`` (for
    decoding) overlap."""

    num_items: int
    num_unreadable: int
    num_extracted: int = 0
    num_inputs: int = 0
    seconds: float = 0.0
    seconds_waiting: float = 0.0
    seconds_network: float = 0.0


def check_same_items(writer: FeatureStoreWriter, items: Sequence[MediaFile], noun: str) -> None:
    """Raise UserError if a file in a continued store is not among ``items``, or has changed; log a
    warning if the store does not record its files."""
    shared = shared_sizes_and_times(writer, items)
    names = {item.key for item in items}
    changes = [(key, "it is not given now") for key in writer.done if key not in names]
    num_unknown = 0
    for item in items:
        source = writer.get_source(item.key) if item.key in writer.done else None
        if source is None:
            num_unknown += item.key in writer.done
        elif change := describe_change(
            item, source, reads_always=not item.member and source[:2] in shared
        ):
            changes.append((item.name, change))
    if changes:
        name, change = changes[0]
        raise UserError(
            f"{writer.path}: was begun with other files: {len(changes)} of {len(writer.done)} "
            f"{noun} have changed, such as {name} ({change}). Give the same {noun} to continue, or "
            f"delete {writer.partial_path} to begin anew."
        )
    if num_unknown:
        logger.warning(
            f"{writer.path}: does not record the files of {num_unknown} of {len(writer.done)} "
            f"{noun}: whether they have changed since cannot be told."
        )


def shared_sizes_and_times(
    store: Union[FeatureStore, FeatureStoreWriter], items: Iterable[MediaFile]
) -> set[tuple[int, int]]:
    """Return the pairs (size, time of last change) that several files share: for these files, equal
    size and time do not prove that a file is unchanged."""
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
