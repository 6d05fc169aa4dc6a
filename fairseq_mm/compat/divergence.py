"""Repairs fairseq's error for trainings that diverge: it names the last usable checkpoint."""

import glob
import os
from typing import Any, Optional

from fairseq_mm.compat.scope import in_our_trainers
from fairseq_mm.errors import UserError


def name_diverged_trainings() -> None:
    """Make a training whose gradients are not finite end with an error of one line.

    The error names the newest checkpoint with finite weights. fairseq still writes ``crash.pt``.
    """
    from fairseq.trainer import Trainer

    original = Trainer.train_step

    @in_our_trainers(original)
    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            # fairseq repeats the update with hooks that log the module of the first NaN; they fail
            # on modules that return a dictionary, so the first error is deeper in the chain
            cause: Optional[BaseException] = error
            while cause is not None and not isinstance(cause, FloatingPointError):
                cause = cause.__context__
            if cause is None:
                raise
            raise UserError(_describe(self, str(cause))) from cause

    Trainer.train_step = train_step


def _describe(trainer: Any, reason: str) -> str:
    update = trainer.get_num_updates() + 1
    norms: Any = getattr(trainer, "_grad_norm_buf", None)
    if "inconsistent between workers" in reason and bool(norms.isfinite().all()):
        return (
            f"update {update}: the norms of the processes' gradients must agree, but are "
            f"{', '.join(f'{norm:g}' for norm in norms.tolist())}: give --ddp-backend legacy_ddp."
        )
    not_finite = [
        name for name, x in trainer.get_model().named_parameters() if not bool(x.isfinite().all())
    ]
    if not_finite:
        reason = f"{len(not_finite)} of the model's weights are not finite, first {not_finite[0]}"
    elif "loss scale" in reason:
        reason = "gradients overflow float16 at the smallest loss scale (--min-loss-scale)"
    else:
        reason = "the gradients are not finite"
    folder = trainer.cfg.checkpoint.save_dir
    checkpoint = _newest_finite_checkpoint(folder, trainer.checkpoint_suffix)
    if checkpoint is None:
        remedy = f"no checkpoint in {folder} has finite weights: start anew"
    else:
        path, updates = checkpoint
        remedy = (
            f"the newest checkpoint with finite weights is {path} ({updates} updates): continue "
            "from it (--restore-file), or from an earlier one,"
        )
    return (
        f"the training has diverged at update {update}: {reason}; {remedy} with a smaller --lr, "
        "more --warmup-updates or a smaller --clip-norm above 0."
    )


def _newest_finite_checkpoint(folder: str, suffix: str) -> Optional[tuple[str, int]]:
    """Return path and number of updates of the newest checkpoint in a folder with finite weights.

    ``suffix`` is the end of the checkpoints' names before ``.pt``, such as ``-shard0``. The result
    is None if there is no such checkpoint.
    """
    from fairseq import checkpoint_utils

    pattern = os.path.join(glob.escape(folder), f"checkpoint*{glob.escape(suffix)}.pt")
    for path in sorted(glob.glob(pattern), key=os.path.getmtime, reverse=True):
        try:
            state = checkpoint_utils.load_checkpoint_to_cpu(path)
            tensors = [x for x in state["model"].values() if x.is_floating_point()]
            if all(bool(x.isfinite().all()) for x in tensors):
                return path, state["optimizer_history"][-1]["num_updates"]
        except Exception:
            # a damaged file is not a checkpoint to continue from; an older one may be intact
            continue
    return None
