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
    """Images that are not there, or cannot be read, and why.

    Args:
        names: of images, without suffix.
        folders: searched with all their subfolders, once; ``.tar`` archives too.
        verify: decode each image as ``fairseq-mm extract`` would.

    Raises:
        UserError: if a folder is not there or has no image.
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
    """Why an image cannot be read, None if it can."""
    from fairseq_mm.extract.images import read_image

    try:
        read_image(image)
    except UserError as error:
        return str(error).rstrip(".")
    return None


def keys_in_stores(
    names: Iterable[str], paths: Sequence[str], *, by_stem: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """How feature stores call images.

    Args:
        names: of images.
        paths: of stores.
        by_stem: a name stands for any key of this stem too: ``12`` for ``a/12.jpg``.

    Returns:
        keys: name -> key, of the images that the stores have.
        missing: of all others, name -> why they cannot be used.

    Raises:
        UserError: if a store cannot be read, or has several keys of one stem that is asked for.
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
