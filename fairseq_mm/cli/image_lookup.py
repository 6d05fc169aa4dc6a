"""Which images of a data set can be had, from folders of images or from feature stores."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import PurePosixPath
from typing import Any, Optional

from tqdm import tqdm

from fairseq_mm.errors import UserError

# below it, starting processes costs more than it saves
_IMAGES_ALONE = 64


def missing_in_folders(
    names: Iterable[str], folders: Sequence[str], *, verify: bool = False
) -> dict[str, str]:
    """Return the images that are missing or cannot be read, with the reason.

    Args:
        names: Names of images, without suffix.
        folders: Folders to search with their subfolders, or ``.tar`` archives.
        verify: True to decode each image as ``fairseq-mm extract`` does.

    Raises:
        UserError: if a folder does not exist or has no image.
    """
    from fairseq_mm.extract.media_list import list_images

    images: dict[str, Any] = {}
    for folder in folders:
        for image in list_images([folder], ids="path"):
            images.setdefault(PurePosixPath(image.key).stem, image)
    missing = {}
    found = {}
    for name in names:
        if name in images:
            found[name] = images[name]
        else:
            missing[name] = "no such file"
    if verify:
        reasons = _reasons(list(found.values()))
        missing.update((name, reason) for name, reason in zip(found, reasons) if reason)
    return missing


def _reasons(images: list[Any]) -> list[Optional[str]]:
    def bar(reasons: Iterable[Optional[str]]) -> list[Optional[str]]:
        total = len(images)
        return list(tqdm(reasons, desc="verify", total=total, unit=" images", disable=None))

    if len(images) < _IMAGES_ALONE:
        return bar(map(_reason, images))
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return bar(pool.map(_reason, images, chunksize=16))


def _reason(image: Any) -> Optional[str]:
    """Return the reason why an image cannot be read; None if it can be read."""
    from fairseq_mm.extract.images import read_image

    try:
        read_image(image)
    except UserError as error:
        return str(error).rstrip(".")
    return None


def keys_in_stores(
    names: Iterable[str], paths: Sequence[str], *, by_stem: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Find the keys of images in feature stores.

    Args:
        names: Names of images.
        paths: Paths of the stores.
        by_stem: True if a name also matches a key with this stem: ``12`` for ``a/12.jpg``.

    Returns:
        keys: Name -> key, for images in the stores.
        missing: Name -> reason, for all others.

    Raises:
        UserError: if a store cannot be read, or has several keys with the stem of a name.
    """
    from fairseq_mm.data.feature_store import open_features

    store = open_features(list(paths))
    by_name: dict[str, list[str]] = {}
    if by_stem:
        for key in store.ids:
            by_name.setdefault(PurePosixPath(key).stem, []).append(key)
    keys, missing = {}, {}
    for name in names:
        if name in store:
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
