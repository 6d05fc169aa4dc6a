"""Writes output folders that appear only when all of their files are complete."""

import contextlib
import os
from collections.abc import Iterator

from fairseq_mm.data.output_file import partial_path
from fairseq_mm.errors import UserError


def check_output(path: str, *, overwrite: bool, reads: str, is_file: bool = False) -> None:
    """Check that an output may be written, before a conversion that takes minutes.

    Args:
        overwrite: True if an existing file, or files in an existing folder, may be replaced.
        reads: Folder or file that the conversion reads: its folder must not be the output.
        is_file: True if the output is a file; otherwise it is a folder.
    """
    parent = os.path.dirname(os.path.abspath(path))
    folder = reads if os.path.isdir(reads) else os.path.dirname(os.path.abspath(reads))
    kind, has_kind = ("file", os.path.isfile) if is_file else ("folder", os.path.isdir)
    is_empty = os.path.isdir(path) and not os.listdir(path)
    for is_wrong, message in (
        (not os.path.isdir(parent), f"there is no folder {parent}."),
        (os.path.exists(path) and not has_kind(path), f"is no {kind}; name a {kind}."),
        # which has files of the same names: with --overwrite the source would be lost
        (
            os.path.realpath(path) == os.path.realpath(folder),
            "is the folder that is read; name another.",
        ),
        (os.path.exists(path) and not is_empty and not overwrite, "exists; --overwrite replaces."),
    ):
        if is_wrong:
            raise UserError(f"{path}: {message}")


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
