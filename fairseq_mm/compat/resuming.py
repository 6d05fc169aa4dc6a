"""Repairs how fairseq reads checkpoints, resumes trainings from them, and writes them."""

import contextlib
import functools
import os
import shutil
from typing import Any

from fairseq_mm.compat.loading import check_is_whole, use_averaged_weights
from fairseq_mm.compat.model_folders import is_model_folder, load_model_folder
from fairseq_mm.compat.scope import uses_ours
from fairseq_mm.compat.stopping import Restart
from fairseq_mm.compat.training import add_num_shards
from fairseq_mm.errors import UserError, WeightsError

# trainer that resumes now, if one does
_resuming: Any = None


def on_loaded_state(state: dict[str, Any], path: str) -> None:
    """Convert a checkpoint that fairseq has loaded from ``path``; ``state`` is changed in place.

    fairseq then sends the state to the other processes.
    """
    if _resuming is None:
        use_averaged_weights(state, path)
        return
    with contextlib.suppress(KeyError, TypeError):  # fairseq before 0.10 saved no config
        _resuming.restart.arch = state["cfg"]["model"]["_name"]
    add_num_shards(state)


def hook_loaded_states() -> None:
    """Make fairseq call :func:`on_loaded_state`, read model folders, and name cut-off files."""
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    load, resume = checkpoint_utils.load_checkpoint_to_cpu, Trainer.load_checkpoint

    @functools.wraps(load)
    def load_checkpoint_to_cpu(
        path: str, arg_overrides: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if is_model_folder(path):
            return load_model_folder(path, arg_overrides)
        check_is_whole(path)
        state = load(path, arg_overrides, *args, **kwargs)
        on_loaded_state(state, path)
        return state

    @functools.wraps(resume)
    def load_checkpoint(
        self: Any,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        optimizer_overrides: Any = None,
        reset_meters: bool = False,
    ) -> Any:
        global _resuming
        options = (reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters)
        if not uses_ours(self):
            return resume(self, filename, *options)
        self.restart = Restart(filename, reset_optimizer, reset_lr_scheduler, reset_meters)
        _resuming = self
        try:
            extra_state = resume(self, filename, *options)
        except Exception as error:
            # fairseq raises an error of its own for weights that do not fit, without the reason
            arch = self.cfg.model._name
            if self.restart.arch not in (None, arch) and "load model parameters" in str(error):
                raise UserError(
                    f"{filename}: has --arch {self.restart.arch}, but this training has --arch "
                    f"{arch}: give another --save-dir, or another checkpoint."
                ) from error
            if isinstance(error.__context__, WeightsError):
                raise UserError(f"{filename}: {error.__context__}") from None
            raise
        finally:
            _resuming = None
        return extra_state

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    Trainer.load_checkpoint = load_checkpoint


def copies_in_place() -> bool:
    from fairseq.file_io import PathManager

    return "copyfile" in PathManager.copy.__code__.co_names


def repair_writing_of_checkpoints() -> None:
    """Make fairseq copy a checkpoint to a temporary name first, and then rename the copy.

    If the process is killed, no checkpoint is then left incomplete. The disk needs room for one
    more checkpoint. Nothing changes for paths outside of the local file system, and for
    ``--write-checkpoints-asynchronously``.
    """
    from fairseq.file_io import PathManager

    copy_in_place = PathManager.copy

    @functools.wraps(copy_in_place)
    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        is_remote = any(map(PathManager.path_requires_pathmanager, (src_path, dst_path)))
        if not overwrite or is_remote:
            return copy_in_place(src_path, dst_path, overwrite=overwrite)
        # fairseq overwrites checkpoint_last.pt and checkpoint_best.pt in place
        temporary = f"{dst_path}.tmp"
        try:
            shutil.copyfile(src_path, temporary)
            _rename(temporary, dst_path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise
        return True

    PathManager.copy = staticmethod(copy)
    PathManager.rename = staticmethod(_rename)


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
