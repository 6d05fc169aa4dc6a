"""What a run of extraction writes beside its feature store, and what a finished run left."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.extract.identity import check_same_extractor
from fairseq_mm.extract.media_list import MediaFile


def unreadable_path(output: str) -> str:
    """Where the unreadable items of a store are listed: name, tab, reason."""
    return output + ".unreadable.tsv"


def write_unreadable(output: str, unreadable: Iterable[tuple[str, str]]) -> None:
    """Lists names and reasons beside the store; where there are none, no file is left."""
    rows = [tuple(" ".join(field.split()) for field in entry) for entry in unreadable]
    if rows:
        write_rows(unreadable_path(output), rows)
        return
    with contextlib.suppress(FileNotFoundError):
        os.remove(unreadable_path(output))


def write_rows(path: str, rows: Iterable[Sequence[str]]) -> None:
    """Writes a table: a line a row, tabs between its fields, which have neither in them."""
    with open(path + ".tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines("\t".join(row) + "\n" for row in rows)
    os.replace(path + ".tmp", path)


def _names_unreadable(path: str) -> set[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return {line.partition("\t")[0] for line in file}
    except FileNotFoundError:
        return set()


def check_finished(
    identity: Mapping[str, object],
    items: Sequence[MediaFile],
    output: str,
    dtype: str,
    *,
    noun: str = "images",
) -> tuple[int, int]:
    """
    Args:
        identity: of the extractor that is asked for.
        items: what the store must have.
        output: a finished store.
        dtype: that is asked for.
        noun: what the items are.

    Returns:
        num_items: in the store.
        num_unreadable: given, and not in the store.

    Raises:
        UserError: if the store is not what the run would write.
    """
    store = FeatureStore(output)
    try:
        check_same_extractor(
            store.attributes, identity, recorded_by=output, given_by="those asked for"
        )
        if store.dtype != np.dtype(dtype):
            raise UserError(f"{output}: is {store.dtype}, but --dtype asks for {dtype}.")
    except UserError as error:
        raise UserError(f"{error} Choose another --output, or --overwrite.") from None
    unreadable = _names_unreadable(unreadable_path(output))
    missing = [item for item in items if item.key not in store]
    new = [item for item in missing if " ".join(item.name.split()) not in unreadable]
    if new:
        raise UserError(
            f"{output}: is finished, but lacks {len(new)} of the {len(items)} {noun}, such as "
            f"{new[0].name}. Extract them into a second store (--except {output} --output "
            f"FILE), or all of them anew (--overwrite)."
        )
    return len(store), len(missing)


def check_same_items(
    done: Iterable[str], items: Sequence[MediaFile], output: str, *, noun: str = "images"
) -> None:
    """
    Raises:
        UserError: if the run that is to be continued was given other items.
    """
    stray = sorted(set(done) - {item.key for item in items})
    if stray:
        raise UserError(
            f"{output}.partial: has {len(stray)} {noun} that are not given now, such as "
            f"{stray[0]!r}. Give the same {noun} to continue, or delete it to begin anew."
        )
