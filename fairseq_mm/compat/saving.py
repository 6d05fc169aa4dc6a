"""Repairs of how fairseq writes checkpoints, and what to say of one that was cut."""

import contextlib
import functools
import glob
import os
import re
import shutil
import zipfile
from typing import Any, Optional

from fairseq_mm.compat.scope import uses_ours
from fairseq_mm.errors import UserError

# appended to a checkpoint's name while it is written, as fairseq does
_TEMPORARY = ".tmp"


def copies_in_place() -> bool:
    from fairseq.file_io import PathManager

    return "copyfile" in PathManager.copy.__code__.co_names


def repair_writing_of_checkpoints() -> None:
    """A kill leaves ``checkpoint_last.pt`` or ``checkpoint_best.pt`` cut.

    fairseq writes the first checkpoint of a save under a temporary name and copies it over the
    others in place. Here the copy has a temporary name too, whatever is renamed is on the disk
    before, and temporary files that a killed process left are removed by the next save. One more
    checkpoint must fit on the disk. ``--write-checkpoints-asynchronously`` copies nothing and stays
    as it is, and so do paths of other file systems than the local one. Goes when fairseq copies
    under a temporary name.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    copy_in_place, save = PathManager.copy, checkpoint_utils.save_checkpoint

    @functools.wraps(copy_in_place)
    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not overwrite or any(
            PathManager.path_requires_pathmanager(path) for path in (src_path, dst_path)
        ):
            return copy_in_place(src_path, dst_path, overwrite=overwrite)
        temporary = dst_path + _TEMPORARY
        try:
            shutil.copyfile(src_path, temporary)
            _rename(temporary, dst_path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise
        return True

    @functools.wraps(save)
    def save_checkpoint(cfg: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        is_writing = trainer.should_save_checkpoint_on_current_rank and not cfg.no_save
        if is_writing and uses_ours(trainer):
            _remove_temporary_files(cfg.save_dir, trainer.checkpoint_suffix)
        return save(cfg, trainer, *args, **kwargs)

    PathManager.copy = staticmethod(copy)
    PathManager.rename = staticmethod(_rename)
    checkpoint_utils.save_checkpoint = save_checkpoint


def _rename(source: str, destination: str) -> None:
    """Moves a file into place when all of it is on the disk."""
    _sync(source)
    os.replace(source, destination)
    _sync(os.path.dirname(os.path.abspath(destination)))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(handle)
    finally:
        os.close(handle)


def _remove_temporary_files(folder: str, suffix: str) -> None:
    pattern = os.path.join(glob.escape(folder), f"checkpoint*{glob.escape(suffix)}.pt{_TEMPORARY}")
    for path in glob.glob(pattern):
        with contextlib.suppress(OSError):
            os.remove(path)


def name_cut_checkpoints() -> None:
    """A checkpoint that a killed process has cut is answered with the intact one beside it.

    PyTorch says "failed finding central directory". Goes with: nothing.
    """
    from fairseq import checkpoint_utils

    original = checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(original)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        check_is_whole(path)
        return original(path, *args, **kwargs)

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


def check_is_whole(path: str) -> None:
    """
    Args:
        path: of a checkpoint; one that does not exist is passed over.

    Raises:
        UserError: naming the newest intact checkpoint in the folder, if the file ends before its
            end.
    """
    if not os.path.isfile(path) or not _is_cut(path):
        return
    intact = _newest_intact_beside(path)
    remedy = "there is no intact checkpoint beside it."
    if intact is not None:
        remedy = (
            f"the newest intact checkpoint beside it is {intact}: give that one, or copy it over "
            f"{os.path.basename(path)}."
        )
    raise UserError(
        f"{path}: is cut off after {os.path.getsize(path):,} bytes, as by a kill of the process "
        f"that wrote it; {remedy}"
    )


def _is_cut(path: str) -> bool:
    """Whether a file is empty, or a zip archive, as PyTorch writes since 1.6, without its end."""
    with open(path, "rb") as file:
        head = file.read(4)
    # zeros: room that was made for a file before a power failure
    return head in (b"", b"\0\0\0\0") or (head[:2] == b"PK" and not zipfile.is_zipfile(path))


def _newest_intact_beside(path: str) -> Optional[str]:
    path = os.fspath(path)
    folder = os.path.dirname(path)
    shard = _shard_of(path)
    found = [
        name
        for name in glob.glob(os.path.join(glob.escape(folder), "checkpoint*.pt"))
        if name != path and _shard_of(name) == shard and os.path.isfile(name)
    ]
    found.sort(key=os.path.getmtime, reverse=True)
    return next((name for name in found if not _is_cut(name)), None)


def _shard_of(path: str) -> Optional[str]:
    """``-shard3`` of one of several files that are a checkpoint together, else None."""
    match = re.search(r"-shard\d+(?=\.pt$)", path)
    return match and match.group()
