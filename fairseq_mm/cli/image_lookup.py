"""Searches for images of a data set in folders or feature stores, for ``fairseq-mm prepare``."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from fairseq_mm.errors import UserError


def missing_in_folders(names: Iterable[str], folders: Sequence[str]) -> dict[str, str]:
    """Find the images that folders and ``.tar`` archives lack.

    Return a dict from the name of each such image, without suffix, to the reason, for messages.
    """
    from fairseq_mm.extract.media_list import list_images

    # Releases name images without suffix, so the stem of a file is its name.
    images = (image for folder in folders for image in list_images([folder], ids="path"))
    known = {PurePosixPath(image.key).stem for image in images}
    return {name: "no such file" for name in names if name not in known}


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
