"""Resuming trainings in half precision: a checkpoint keeps the optimizer's float32 weights and the
state of its loss scaler."""

import functools
import logging
from collections.abc import Iterator
from typing import Any

from fairseq_mm.compat.scope import in_our_trainers

logger = logging.getLogger(__name__)

# entry of a checkpoint's optimizer state; fairseq without the plugin ignores it there
_KEY = "fairseq_mm_half_precision"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def save_float32_weights() -> None:
    """Trainings with ``--fp16``, ``--bf16`` or ``--amp`` do not resume bit for bit.

    ``--fp16`` and ``--bf16`` update a float32 copy of the weights. fairseq saves only the weights
    in half precision, and a resumed training makes the copy from these: what rounding took from
    each weight is lost. fairseq saves the loss scale of ``--fp16``, but not since when it holds,
    and it does not save the loss scale of ``--amp``. Here the optimizer's state in a checkpoint has
    the float32 weights and the scaler's state, too. Goes when fairseq saves them.
    """
    from fairseq.optim import AMPOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
    from fairseq.trainer import Trainer

    save, resume = Trainer.state_dict, Trainer.load_checkpoint

    @in_our_trainers(save)
    def state_dict(self: Any) -> dict[str, Any]:
        state = save(self)
        if "last_optimizer_state" in state:
            added = _state_of(self)
            if added:
                optimizer_state = {**state["last_optimizer_state"], _KEY: added}
                state["last_optimizer_state"] = optimizer_state
        return state

    @in_our_trainers(resume)
    def load_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        extra_state = resume(self, *args, **kwargs)
        # the trainer counts how often it repeats a batch, which the optimizer cannot set
        if hasattr(self._optimizer, "saved_amp_retries"):
            self._amp_retries = self._optimizer.saved_amp_retries
        return extra_state

    Trainer.state_dict, Trainer.load_checkpoint = state_dict, load_checkpoint
    for cls in (FP16Optimizer, MemoryEfficientFP16Optimizer, AMPOptimizer):
        cls.load_state_dict = _loading_added_state(cls.load_state_dict)


def _state_of(trainer: Any) -> dict[str, Any]:
    """Return the state that fairseq leaves out of a checkpoint; empty in float32."""
    # --use-bmuf wraps the optimizer once more
    optimizer = getattr(trainer.optimizer, "_optimizer", trainer.optimizer)
    state: dict[str, Any] = {}
    if hasattr(optimizer, "fp32_params"):
        state["weights"] = [weight.detach() for _, weight in _pairs(optimizer)]
    scaler = getattr(optimizer, "scaler", None)
    if hasattr(scaler, "_last_overflow_iter"):
        state["counters"] = {name: getattr(scaler, name) for name in _COUNTERS}
    elif scaler is not None and scaler.is_enabled():
        saved = scaler.state_dict()
        state["amp"] = {name: saved[name] for name in ("scale", "_growth_tracker")}
        state["amp_retries"] = trainer._amp_retries
    return state


def _pairs(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Each parameter in half precision with its float32 copy in the same shape.

    Args:
        optimizer: an ``FP16Optimizer``, which keeps a copy of each parameter, or joins the copies
            of a device to one flat tensor.
    """
    if not optimizer.has_flat_params:
        yield from zip(optimizer.fp16_params, optimizer.fp32_params)
        return
    offsets = dict.fromkeys(optimizer.fp32_params, 0)
    for parameter in optimizer.fp16_params:
        device = parameter.device.index
        flat, start = optimizer.fp32_params[device], offsets[device]
        offsets[device] += parameter.numel()
        yield parameter, flat[start : offsets[device]].view_as(parameter)


def _loading_added_state(original: Any) -> Any:
    @functools.wraps(original)
    def load_state_dict(
        self: Any, state_dict: dict[str, Any], optimizer_overrides: Any = None
    ) -> None:
        added = state_dict.get(_KEY, {})
        known = {name: value for name, value in state_dict.items() if name != _KEY}
        original(self, known, optimizer_overrides)
        if "weights" in added and hasattr(self, "fp32_params"):
            _load_weights(self, added["weights"])
        scaler: Any = getattr(self, "scaler", None)
        if "counters" in added and hasattr(scaler, "_last_overflow_iter"):
            for name in _COUNTERS:
                setattr(scaler, name, int(added["counters"][name]))
        elif "amp" in added and hasattr(scaler, "is_enabled") and scaler.is_enabled():
            # --amp-scale-window and the like are the options of this training
            scaler.load_state_dict({**scaler.state_dict(), **added["amp"]})
            self.saved_amp_retries = int(added["amp_retries"])

    return load_state_dict


def _load_weights(optimizer: Any, saved: list[Any]) -> None:
    """Copies the saved float32 weights where they round to the weights of the model.

    They do not in a checkpoint whose weights were averaged, converted or edited; then the copies
    stay as fairseq has made them from the weights in half precision.
    """
    import torch

    pairs = list(_pairs(optimizer))
    unused = len(pairs)
    if len(saved) == len(pairs):
        for (parameter, copy), weight in zip(pairs, saved):
            if weight.dtype != torch.float32 or weight.shape != parameter.shape:
                continue
            weight = weight.to(parameter.device)
            rounded = weight.to(parameter.dtype)
            if torch.equal(rounded.view(torch.int16), parameter.detach().view(torch.int16)):
                copy.data.copy_(weight)
                unused -= 1
    if unused:
        logger.info(
            f"{unused} of {len(pairs)} float32 weights are made from the checkpoint's weights in "
            "half precision: those in its optimizer state do not round to them, as after an edit "
            "or an average of the weights."
        )
