"""What ``fairseq-mm store info`` and ``verify`` say of a feature store that nobody trusts yet."""

import os
from collections.abc import Iterable
from typing import Any, Callable

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_checksum import add_checksum
from fairseq_mm.data.separate_process import in_separate_process

Progress = Callable[[Iterable[str]], Iterable[str]]


def describe_store(path: str) -> dict[str, Any]:
    """Facts of a store, by name.

    Raises:
        UserError: if it is damaged, or no store.
    """

    def describe() -> dict[str, Any]:
        store = FeatureStore(path)
        rows = [store.count_rows(key) for key in store.ids]
        return {
            "path": store.path,
            "items": len(store),
            "rows": sum(rows),
            "rows_per_item": [min(rows), max(rows)] if rows else [0, 0],
            "dim": store.dim,
            "dtype": store.dtype.name,
            "bytes": os.path.getsize(store.path),
            "read": "directly" if store.is_contiguous else "through HDF5 (chunked or compressed)",
            "rows_checked_when_written": store.rows_finite,
            "metadata_checksum": store.has_checksum,
            "files_recorded": store.count_sources(),
            "attributes": store.attributes,
        }

    return in_separate_process(path, describe)


def rows_by_id(path: str) -> list[tuple[str, int]]:
    """Ids of a store, and the number of rows of each.

    Raises:
        UserError: if it is damaged, or no store.
    """

    def list_rows() -> list[tuple[str, int]]:
        store = FeatureStore(path)
        return [(key, store.count_rows(key)) for key in store.ids]

    return in_separate_process(path, list_rows)


def verify_store(path: str, progress: Progress = iter, *, repair: bool = False) -> dict[str, Any]:
    """Reads all of a store.

    Args:
        path: of the store.
        progress: wraps the iteration over the ids.
        repair: add the checksum of its metadata, if it has none.

    Returns:
        ``checksum`` of the content, ``items``, ``has_checksum`` of the metadata,
        ``has_content_checksum``: whether the store was written with one, and ``is_repaired``:
        whether that of the metadata was added.

    Raises:
        UserError: if it is damaged, has values that are not finite, has other ids or rows than it
            was written with, or cannot be repaired.
    """

    def verify() -> dict[str, Any]:
        store = FeatureStore(path)  # checks the structure
        store.check_finite(reread=True)
        checksum = store.check_content(progress)
        store.count_sources()  # checks their structure
        return {
            "checksum": checksum,
            "items": len(store),
            "has_checksum": store.has_checksum,
            "has_content_checksum": bool(store.content_checksum),
        }

    found = in_separate_process(path, verify)
    found["is_repaired"] = repair and not found["has_checksum"]
    if found["is_repaired"]:
        add_checksum(path)
        found["has_checksum"] = True
    return found
