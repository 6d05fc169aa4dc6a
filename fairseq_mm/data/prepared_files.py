"""Digests of a data folder's files: they show that the files still belong together.

``prepare`` writes size and SHA-256 of each of its files to ``prepare.json``, split by split::

    "digests": {"folder": {"dict.txt": {"bytes": 120, "sha256": "..."}},
                "train": {"train.bin": ..., "train.idx": ..., "train.visual_ids": ...}},
    "store": {"items": 19, "checksum": "..."},
    "sha256": "..."

``store`` is the checksum of the ids and rows of ``features.h5``, and the last entry is the digest
of the rest of ``prepare.json``. Every reader of a recorded file compares the file with its digest;
of a file larger than ``MAX_HASHED_BYTES`` only the size, so that a training starts in seconds.
``fairseq-mm doctor`` reads every file whole. A folder without digests, made by an earlier version
or by ``fairseq-preprocess``, is read as it is.
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from fairseq_mm.data.folder_lock import only_writer
from fairseq_mm.data.input_files import SPLITS, read_json, sha256_of
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError

REPORT = "prepare.json"
STORE = "features.h5"
# files of all splits, such as the dictionary
FOLDER = "folder"
# a second of hashing at most; the text of all published releases but WritingPrompts is smaller
MAX_HASHED_BYTES = 1 << 26
# folders inside a data folder that have prepared files
_INNER_FOLDERS = ("text", "prompts", "stories")
_SEAL = "sha256"

AnyPath = Union[str, os.PathLike]
Digest = dict[str, Any]

_is_checking = True


class FolderRecord(NamedTuple):
    """Digests that a data folder's ``prepare.json`` holds.

    Attributes:
        folder: Path of the data folder.
        files: Path inside the folder -> ``{"bytes": ..., "sha256": ...}``.
        store: ``{"items": ..., "checksum": ...}`` of ``features.h5``; None if not recorded.
    """

    folder: str
    files: dict[str, Digest]
    store: Optional[dict[str, Any]]

    @property
    def path(self) -> str:
        return os.path.join(self.folder, REPORT)

    def difference(self, name: str, *, whole: bool = False) -> Optional[str]:
        """Compare a file with its digest.

        Args:
            name: Path inside the folder; a recorded one.
            whole: Read files of any size.

        Returns:
            The difference as a predicate, such as "is missing"; None if there is none.
        """
        path, digest = os.path.join(self.folder, name), self.files[name]
        if not os.path.isfile(path):
            return f"is missing, but {self.path} records it"
        size = os.path.getsize(path)
        is_read = whole or size <= MAX_HASHED_BYTES
        content = sha256_of(path) if is_read else None
        if size == digest["bytes"] and content in (None, digest["sha256"]):
            return None
        twins = [other for other, x in self.files.items() if other != name and x[_SEAL] == content]
        if twins:
            return f"has the content that {self.path} records of {twins[0]}"
        if size != digest["bytes"]:
            return f"has {size:,} bytes, but {self.path} records {digest['bytes']:,}"
        return f"has another content than the one whose digest is in {self.path}"


def digest_file(path: AnyPath) -> Digest:
    """Return size and SHA-256 of a file."""
    return {"bytes": os.path.getsize(path), "sha256": sha256_of(path)}


def by_split(digests: Mapping[str, Digest]) -> dict[str, dict[str, Digest]]:
    """Sort digests as they stand in ``prepare.json``: split, or ``folder`` -> name -> digest."""
    parts: dict[str, dict[str, Digest]] = {}
    for name in sorted(digests):
        split = os.path.basename(name).partition(".")[0]
        parts.setdefault(split if split in SPLITS else FOLDER, {})[name] = digests[name]
    return parts


def sealed(report: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``prepare.json`` with a digest of itself as its last entry."""
    content = {name: value for name, value in report.items() if name != _SEAL}
    # read back first: JSON turns numbers that are keys into text, which is sorted otherwise
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return {**content, _SEAL: hashlib.sha256(text.encode()).hexdigest()}


def read_record(folder: AnyPath) -> Optional[FolderRecord]:
    """Read the digests of a data folder.

    Returns:
        The digests; None if the folder has no ``prepare.json``, or one without digests.

    Raises:
        UserError: If ``prepare.json`` is damaged or was changed.
    """
    path = os.path.join(folder, REPORT)
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return _read_record(os.fspath(folder), stat.st_mtime_ns, stat.st_size, stat.st_ino)


