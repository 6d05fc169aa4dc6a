"""Writes output folders that appear only when all of their files are complete."""

import contextlib
import os
from collections.abc import Iterator

from fairseq_mm.data.output_file import partial_path
from fairseq_mm.errors import UserError


def check_output_folder(path: str, *, overwrite: bool, reads: str) -> None:
    """Check that an output folder may be written, before a conversion that takes minutes.

    Args:
        overwrite: True if files in an existing output folder may be replaced.
        reads: Folder or file that the conversion reads, and must therefore not overwrite.
    """
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise UserError(f"{path}: there is no folder {parent}.")
    if os.path.exists(path) and not os.path.isdir(path):
        raise UserError(f"{path}: is a file; name a folder.")
    folder = reads if os.path.isdir(reads) else os.path.dirname(os.path.abspath(reads))
    # source and output have files of the same names: with --overwrite the source would be lost
    if os.path.realpath(path) == os.path.realpath(folder):
        raise UserError(f"{path}: is the folder that is read; name another.")
    if os.path.isdir(path) and os.listdir(path) and not overwrite:
        raise UserError(f"{path}: exists already; --overwrite replaces its files.")


@contextlib.contextmanager
def output_folder(path: str) -> Iterator[str]:
    """Yield a temporary folder, whose files are moved to the folder ``path`` at the end.

    After an error, the temporary folder is removed. If the folder ``path`` exists, files of the
    same name are replaced and other files are kept.
    """
    target = os.path.realpath(path)  # a link to a folder stays a link
    try:
        with partial_path(target) as partial:
            os.mkdir(partial)
            yield partial
            # a folder cannot be renamed onto one with files, so an existing one is filled file by
            # file
            if os.path.isdir(target):
                for name in sorted(os.listdir(partial)):
                    os.replace(os.path.join(partial, name), os.path.join(target, name))
            else:
                os.rename(partial, target)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}).") from None
