"""Opens the splits of a data folder.

A split is a file of records, see :mod:`.record_split`. Folders of version 0.2 and of
``fairseq-preprocess`` have no records; :mod:`.import_folder` reads them in the same form.
"""

from pathlib import Path
from typing import Optional

from fairseq_mm.data.import_folder import ImportedSplit, old_split_names
from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.data.record_split import (
    CAPTIONS,
    LANGUAGE_MODELS,
    PROMPTS,
    VIDEOS,
    VISUAL_STORIES,
    Folder,
    Split,
    first_lines,
)
from fairseq_mm.errors import UserError

__all__ = [
    "CAPTIONS",
    "LANGUAGE_MODELS",
    "PROMPTS",
    "VIDEOS",
    "VISUAL_STORIES",
    "Folder",
    "Split",
    "first_lines",
    "open_split",
    "split_names",
]


def split_names(folder: Folder) -> list[str]:
    """Return the names of the splits of a data folder: train, valid, test, then all others."""
    names = set(old_split_names(folder))
    names.update(name for name in SPLITS if (Path(folder) / f"{name}.jsonl").exists())
    return [x for x in SPLITS if x in names] + sorted(names.difference(SPLITS))


def open_split(folder: Folder, name: str, pair: Optional[tuple[str, ...]] = None) -> Split:
    """Open a split of a data folder.

    Args:
        folder: Data folder; also a subfolder with one side of the pairs, for language models.
        name: Name of the split.
        pair: Suffixes of source and target in a folder without records, or () for a single text;
            by default what the folder has.
    """
    root = Path(folder)
    # the folder of a language model has binarised text only; its records are in the folder above
    if root.name in LANGUAGE_MODELS and not (root / f"{name}.jsonl").exists():
        outer = root.parent
        if (outer / f"{name}.jsonl").exists() or (outer / "text").exists():
            root = outer
    if (root / f"{name}.jsonl").exists():
        split = Split(root, name)
        if pair is not None and split.sides != pair:
            raise UserError(f"{split.path}: must not be a split of {split.kind.name} here.")
        return split
    names = split_names(root)
    if name not in names:
        known = f"but {', '.join(names)}" if names else "nor any other"
        raise UserError(f"{root}: has no split {name!r}, {known}.")
    return ImportedSplit(root, name, pair)
