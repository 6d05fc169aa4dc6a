"""Imports features from numpy files into a feature store, and merges feature stores.

``open_source`` recognises these sources by name and content:

- a folder with one ``.npy`` or ``.npz`` file per item (image or video). The id of an item is the
  file name without its suffix;
- one ``.npz`` file with one array per item under the item's id, or with the arrays ``features`` and
  ``ids``;
- one ``.npy`` array ``[items, D]`` or ``[items, R, D]`` and a list of ids, one per line;
- VSE++'s ``<split>_ims.npy`` next to ``<split>_caps.txt``. An image has five captions in the text
  file, and one row or five equal rows in the array; the number of rows follows from the sizes of
  the two files. The import is refused if the rows of an image differ.

The features of an item are one vector ``[D]``, R vectors ``[R, D]``, or a grid of vectors
``[height, width, D]``, which is read row by row (channels last). ``.npy`` arrays are mapped to
save memory; nothing is ever unpickled.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional, Union

import numpy as np

from fairseq_mm.data.feature_store import (
    SHARD_ATTRIBUTES,
    Progress,
    open_features,
)
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.data.input_files import compute_sha256, read_lines
from fairseq_mm.data.numpy_files import load_numpy, read_member
from fairseq_mm.errors import UserError, file_errors

logger = logging.getLogger(__name__)

# VSE++ published features of Flickr8k, Flickr30k and COCO, which have five captions an image
CAPTIONS_PER_IMAGE = 5


@dataclasses.dataclass
class FeatureSource:
    """Source of the features of images or videos, which are read one after the other.

    Args:
        name: File or folder name, saved in the store as ``imported_from``.
        keys: Ids of the images or videos, in order.
        read: Function that maps a position in ``keys`` to the R feature vectors ``[R, D]`` of the
            image or video.
    """

    name: str
    keys: Sequence[str]
    read: Callable[[int], np.ndarray]


def open_source(
    path: Union[str, os.PathLike],
    *,
    ids_path: Optional[str] = None,
    array: Optional[str] = None,
) -> FeatureSource:
    """Open a folder, an ``.npz`` or an ``.npy`` file, as the docstring of the module describes.

    ``ids_path`` is a text file with one id per line, for an ``.npy`` file; ``array`` is the name of
    the array to read, if the ``.npz`` files of a folder have several.
    """
    path = Path(path)
    with file_errors(path, "cannot be imported"):
        if path.is_dir() and not ids_path:
            # sorted, since the order of a folder depends on the file system
            paths = sorted(path.glob("*.npy")) or sorted(path.glob("*.npz"))
            keys = [file.stem for file in paths]
            source = FeatureSource(path.name, keys, lambda i: read_file(paths[i], array))
        elif path.suffix == ".npz" and not ids_path and not array:
            source = _open_npz(path)
        elif path.suffix == ".npy" and not array:
            source = _open_array(path, ids_path)
        else:
            raise ValueError(
                "must be a folder of .npy or .npz files (the latter with --array if they have "
                "several), an .npz file, or an .npy file with --ids"
            )
        if not source.keys:
            raise ValueError("it has no items")
    return source


def import_features(
    source: FeatureSource,
    out: Union[str, os.PathLike],
    *,
    attributes: Mapping[str, object],
    dtype: Optional[str] = None,
    overwrite: bool = False,
    progress: Progress = iter,
) -> None:
    """Write the features of a source to a feature store.

    Args:
        source: Source of the features.
        out: Path of the feature store.
        attributes: Attributes to save in the store, see :func:`extractor_attributes`.
        dtype: ``float16`` or ``float32``; None for float16 if the source has float16, else float32.
        overwrite: Replace a finished store at ``out``.
        progress: Function that wraps the iteration over the ids, such as ``tqdm``.
    """
    first = source.read(0)
    if dtype is None:
        dtype = "float16" if first.dtype == np.float16 else "float32"
    with FeatureStoreWriter(
        out,
        dim=first.shape[1],
        dtype=dtype,
        attributes={"imported_from": source.name, **attributes},
        overwrite=overwrite,
        # to continue, the whole source would be read again and compared with the store
        resume=False,
    ) as writer:
        try:
            for i, key in enumerate(progress(source.keys)):
                writer.append(key, source.read(i))
        except UserError:
            writer.clear()
            raise
        writer.finish()


def merge_stores(
    paths: Sequence[str],
    out: Union[str, os.PathLike],
    *,
    dtype: Optional[str] = None,
    ignore_missing_parts: bool = False,
    overwrite: bool = False,
    progress: Progress = iter,
) -> None:
    """Write the features of several stores, in the order of ``paths``, or of one, to a new store.

    Args:
        paths: Paths of the stores, which have equal dimensions and no common id.
        out: Path of the new store.
        dtype: ``float16`` or ``float32``; None for float32 if one of the stores has float32.
        ignore_missing_parts: Merge shards that ``extract --shard`` made, although some of the
            shards are missing.
        overwrite: Replace a store at ``out``.
        progress: Function that wraps the iteration over the ids, such as ``tqdm``.
    """
    source = open_features(paths)
    # the writer records the time of its own start, and a union is no part of a list any more
    dropped = ("created", "package_version", *(SHARD_ATTRIBUTES if len(paths) > 1 else ()))
    attributes = {k: v for k, v in source.attributes.items() if k not in dropped}
    parts: dict[tuple[object, int], set[int]] = {}
    for store in source.stores if len(paths) > 1 and not ignore_missing_parts else ():
        if "shard" in store.attributes:
            number, count = map(int, str(store.attributes["shard"]).split("/"))
            parts.setdefault((store.attributes.get("shard_of"), count), set()).add(number)
    for (_, count), numbers in parts.items():
        if len(numbers) < count:
            missing = sorted({*range(1, count + 1)} - numbers)
            raise UserError(
                f"{paths[0]}: of {count} parts of a list, {len(missing)} are not given, such "
                f"as {missing[0]}. --incomplete merges some parts."
            )
    with FeatureStoreWriter(
        out,
        dim=source.dim,
        dtype=dtype or source.dtype,
        attributes=attributes,
        overwrite=overwrite,
        resume=False,
    ) as writer:
        for key in progress(source.ids):
            writer.append(key, source.read(key), source.get_source(key))
        writer.finish()


def extractor_attributes(
    *,
    extractor: Optional[str] = None,
    weights: Optional[str] = None,
    layer: Optional[str] = None,
    grid: bool = False,
    preprocessing: Optional[str] = None,
) -> dict[str, object]:
    """Return attributes of a store that describe an extractor, with the names that ``fairseq-mm
    extract`` uses. ``weights`` is a state dict file, whose SHA-256 is saved, or ``ORIGIN:NAME``."""
    # a colon marks the name of published weights
    if weights is not None and (os.path.exists(weights) or ":" not in weights):
        weights = compute_sha256(weights)
    attributes: dict[str, object] = {"extractor": extractor, "layer": layer, "weights": weights}
    attributes["preprocessing"] = preprocessing
    if extractor is not None:
        attributes["grid"] = int(grid)
    return {name: value for name, value in attributes.items() if value is not None}


def read_file(path: Path, array: Optional[str] = None) -> np.ndarray:
    """Read the feature vectors ``[R, D]`` in a file of one image or video."""
    content = load_numpy(path)
    if path.suffix == ".npy":
        return _to_rows(content, path)
    with content:
        return _to_rows(read_member(content, path, array), path)


def _open_npz(path: Path) -> FeatureSource:
    archive = load_numpy(path)
    names = list(archive.files)
    if set(names) != {"features", "ids"}:
        return FeatureSource(
            path.name,
            names,
            lambda i: _to_rows(read_member(archive, path, names[i]), f"{path}: {names[i]}"),
        )
    ids, rows = (read_member(archive, path, name) for name in ("ids", "features"))
    if len(ids) != len(rows):
        raise ValueError(f"it has {len(ids)} `ids`, but {len(rows)} items of `features`")
    return FeatureSource(path.name, ids.astype(str).tolist(), lambda i: _to_rows(rows[i], path))


def _open_array(path: Path, ids_path: Optional[str]) -> FeatureSource:
    rows = load_numpy(path)
    captions = path.with_name(path.name.replace("_ims.npy", "_caps.txt"))
    rest = 0
    if ids_path is not None:
        ids = _read_ids(ids_path)
    elif captions != path and captions.exists():
        count, rest = divmod(len(_read_ids(str(captions))), CAPTIONS_PER_IMAGE)
        ids = [str(i) for i in range(count)]
    else:
        raise ValueError("an array needs the ids of its items: --ids FILE with one a line")
    # files of Kiros et al. repeat the row of an image for each caption, others of VSE++ do not
    repeats, more = divmod(len(rows), max(1, len(ids)))
    if rest or more or repeats not in (1, CAPTIONS_PER_IMAGE):
        raise ValueError(
            f"it has {len(rows)} rows: must have one or {CAPTIONS_PER_IMAGE} for each of "
            f"{len(ids)} images"
        )
    firsts = list(range(0, len(rows), repeats))
    if repeats == 1:
        # the list may repeat an id for each caption of an image, as the rows do
        firsts = [i for i, name in enumerate(ids) if not i or ids[i - 1] != name]
        ids = [ids[i] for i in firsts]
    ends = [*firsts[1:], len(rows)]

    def read(i: int) -> np.ndarray:
        first = rows[firsts[i]]
        # five rows an image is a guess: if the rows differ, dropping four of them would lose images
        for j in range(firsts[i] + 1, ends[i]):
            if not np.array_equal(rows[j], first):
                raise UserError(
                    f"{path}: rows {firsts[i]} to {ends[i] - 1} belong to {ids[i]!r} by the "
                    f"counts, but row {j} differs from row {firsts[i]}."
                )
        return _to_rows(np.asarray(first), f"{path}: row {firsts[i]}")

    return FeatureSource(path.name, ids, read)


def _read_ids(path: str) -> list[str]:
    """Read a text file with one id per line; drop empty lines at its end."""
    lines = [line for _, line in read_lines(path)]
    # editors add empty lines at the end
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _to_rows(item: np.ndarray, where: object) -> np.ndarray:
    """Reshape the features of an image or video to ``[R, D]``. ``where`` is for messages."""
    # if the last axis of a grid is not the largest, the channels are probably first, as in PyTorch
    has_channels_first = item.ndim == 3 and item.shape[2] < max(item.shape)
    if item.dtype.kind != "f" or item.ndim not in (1, 2, 3) or has_channels_first or not item.size:
        raise UserError(
            f"{where}: features must be floats [D], [R, D] or [H, W, D] (a grid with the channels "
            f"last), but are {list(item.shape)} of {item.dtype}."
        )
    return item.reshape(-1, item.shape[-1])