@functools.lru_cache(maxsize=8)
def _read_record(folder: str, *version: int) -> Optional[FolderRecord]:
    path = os.path.join(folder, REPORT)
    report = read_json(path)
    if not isinstance(report, dict) or not report.keys() & {"digests", "store", _SEAL}:
        return None
    if sealed(report) != report:
        raise UserError(
            f"{path}: was changed after `prepare` wrote it: its content does not match its own "
            f"digest. {remedy(folder)}"
        )
    try:
        parts, store = report.get("digests", {}).values(), report.get("store")
        files = {name: _checked(name, x) for part in parts for name, x in part.items()}
        if store is not None:
            store = {"items": int(store["items"]), "checksum": str(store["checksum"])}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            f"{path}: `digests` must hold the bytes and sha256 of each file, and `store` items and "
            f"checksum, but they do not. {remedy(folder)}"
        ) from None
    return FolderRecord(folder, files, store)


def _checked(name: str, digest: Any) -> Digest:
    if os.path.isabs(name) or ".." in name.split("/"):
        raise ValueError(f"{name} is not inside the folder")
    return {"bytes": int(digest["bytes"]), "sha256": str(digest["sha256"])}


def remedy(folder: AnyPath) -> str:
    """Return what to do about a file that differs from its digest."""
    return f"Prepare the folder anew or, if the change is meant, run: {repair_command(folder)}"


def repair_command(folder: AnyPath) -> str:
    """Return the command that records a folder's files as they are."""
    return f"fairseq-mm doctor --data {os.fspath(folder) or '.'} --repair --accept-changes"


def check_prepared_file(path: AnyPath) -> None:
    """Compare a file that is about to be read with its digest; without one all is right.

    Raises:
        UserError: If the file is not the one that ``prepare`` has written.
    """
    if not _is_checking:
        return
    folder, name = os.path.split(os.fspath(path))
    parent, inner = os.path.split(folder)
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
    """Let readers skip the digests, for a caller that has compared every file itself."""
    global _is_checking
    before, _is_checking = _is_checking, False
    try:
        yield
    finally:
        _is_checking = before


def update_record(folder: AnyPath, changes: dict[str, Any]) -> None:
    """Change entries of ``prepare.json``, and its digest of itself. The caller locks the folder.

    Raises:
        UserError: If the file cannot be read or written.
    """
    path = Path(folder, REPORT)
    report = {**(read_json(path) if path.exists() else {}), **changes}
    write_file(path, json.dumps(sealed(report), indent=2, ensure_ascii=False) + "\n")


def record_file(folder: AnyPath, name: str, digest: Optional[Digest]) -> None:
    """Record a file that is written after ``prepare``, if the folder has digests.

    Args:
        folder: Path of the data folder, which the caller locks.
        name: Path of the file inside the folder.
        digest: Its digest; None to forget it, before the file is replaced.
    """
    record = read_record(folder)
    if record is not None:
        files = {other: x for other, x in record.files.items() if other != name}
        files.update({} if digest is None else {name: digest})
        update_record(folder, {"digests": by_split(files)})


def record_store(path: AnyPath, items: int, checksum: str) -> None:
    """Record a data folder's new ``features.h5``, if the folder has digests.

    Nothing is recorded while another process writes to the folder.

    Args:
        path: Path of a store, in a data folder or elsewhere.
        items: Number of its items.
        checksum: Checksum of its ids and rows; nothing is recorded if it is empty.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if name != STORE or not checksum or not os.path.exists(os.path.join(folder, REPORT)):
        return
    with contextlib.suppress(UserError, OSError), only_writer(folder):
        if read_record(folder) is not None:
            update_record(folder, {"store": {"items": items, "checksum": checksum}})


def store_difference(path: AnyPath, checksum: str) -> Optional[str]:
    """Compare a data folder's ``features.h5`` with its checksum in ``prepare.json``.

    Args:
        path: Path of a store, in a data folder or elsewhere.
        checksum: Checksum of its ids and rows; empty if it is not known.

    Returns:
        The difference as a predicate; None if there is none, or no checksum is recorded.
    """
    folder, name = os.path.split(os.fspath(path))
    record = read_record(folder) if name == STORE and checksum and _is_checking else None
    if record is None or record.store is None or record.store["checksum"] == checksum:
        return None
    return (
        f"is not the feature store that {record.path} records ({record.store['items']} items). If "
        f"it is to take its place, run: {repair_command(folder)}"
    )
