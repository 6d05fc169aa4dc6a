"""Inspects untrusted feature stores for ``fairseq-mm store info`` and ``store verify``."""

import os
from typing import Any

from fairseq_mm.data.feature_store import FeatureStore, Progress
from fairseq_mm.data.feature_store_checksum import add_checksum
from fairseq_mm.data.separate_process import in_separate_process


def describe_store(path: str) -> dict[str, Any]:
    """Return the properties of a store that ``store info`` prints, as a dictionary from names to
    values. Raise UserError if the file is damaged or no feature store."""

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
    """Return the id and the number of feature vectors of each image or video in a store. Raise
    UserError if the file is damaged or no feature store."""

    def list_rows() -> list[tuple[str, int]]:
        store = FeatureStore(path)
        return [(key, store.count_rows(key)) for key in store.ids]

    # the result is JSON, which has lists in the place of tuples
    return in_separate_process(path, list_rows)


def verify_store(path: str, progress: Progress = iter, *, repair: bool = False) -> dict[str, Any]:
    """Read and check a whole store.

    Args:
        path: Path of the store.
        progress: Function that wraps the iteration over the ids, such as ``tqdm``.
        repair: Add the checksum of the metadata if the store has none.

    Returns:
        Dictionary with ``items``, the number of images or videos; ``checksum``, the computed
        checksum of ids and features; ``has_content_checksum``, True if such a checksum was saved in
        the store; ``has_checksum``, True if the store has a checksum of its metadata; and
        ``is_repaired``, True if this checksum of the metadata was added now.
    """

    def verify() -> dict[str, Any]:
        store = FeatureStore(path)  # opening checks the structure
        store.check_finite(reread=True)
        checksum = store.check_content(progress)
        store.count_sources()  # reading the records checks their structure
        return {
            "checksum": checksum,
            "items": len(store),
            "has_checksum": store.has_checksum,
            "has_content_checksum": bool(store.content_checksum),
        }

    report = in_separate_process(path, verify)
    report["is_repaired"] = repair and not report["has_checksum"]
    if report["is_repaired"]:
        add_checksum(path)
        report["has_checksum"] = True
    return report
