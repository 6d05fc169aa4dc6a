"""Compares a data folder's files with their digests, to see whether they still belong together.

``prepare`` writes the size and SHA-256 of each of its files to ``prepare.json``, by split::

    "digests": {"folder": {"dict.txt": {"bytes": 120, "sha256": "..."}},
                "train": {"train.bin": ..., "train.idx": ..., "train.visual_ids": ...}},
    "store": {"items": 19, "checksum": "..."},
    "sha256": "..."

``store`` has the number of images or videos in ``features.h5``, and the checksum of its ids and
features. ``sha256`` is the digest of the rest of ``prepare.json``. If ``features.json`` lists other
stores, the entry ``stores`` has the same two values for each store, under its path relative to the
folder.

Before a recorded file is read, the file is compared with its digest. If the file is larger than
``MAX_HASHED_BYTES``, only its size is compared, so that a training starts within seconds;
``fairseq-mm doctor`` reads every file whole. A folder without digests, made by an earlier version
or by ``fairseq-preprocess``, is read without checks.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from fairseq_mm.data.folder_lock import only_writer
from fairseq_mm.data.input_files import (
    SPLITS,
    compute_sha256,
    decoded,
    parse_json,
    read_bytes,
    read_json,
)
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError

REPORT = "prepare.json"
STORE = "features.h5"
# the stores of a data folder without features.h5: [{"store": path, "prefix": text}, ...]
STORE_LIST = "features.json"
# files of all splits, such as the dictionary
FOLDER = "folder"
# at most a second of hashing; the texts of all published releases but WritingPrompts are smaller
MAX_HASHED_BYTES = 1 << 26
# a reader knows only the path of its file: the record of these subfolders is one level up
_INNER_FOLDERS = ("text", "prompts", "stories")
_SEAL = "sha256"

AnyPath = Union[str, os.PathLike]
Digest = dict[str, Any]

logger = logging.getLogger(__name__)

# global, because readers at any depth call check_prepared_file
_is_checking = True


class FolderRecord(NamedTuple):
    """Digests from the ``prepare.json`` of a data folder.

    Attributes:
        folder: Path of the data folder.
        files: Dictionary from the path of a file inside the folder to its digest,
            ``{"bytes": ..., "sha256": ...}``.
        stores: Dictionary from the path of a feature store relative to the folder to
            ``{"items": ..., "checksum": ...}``, for ``features.h5`` and the stores in
            ``features.json``.
    """

    folder: str
    files: dict[str, Digest]
    stores: dict[str, dict[str, Any]]

    @property
    def path(self) -> str:
        return os.path.join(self.folder, REPORT)

    def store_place_difference(self) -> Optional[str]:
        """Check that the presence or absence of ``features.h5`` agrees with ``prepare.json``.

        Returns:
            Text that continues a message after the path of ``features.h5``, such as "is missing,
            but prepare.json records it"; None if nothing differs.
        """
        # features.h5 has priority over the list, so an added one would be read unnoticed
        is_there = os.path.exists(os.path.join(self.folder, STORE))
        if STORE in self.stores and not is_there:
            return f"is missing, but {self.path} records it"
        if is_there and STORE not in self.stores and STORE_LIST in self.files:
            return f"is read in place of {STORE_LIST}, which {self.path} records"
        return None

    def difference(self, name: str, *, whole: bool = False) -> Optional[str]:
        """Compare a file with its digest in ``prepare.json``.

        Args:
            name: Path of the file inside the folder.
            whole: Read files of any size; otherwise only the size is compared if the file is larger
                than ``MAX_HASHED_BYTES``.

        Returns:
            Text that continues a message after the path of the file, such as "is missing, but
            prepare.json records it"; None if nothing differs.
        """
        path, digest = os.path.join(self.folder, name), self.files[name]
        if not os.path.isfile(path):
            return f"is missing, but {self.path} records it"
        size = os.path.getsize(path)
        is_read = whole or size <= MAX_HASHED_BYTES
        content = compute_sha256(path) if is_read else None
        if size == digest["bytes"] and content in (None, digest["sha256"]):
            return None
        twins = [other for other, x in self.files.items() if other != name and x[_SEAL] == content]
        if twins:
            return f"has the content that {self.path} records of {twins[0]}"
        if size != digest["bytes"]:
            return f"has {size:,} bytes, but {self.path} records {digest['bytes']:,}"
        return f"has another content than the one whose digest is in {self.path}"


def digest_file(path: AnyPath) -> Digest:
    """Return the size and the SHA-256 of a file, as ``prepare.json`` records them."""
    return {"bytes": os.path.getsize(path), "sha256": compute_sha256(path)}


def by_split(digests: Mapping[str, Digest]) -> dict[str, dict[str, Digest]]:
    """Group digests by split, as in ``prepare.json``.

    Args:
        digests: Dictionary from the name of a file to its digest.

    Returns:
        Dictionary from the name of a split, or ``folder`` for files that all splits share, to the
        part of ``digests`` with its files.
    """
    parts: dict[str, dict[str, Digest]] = {}
    for name in sorted(digests):
        split = os.path.basename(name).partition(".")[0]
        parts.setdefault(split if split in SPLITS else FOLDER, {})[name] = digests[name]
    return parts


def sealed(report: dict[str, Any]) -> dict[str, Any]:
    """Return ``report``, a dictionary for ``prepare.json``, with its own digest as the last entry.
    If ``report`` has such an entry already, the entry is replaced."""
    content = {name: value for name, value in report.items() if name != _SEAL}
    # JSON turns numeric keys into text, which sorts differently: sort what a reader will see
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return {**content, _SEAL: hashlib.sha256(text.encode()).hexdigest()}


def read_record(folder: AnyPath) -> Optional[FolderRecord]:
    """Read the digests of a data folder; return None if it has no ``prepare.json`` with digests.

    Raise UserError if ``prepare.json`` is damaged, or was changed after ``prepare`` wrote it.
    """
    path = os.path.join(folder, REPORT)
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return _read_record(os.fspath(folder), stat.st_mtime_ns, stat.st_size, stat.st_ino)


# `version` is a part of the cache's key: a file that has changed is read again
@functools.lru_cache(maxsize=8)
def _read_record(folder: str, *version: int) -> Optional[FolderRecord]:
    path = os.path.join(folder, REPORT)
    text = decoded(read_bytes(path), path)
    report = parse_json(text, path)
    if not isinstance(report, dict):
        raise UserError(
            f"{path}: must be a JSON object, but is {type(report).__name__} instead. "
            f"{remedy(folder)}"
        )
    repeated: list[str] = []

    def note_repeated(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, _ in pairs)
        repeated.extend(name for name, count in counts.items() if count > 1)

    # json silently keeps only the last of several entries with one name
    json.loads(text, object_pairs_hook=note_repeated)
    if repeated:
        raise UserError(f"{path}: {repeated[0]!r} stands in one object twice. {remedy(folder)}")
    if not report.keys() & {"digests", "store", "stores", _SEAL}:
        return None
    if sealed(report) != report:
        raise UserError(
            f"{path}: was changed after `prepare` wrote it: its content does not match its own "
            f"digest. {remedy(folder)}"
        )
    try:
        parts, stores = report.get("digests", {}).values(), dict(report.get("stores", {}))
        files = {name: _check_digest(name, x) for part in parts for name, x in part.items()}
        if report.get("store") is not None:
            stores[STORE] = report["store"]
        stores = {
            name: {"items": int(x["items"]), "checksum": str(x["checksum"])}
            for name, x in stores.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            f"{path}: `digests` must hold the bytes and sha256 of each file, and `store` and each "
            f"of `stores` items and checksum, but they do not. {remedy(folder)}"
        ) from None
    return FolderRecord(folder, files, stores)


def _check_digest(name: str, digest: Any) -> Digest:
    # a record from elsewhere must not make the program read files outside the folder
    if os.path.isabs(name) or ".." in name.split("/"):
        raise ValueError(f"{name} is not inside the folder")
    return {"bytes": int(digest["bytes"]), "sha256": str(digest["sha256"])}


def remedy(folder: AnyPath) -> str:
    """Return the end of a message: what to do if a file of the data folder was changed."""
    return f"Prepare the folder anew or, if the change is meant, run: {repair_command(folder)}"


def repair_command(folder: AnyPath) -> str:
    """Return the command that writes the digests of a folder's present files to
    ``prepare.json``."""
    return f"fairseq-mm doctor --data {os.fspath(folder) or '.'} --repair --accept-changes"


def check_prepared_file(path: AnyPath) -> None:
    """Compare a file with its digest before it is read; a file without digest is accepted. Raise
    UserError if the file has changed since ``prepare`` wrote it."""
    if not _is_checking:
        return
    folder, name = os.path.split(os.fspath(path))
    parent, inner = os.path.split(folder)
    # a data folder may itself be named "text", and has its own prepare.json
    if inner in _INNER_FOLDERS and not os.path.exists(os.path.join(folder, REPORT)):
        folder, name = parent, f"{inner}/{name}"
    record = read_record(folder)
    if record is None or name not in record.files:
        return
    difference = record.difference(name)
    if difference is not None:
        raise UserError(
            f"{os.fspath(path)}: {difference}: the folder's files no longer belong together. "
            f"{remedy(folder)}"
        )


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Turn off all comparisons with digests in a ``with`` block, for a caller that has compared
    every file itself."""
    global _is_checking
    before, _is_checking = _is_checking, False
    try:
        yield
    finally:
        _is_checking = before


