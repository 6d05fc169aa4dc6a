"""Saves the float32 weights and the state of the loss scaler in checkpoints of half precision.

With ``--fp16`` and ``--bf16``, fairseq's optimizer updates a float32 copy of the weights, which
fairseq does not save.
"""

import functools
import logging
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

# entry of a checkpoint's optimizer state; fairseq without the plugin ignores it there
_KEY = "fairseq_mm_half_precision"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def save_float32_weights() -> None:
    """Make trainings in half precision save and load float32 weights and the loss scaler's state.

    Both are parts of the optimizer's state in checkpoints of ``--fp16`` and ``--bf16``. A resumed
    training then gives the same weights, bit for bit, as an uninterrupted training.
    """
    from fairseq.optim import FP16Optimizer
    from fairseq.trainer import Trainer

    save, load = Trainer.state_dict, FP16Optimizer.load_state_dict

    @functools.wraps(save)
    def state_dict(self: Any) -> dict[str, Any]:
        state = save(self)
        added = _read_added_state(self.optimizer)
        if "last_optimizer_state" in state and added:
            state["last_optimizer_state"] = {**state["last_optimizer_state"], _KEY: added}
        return state

    @functools.wraps(load)
    def load_state_dict(
        self: Any, state_dict: dict[str, Any], optimizer_overrides: Any = None
    ) -> None:
        added = state_dict.get(_KEY, {})
        known = {name: value for name, value in state_dict.items() if name != _KEY}
        load(self, known, optimizer_overrides)
        if "weights" in added:
            _load_weights(self, added["weights"])
        if "counters" in added and self.scaler is not None:
            for name in _COUNTERS:
                setattr(self.scaler, name, int(added["counters"][name]))

    Trainer.state_dict = state_dict
    FP16Optimizer.load_state_dict = load_state_dict


def _read_added_state(optimizer: Any) -> dict[str, Any]:
    """Return the float32 weights and the counters of the loss scaler, if there are any."""
    if not hasattr(optimizer, "fp32_params"):
        return {}
    # fairseq saves only the weights in half precision; a resumed training would copy these, with
    # their rounding errors
    state: dict[str, Any] = {"weights": [weight.detach() for _, weight in _pairs(optimizer)]}
    # fairseq saves the loss scale, but not when it last changed
    if optimizer.scaler is not None:
        state["counters"] = {name: getattr(optimizer.scaler, name) for name in _COUNTERS}
    return state


def _pairs(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of a half-precision parameter and its float32 copy, of the same shape."""
    if not optimizer.has_flat_params:
        yield from zip(optimizer.fp16_params, optimizer.fp32_params)
        return
    # the copies of a device's parameters are one flat tensor, without --fp16-no-flatten-grads
    offsets = dict.fromkeys(optimizer.fp32_params, 0)
    for parameter in optimizer.fp16_params:
        device = parameter.device.index
        flat, start = optimizer.fp32_params[device], offsets[device]
        offsets[device] += parameter.numel()
        yield parameter, flat[start : offsets[device]].view_as(parameter)


def _load_weights(optimizer: Any, saved: list[Any]) -> None:
    """Copy the float32 weights of a checkpoint to the optimizer's float32 copies of the weights.

    A tensor that does not round to the model's half-precision weight is ignored.

    Args:
        optimizer: fairseq's optimizer, which wraps the model's half-precision weights.
        saved: Float32 tensors of the checkpoint, in the optimizer's order.
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
            # the two differ if the checkpoint's weights were averaged, converted or edited.
            # Compared as bits, because NaN is not equal to itself
            if torch.equal(rounded.view(torch.int16), parameter.detach().view(torch.int16)):
                copy.data.copy_(weight)
                unused -= 1
    if unused:
        logger.info(
            f"{unused} of {len(pairs)} float32 weights are made from the checkpoint's weights in "
            "half precision: those in its optimizer state do not round to them, as after an edit "
            "or an average of the weights."
        )
