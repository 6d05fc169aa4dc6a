"""Merges feature stores and converts their dtypes.

All functions stream the features, continue after an interruption, and do not change their inputs.
"""

import os
import re
from collections.abc import Sequence
from typing import Optional, Union

import numpy as np

from fairseq_mm.data.feature_store import (
    EXTRACTOR_ATTRIBUTES,
    SHARD_ATTRIBUTES,
    FeatureStore,
    FeatureStores,
    Progress,
)
from fairseq_mm.data.feature_store_checksum import check_metadata
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter, remove_leftover
from fairseq_mm.data.separate_process import in_separate_process
from fairseq_mm.errors import UserError


def merge_stores(
    paths: Sequence[str],
    out: Union[str, os.PathLike],
    *,
    ignore_missing_parts: bool = False,
    overwrite: bool = False,
    progress: Progress = iter,
) -> int:
    """Write the features of several stores to one store, in the order of ``paths``.

    The stores must have equal dimensions and no common id. The new store has float32 if one of the
    stores has float32. If ``out`` is a finished store with the same content, it is not written
    again.

    Args:
        paths: Paths of the stores.
        out: Path of the new store.
        ignore_missing_parts: Merge shards that ``extract --shard`` made, although some of the
            shards are missing.
        overwrite: Replace a store at ``out``.
        progress: Function that wraps the iteration over the ids, such as ``tqdm``.

    Returns:
        The number of images or videos.
    """
    stores = [_open(path) for path in paths]
    if not ignore_missing_parts:
        _check_all_parts(stores)
    _check_same_extractor(stores)
    source = FeatureStores(stores)
    if os.path.exists(out) and not overwrite and _is_merged(source, FeatureStore(out), progress):
        remove_leftover(out)
        return len(source.ids)
    return _copy(source, out, overwrite=overwrite, progress=progress)


def convert_store(
    path: str,
    out: Union[str, os.PathLike],
    *,
    dtype: Optional[str] = None,
    overwrite: bool = False,
    progress: Progress = iter,
) -> int:
    """Write features of a store to another store.

    Args:
        path: Path of the store.
        out: Path of the new store.
        dtype: ``float16`` or ``float32``; None for the dtype of the store.
        overwrite: Replace a store at ``out``.
        progress: Function that wraps the iteration over the ids, such as ``tqdm``.

    Returns:
        The number of images or videos in the new store.
    """
    source = FeatureStores([_open(path)])
    return _copy(source, out, dtype=dtype, overwrite=overwrite, progress=progress)


def _open(path: Union[str, os.PathLike]) -> FeatureStore:
    path = os.fspath(path)
    # damaged metadata can crash libhdf5 or keep it busy for ever: try in a process that may die
    if os.path.isfile(path) and not check_metadata(path):
        in_separate_process(path, lambda: len(FeatureStore(path)))
    return FeatureStore(path)


def _is_merged(source: FeatureStores, store: FeatureStore, progress: Progress) -> bool:
    """Return True if ``store`` already has the content that merging ``source`` would write.

    ``progress`` wraps the iteration over the ids.
    """
    # these differ from run to run, or are dropped by merging
    run_attributes = ("created", "package_version", *SHARD_ATTRIBUTES)
    return (
        store.ids == source.ids
        and (store.dim, store.dtype) == (source.dim, source.dtype)
        and all(
            store.attributes.get(name) == source.attributes.get(name)
            for name in {*store.attributes, *source.attributes}.difference(run_attributes)
        )
        and all(
            np.array_equal(store.read(key), source.read(key), equal_nan=True)
            for key in progress(store.ids)
        )
    )


def _check_all_parts(stores: Sequence[FeatureStore]) -> None:
    """Raise UserError if ``stores`` has some, but not all shards of ``extract --shard``."""
    parts: dict[tuple[object, int], dict[int, FeatureStore]] = {}
    for store in stores:
        # earlier versions wrote the number of the part only into the file name
        named = re.fullmatch(r"(.*)\.(\d{1,9})of(\d{1,9})(\.\w+)?", store.path)
        recorded = re.fullmatch(r"(\d{1,9})/(\d{1,9})", str(store.attributes.get("shard")))
        if recorded:
            key = (store.attributes.get("shard_of"), int(recorded[2]))
            parts.setdefault(key, {})[int(recorded[1])] = store
        elif named:
            parts.setdefault((named[1], int(named[3])), {})[int(named[2])] = store
    for (_, count), stores_by_number in parts.items():
        missing = [str(i) for i in range(1, count + 1) if i not in stores_by_number]
        if missing:
            number, store = next(iter(stores_by_number.items()))
            listed = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
            raise UserError(
                f"{store.path}: is part {number} of {count} of a list, but other parts of this "
                f"list are not given: {listed}. --incomplete merges some parts."
            )


def _check_same_extractor(stores: Sequence[FeatureStore]) -> None:
    # FeatureStores accepts a store that names no extractor, but a merged store would hide it
    for store in stores[1:]:
        for name in EXTRACTOR_ATTRIBUTES:
            values = [other.attributes.get(name, "nothing") for other in (stores[0], store)]
            # earlier versions recorded another digest of the weights, or none
            forms = {str(value).rpartition(":")[0] for value in values}
            is_older = name == "weights_digest" and ("nothing" in values or len(forms) > 1)
            if values[0] != values[1] and not is_older:
                raise UserError(
                    f"{store.path}: made with {name} = {values[1]!r}, but {stores[0].path} with "
                    f"{name} = {values[0]!r}."
                )


def _copy(
    source: FeatureStores,
    out: Union[str, os.PathLike],
    *,
    dtype: Optional[str] = None,
    overwrite: bool,
    progress: Progress,
) -> int:
    for store in source.stores:
        if os.path.exists(out) and os.path.samefile(store.path, out):
            raise UserError(f"{os.fspath(out)}: is an input, and must be another file.")
    # the writer records the time of its own start
    attributes = {k: v for k, v in source.attributes.items() if k != "created"}
    # a union is no longer the part that these attributes name
    if len(source.stores) > 1:
        attributes = {k: v for k, v in attributes.items() if k not in SHARD_ATTRIBUTES}
    with FeatureStoreWriter(
        out, dim=source.dim, dtype=dtype or source.dtype, attributes=attributes, overwrite=overwrite
    ) as writer:
        writer.refuse_others_than(source.ids)
        for key in progress(source.ids):
            rows = source.read(key)
            if key in writer.done:
                # the partial store may be of another version of the input
                writer.check_same(key, rows)
            else:
                writer.append(key, rows, source.get_source(key))
        writer.finish()
    return len(source.ids)