def update_record(folder: AnyPath, changes: dict[str, Any]) -> None:
    """Change entries of ``prepare.json``, and renew its own digest; the caller must hold the
    folder's lock.

    ``changes`` maps the name of an entry to its new value, or to None to remove the entry. Raise
    UserError if the file cannot be read or written.
    """
    path = Path(folder, REPORT)
    report = read_json(path) if path.exists() else {}
    report = {**(report if isinstance(report, dict) else {}), **changes}
    removed = {name for name, value in changes.items() if value is None}
    report = {name: value for name, value in report.items() if name not in removed}
    write_file(path, json.dumps(sealed(report), indent=2, ensure_ascii=False) + "\n")


def record_file(folder: AnyPath, name: str, digest: Optional[Digest]) -> None:
    """Record the digest of a file that a command other than ``prepare`` adds to a data folder.

    ``name`` is the path of the file inside the folder. If ``digest`` is None, the recorded digest
    of the file is removed; callers do this before they replace the file. If the folder has no
    digests, nothing is done. The caller must hold the folder's lock.
    """
    record = read_record(folder)
    if record is not None:
        files = {other: x for other, x in record.files.items() if other != name}
        files.update({} if digest is None else {name: digest})
        update_record(folder, {"digests": by_split(files)})


def record_store(path: AnyPath, items: int, checksum: str) -> None:
    """Record a new store ``features.h5`` in the ``prepare.json`` of its data folder.

    ``items`` is the number of images or videos in the store, ``checksum`` the checksum of its ids
    and features. Nothing is recorded if the store has another name, the checksum is empty,
    ``prepare.json`` has no digests, or another process writes to the folder.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if name != STORE or not checksum or not os.path.exists(os.path.join(folder, REPORT)):
        return
    # the store is finished: that it cannot be recorded must not end the command
    with contextlib.suppress(UserError, OSError), only_writer(folder):
        if read_record(folder) is not None:
            update_record(folder, {"store": {"items": items, "checksum": checksum}})


def store_difference(
    path: AnyPath, checksum: str, folder: Optional[AnyPath] = None
) -> Optional[str]:
    """Compare a feature store with its checksum in the ``prepare.json`` of a data folder.

    Args:
        path: Path of the store.
        checksum: Checksum of the store's ids and features; empty if it is not known.
        folder: Data folder; None for the folder that contains the store.

    Returns:
        Text that continues a message after the path of the store, such as "is not the feature store
        that prepare.json records"; None if nothing differs, or no checksum is recorded.
    """
    place = os.path.dirname(path) if folder is None else folder
    record = read_record(place) if _is_checking else None
    known = None if record is None else record.stores.get(os.path.relpath(path, place or "."))
    if record is None or known is None or known["checksum"] == checksum:
        return None
    if not checksum:
        return (
            f"has no checksum of its ids and rows, so that only `fairseq-mm doctor --data "
            f"{record.folder or '.'}`, which reads it whole, can compare it with the feature store "
            f"that {record.path} records ({known['items']} items)"
        )
    return (
        f"is not the feature store that {record.path} records ({known['items']} items). If it is "
        f"to take its place, run: {repair_command(record.folder)}"
    )


def warn_of_other_stores(folder: AnyPath, stores: Iterable[Any], *, are_of_folder: bool) -> None:
    """Warn if opened feature stores differ from ``prepare.json``, since the user may have replaced
    them.

    ``stores`` are opened :class:`.FeatureStore` objects. ``are_of_folder`` is True for the stores
    of the folder, False for stores that the user has named instead.
    """
    record = read_record(folder) if are_of_folder and _is_checking else None
    misplaced = None if record is None else record.store_place_difference()
    if record is not None and misplaced is not None:
        logger.warning(
            f"{os.path.join(folder, STORE)}: {misplaced}. If the change is meant, run: "
            f"{repair_command(folder)}"
        )
    for store in stores:
        # a listed store belongs to the folder that lists it and to the one that holds it
        places = [os.fspath(folder)] if are_of_folder else []
        for place in dict.fromkeys([*places, os.path.dirname(store.path)]):
            checksum = store.content_checksum
            # stores of earlier versions have no checksum; large ones are left to `doctor`, so that
            # a training starts within seconds
            if (
                not checksum
                and store_difference(store.path, checksum, place)
                and os.path.getsize(store.path) <= MAX_HASHED_BYTES
            ):
                checksum = store.check_content()
            difference = store_difference(store.path, checksum, place)
            if difference is not None:
                logger.warning(f"{store.path}: {difference}")
                break
