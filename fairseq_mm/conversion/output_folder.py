"""Writes output folders that appear only when all of their files are complete."""

import contextlib
import os
from collections.abc import Iterator
from typing import Optional

from fairseq_mm.data.output_file import partial_path
from fairseq_mm.errors import UserError, file_errors


def check_output(
    path: str, *, overwrite: Optional[bool] = None, reads: str = "", is_file: bool = False
) -> None:
    """Check that an output may be written, before work that takes minutes.

    Args:
        overwrite: True if an existing file, or files in an existing folder, may be replaced; None
            if the command has no option for it.
        reads: Folder or file that is read: its folder must not be the output.
        is_file: True if the output is a file; otherwise it is a folder.
    """
    parent = os.path.dirname(os.path.abspath(path))
    folder = reads if os.path.isdir(reads) else os.path.dirname(os.path.abspath(reads))
    is_right_kind = os.path.isfile(path) if is_file else os.path.isdir(path)
    is_free = not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path))
    # a folder that is read has files of the same names, which --overwrite would replace
    is_read = bool(reads) and os.path.realpath(path) == os.path.realpath(folder)
    is_usable = is_free or (overwrite and is_right_kind)
    if not os.path.isdir(parent) or is_read or not is_usable or (os.path.isdir(path) and is_file):
        remedy = "; --overwrite replaces it" if overwrite is False and is_right_kind else ""
        kind = "file" if is_file else "folder"
        raise UserError(f"{path}: must be a new {kind} in an existing folder{remedy}.")


@contextlib.contextmanager
def output_folder(path: str) -> Iterator[str]:
    """Yield a temporary folder. At the end, move its files to ``path``, where they replace files of
    the same names; after an error, remove it."""
    target = os.path.realpath(path)  # a link to a folder stays a link
    with file_errors(path, "cannot be written", OSError), partial_path(target) as partial:
        os.mkdir(partial)
        yield partial
        # a folder cannot be renamed onto one with files, so an existing one is filled file by file
        if os.path.isdir(target):
            for name in sorted(os.listdir(partial)):
                os.replace(os.path.join(partial, name), os.path.join(target, name))
        else:
            os.rename(partial, target)
