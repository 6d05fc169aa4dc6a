"""Finds the checkpoint files for the paths that a user gives."""

# neither torch nor fairseq: their import takes seconds, and a missing checkpoint is reported before
import os
from collections.abc import Sequence
from typing import Union

from fairseq_mm.errors import UserError

Path = Union[str, os.PathLike]
Paths = Union[Path, Sequence[Path]]

CHECKPOINT_NAMES = ("checkpoint_best.pt", "checkpoint_last.pt")


def checkpoint_file(path: str) -> str:
    """Return the path of a checkpoint file.

    If ``path`` is a file, it is returned. If it is a folder, the result is its
    ``checkpoint_best.pt``, or else its ``checkpoint_last.pt``.

    Raises:
        UserError: if the file or the folder does not exist, or the folder has no checkpoint.
    """
    if not os.path.isdir(path):
        if not os.path.isfile(path):
            raise UserError(f"{path}: no such checkpoint or folder.")
        return path
    for name in CHECKPOINT_NAMES:
        file = os.path.join(path, name)
        if os.path.isfile(file):
            return file
    raise UserError(f"{path}: has neither {' nor '.join(CHECKPOINT_NAMES)}; name the file itself.")


def checkpoint_files(path: Paths) -> list[str]:
    """Return the paths of the files of one checkpoint, or of several that make an ensemble.

    Args:
        path: Checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``.
            Several paths are a list, or a string joined by ``os.pathsep``.

    Raises:
        UserError: if ``path`` is empty, or a checkpoint does not exist.
    """
    names = os.fspath(path).split(os.pathsep) if isinstance(path, (str, os.PathLike)) else path
    files = [checkpoint_file(os.fspath(name)) for name in names]
    if not files:
        raise UserError("`path` must name at least one checkpoint, but is empty.")
    return files
