"""Searches for images of a data set in folders or feature stores, for ``fairseq-mm prepare``."""

import functools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import PurePosixPath
from typing import Any, Optional

from tqdm.auto import tqdm

from fairseq_mm.errors import UserError

# With fewer images, starting processes takes longer than decoding in one process.
_MIN_IMAGES_FOR_PROCESSES = 64


def missing_in_folders(
    names: Iterable[str], folders: Sequence[str], *, verify: bool = False
) -> dict[str, str]:
    """Find the images that folders lack, or that cannot be read.

    Args:
        names: Names of images, without suffix.
        folders: Folders, which are searched with their subfolders, and ``.tar`` archives.
        verify: True to decode each image as ``fairseq-mm extract`` does.

    Returns:
        Dict from the name of each such image to a text with the reason, for messages.
    """
    from fairseq_mm.extract.media_list import list_images

    # Releases name images without suffix, so the stem of a file is its name. If two folders have an
    # image, the first folder's is used.
    images: dict[str, Any] = {}
    for folder in folders:
        for image in list_images([folder], ids="path"):
            images.setdefault(PurePosixPath(image.key).stem, image)
    names = list(names)
    missing = {name: "no such file" for name in names if name not in images}
    if verify:
        present = {name: images[name] for name in names if name in images}
        reasons = _try_to_read(list(present.values()))
        missing.update((name, reason) for name, reason in zip(present, reasons) if reason)
    return missing


def _try_to_read(images: list[Any]) -> list[Optional[str]]:
    """Return for each image file the reason why it cannot be read; None if it can be."""
    bar = functools.partial(tqdm, desc="verify", total=len(images), unit=" images", disable=None)
    if len(images) < _MIN_IMAGES_FOR_PROCESSES:
        return list(bar(map(_explain_unreadable, images)))
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        # Chunks reduce the messages between processes, which are slow for single images.
        return list(bar(pool.map(_explain_unreadable, images, chunksize=16)))


# This must be a function of the module: other processes import it by its name.
def _explain_unreadable(image: Any) -> Optional[str]:
    from fairseq_mm.extract.images import read_image

    try:
        read_image(image)
    except UserError as error:
        return str(error).rstrip(".")
    return None


def keys_in_stores(
    names: Iterable[str], paths: Sequence[str], *, by_stem: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Find images in feature stores.

    Args:
        names: Names of images.
        paths: Paths of the stores.
        by_stem: True if the name ``12`` also matches a store's id such as ``a/12.jpg``.

    Returns:
        keys: Dict from the name of each image that a store has to its id in the store.
        missing: Dict from the name of each image that no store has to the reason, for messages.
    """
    from fairseq_mm.data.feature_store import open_features

    store = open_features(list(paths))
    by_name: dict[str, list[str]] = {}
    if by_stem:
        for key in store.ids:
            by_name.setdefault(PurePosixPath(key).stem, []).append(key)
    keys, missing = {}, {}
    for name in names:
        if name in store:  # an exact key takes precedence over a stem
            keys[name] = name
        elif len(by_name.get(name, [])) > 1:
            first, second = by_name[name][:2]
            raise UserError(
                f"--features {' '.join(paths)}: {first} and {second} could both be image {name}."
            )
        elif name in by_name:
            keys[name] = by_name[name][0]
        else:
            missing[name] = "not in the feature store"
    store.close()
    return keys, missing
