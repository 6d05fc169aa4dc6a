"""Repairs the functions with which fairseq writes checkpoints."""

import contextlib
import errno
import functools
import glob
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any, Optional

from fairseq_mm.compat.scope import uses_ours
from fairseq_mm.errors import UserError

# suffix of a checkpoint while it is written, as in fairseq
_TEMPORARY = ".tmp"
# number of attempts to write a checkpoint, and seconds between them, as in fairseq
_ATTEMPTS, _SECONDS_BETWEEN = 3, 2.5
# errors of a disk that stays full: the disk's size, a quota and a limit of the process
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def copies_in_place() -> bool:
    from fairseq.file_io import PathManager

    return "copyfile" in PathManager.copy.__code__.co_names


def repair_writing_of_checkpoints() -> None:
    """Make fairseq copy a checkpoint to a temporary name first, and then rename the copy.

    If the process is killed, no checkpoint is then left incomplete. The disk needs room for one
    more checkpoint. Nothing changes for paths outside of the local file system, and for
    ``--write-checkpoints-asynchronously``.
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
        # fairseq overwrites checkpoint_last.pt and checkpoint_best.pt in place
        with _written(dst_path) as temporary:
            shutil.copyfile(src_path, temporary)
            _rename(temporary, dst_path)
        return True

    @functools.wraps(save)
    def save_checkpoint(cfg: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        is_writing = trainer.should_save_checkpoint_on_current_rank and not cfg.no_save
        # a killed process cannot remove its own file
        if is_writing and uses_ours(trainer):
            _remove_temporary_files(cfg.save_dir, trainer.checkpoint_suffix)
        return save(cfg, trainer, *args, **kwargs)

    PathManager.copy = staticmethod(copy)
    PathManager.rename = staticmethod(_rename)
    checkpoint_utils.save_checkpoint = save_checkpoint


def name_full_disks() -> None:
    """Make fairseq report in one line that a checkpoint or its folder cannot be written."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    save, verify = (
        checkpoint_utils.torch_persistent_save,
        checkpoint_utils.verify_checkpoint_directory,
    )

    @functools.wraps(save)
    def torch_persistent_save(obj: Any, filename: str, async_write: bool = False) -> Any:
        if async_write or not PathManager.supports_rename(filename):
            return save(obj, filename, async_write)
        # fairseq's attempts write into one file, which remains when the last one fails
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _save(obj, filename)
                break
            except UserError as error:
                is_full = getattr(error.__cause__, "errno", None) in _FULL
                if is_full or attempt == _ATTEMPTS:
                    raise
            time.sleep(_SECONDS_BETWEEN)
        return None

    @functools.wraps(verify)
    def verify_checkpoint_directory(save_dir: str) -> None:
        try:
            verify(save_dir)
        except OSError as error:
            raise UserError(
                f"--save-dir {save_dir}: cannot be written: {error.strerror}."
            ) from error

    checkpoint_utils.torch_persistent_save = torch_persistent_save
    checkpoint_utils.verify_checkpoint_directory = verify_checkpoint_directory


def _save(obj: Any, path: str) -> None:
    import torch
    from fairseq.file_io import PathManager

    with _written(path) as temporary:
        with PathManager.open(temporary, "wb") as file:
            torch.save(obj, file)
        PathManager.rename(temporary, path)


@contextlib.contextmanager
def _written(path: str) -> Iterator[str]:
    """Yield a temporary name for writing a checkpoint; after an error, remove the file."""
    temporary = path + _TEMPORARY
    try:
        yield temporary
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        # PyTorch raises an error of its own instead of the system's, without the reason
        cause: Optional[BaseException] = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        if cause is None or not isinstance(error, Exception):
            raise
        raise UserError(
            f"{path}: cannot be written: {cause.strerror}. Checkpoints that were written before "
            "are whole; when there is room, the same command continues from the last one."
        ) from cause


def _rename(source: str, destination: str) -> None:
    """Rename a file after all of its bytes have reached the disk."""
    # otherwise a power failure can leave an empty file under the new name
    _sync(source)
    os.replace(source, destination)
    # the new name is an entry of the folder, which has its own buffers
    _sync(os.path.dirname(os.path.abspath(destination)))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        # some file systems do not support it
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _remove_temporary_files(folder: str, suffix: str) -> None:
    pattern = os.path.join(glob.escape(folder), f"checkpoint*{glob.escape(suffix)}.pt{_TEMPORARY}")
    for path in glob.glob(pattern):
        with contextlib.suppress(OSError):
            os.remove(path)
