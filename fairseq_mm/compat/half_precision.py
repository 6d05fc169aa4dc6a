"""Saves the float32 weights and the state of the loss scaler in checkpoints of half precision.

In half precision, fairseq's optimizer updates a float32 copy of the weights, which fairseq does not
save. A training can also be resumed with another precision than the checkpoint's, such as float32
after ``--fp16``.
"""

import functools
import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from fairseq_mm.compat.scope import in_our_trainers
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)

# entry of a checkpoint's optimizer state; fairseq without the plugin ignores it there
_KEY = "fairseq_mm_half_precision"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")
# options that choose a precision; fairseq uses the first option that is set
_PRECISIONS = ("memory_efficient_fp16", "memory_efficient_bf16", "fp16", "bf16", "amp")


def save_float32_weights() -> None:
    """Make trainings in half precision save and load float32 weights and the loss scaler's state.

    Checkpoints of ``--fp16``, ``--bf16`` and ``--amp`` then contain the float32 copy of the weights
    and the state of the loss scaler, as parts of the optimizer's state. A resumed training then
    gives the same weights, bit for bit, as an uninterrupted training.
    """
    from fairseq.optim import AMPOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
    from fairseq.trainer import Trainer

    save = Trainer.state_dict

    @in_our_trainers(save)
    def state_dict(self: Any) -> dict[str, Any]:
        state = save(self)
        if "last_optimizer_state" in state:
            added = _read_added_state(self)
            if added:
                optimizer_state = {**state["last_optimizer_state"], _KEY: added}
                state["last_optimizer_state"] = optimizer_state
        return state

    Trainer.state_dict = state_dict
    for cls in (FP16Optimizer, MemoryEfficientFP16Optimizer, AMPOptimizer):
        cls.load_state_dict = _loading_added_state(cls.load_state_dict)


def change_precision(trainer: Any, state: dict[str, Any], path: str) -> None:
    """Convert a checkpoint to the precision of the training that resumes from it.

    If the checkpoint has float32 copies of its weights, these replace the weights. If it has none,
    its weights become the float32 copies that ``--fp16`` and ``--bf16`` need.

    Args:
        trainer: fairseq's trainer of the training that resumes.
        state: Content of the checkpoint, changed in place.
        path: Path of the checkpoint, for messages.
    """
    saved, wanted = _precision(state.get("cfg")), _precision(trainer.cfg)
    names = [
        _optimizer_name(cfg, precision)
        for cfg, precision in ((state.get("cfg"), saved), (trainer.cfg, wanted))
    ]
    history = state["optimizer_history"]
    # fairseq's own check refuses another optimizer, or a wrapper such as --use-bmuf
    if saved == wanted or None in names or history[-1]["optimizer_name"] != names[0]:
        return
    if _base_name(state["cfg"]) != _base_name(trainer.cfg):
        return
    optimizer_state = state["last_optimizer_state"]
    parameters = _trained_parameters(trainer)
    # the optimizer's state is the same in every precision, unless its weights are one flat tensor
    is_flat = wanted == "fp16" and not trainer.cfg.common.fp16_no_flatten_grads
    is_sharded = trainer.is_fsdp or trainer.cfg.distributed_training.zero_sharding == "os"
    count = sum(len(group["params"]) for group in optimizer_state["param_groups"])
    if is_sharded or is_flat or count != len(parameters):
        raise UserError(
            f"{path}: was trained with {_option(saved)}, and its optimizer's state does not fit "
            f"{_option(wanted)}: give {_option(saved)} again, or --reset-optimizer, which keeps "
            "the weights and starts the optimizer, its updates and its learning rate anew."
        )
    # fairseq compares the name of the class that wraps the optimizer
    history[-1] = {**history[-1], "optimizer_name": names[1]}
    weights = optimizer_state.get(_KEY, {}).get("weights")
    if weights is not None and len(weights) == len(parameters):
        _use_float32_weights(state["model"], parameters, weights, saved)
    elif wanted in ("fp16", "bf16") and all(name in state["model"] for name in parameters):
        copies = [state["model"][name].float() for name in parameters]
        state["last_optimizer_state"] = {**optimizer_state, _KEY: {"weights": copies}}
    logger.info(
        f"{path}: was trained with {_option(saved)}; the optimizer's state is continued with "
        f"{_option(wanted)}."
    )


def restore_amp_retries(trainer: Any) -> None:
    """Set the trainer's count of repetitions of a batch after an overflow (``--amp``).

    The optimizer has loaded this count from the checkpoint with its state.
    """
    if hasattr(trainer._optimizer, "saved_amp_retries"):
        trainer._amp_retries = trainer._optimizer.saved_amp_retries


def _precision(cfg: Any) -> str:
    common = cfg.get("common") if isinstance(cfg, Mapping) else getattr(cfg, "common", None)
    chosen = common if isinstance(common, Mapping) else {}
    return next((name for name in _PRECISIONS if chosen.get(name)), "float32")


def _option(precision: str) -> str:
    return "float32" if precision == "float32" else f"--{precision.replace('_', '-')}"


def _base_name(cfg: Any) -> Any:
    optimizer = cfg.get("optimizer") if isinstance(cfg, Mapping) else None
    return optimizer.get("_name") if isinstance(optimizer, Mapping) else None


def _optimizer_name(cfg: Any, precision: str) -> Any:
    """Return the name of the optimizer's class, as fairseq saves it in a checkpoint.

    In half precision, this is the class that wraps the optimizer. None for an unknown optimizer.

    Args:
        cfg: Config of the training.
        precision: ``"float32"``, or an option such as ``"fp16"``.
    """
    from fairseq.optim import OPTIMIZER_REGISTRY

    if precision == "float32":
        return getattr(OPTIMIZER_REGISTRY.get(_base_name(cfg)), "__name__", None)
    if precision.startswith("memory_efficient"):
        return "MemoryEfficientFP16Optimizer"
    return "AMPOptimizer" if precision == "amp" else "FP16Optimizer"


def _trained_parameters(trainer: Any) -> dict[str, Any]:
    """Return the trained parameters of model and criterion by name, in the optimizer's order."""
    named = itertools.chain(
        trainer.get_model().named_parameters(), trainer.get_criterion().named_parameters()
    )
    return {name: parameter for name, parameter in named if parameter.requires_grad}


def _use_float32_weights(
    model: dict[str, Any], parameters: dict[str, Any], weights: list[Any], precision: str
) -> None:
    """Replace the half-precision weights in ``model`` by float32 weights, in place.

    Args:
        model: State dict of the model.
        parameters: Trained parameters by name, in the order of ``weights``.
        weights: Float32 weights. Each is used only if it rounds to the weight in ``model``.
        precision: ``"fp16"`` if the weights in ``model`` are float16; otherwise they are bfloat16.
    """
    import torch

    half = torch.float16 if precision == "fp16" else torch.bfloat16
    for name, weight in zip(parameters, weights):
        rounded = model.get(name)
        if rounded is None or weight.shape != rounded.shape or weight.dtype != torch.float32:
            continue
        if torch.equal(weight.to(half).float(), rounded.float()):
            model[name] = weight


def _read_added_state(trainer: Any) -> dict[str, Any]:
    """Return the state that this module adds to the optimizer's state in a checkpoint.

    The result is a dict with the float32 weights and the state of the loss scaler, if the precision
    of the training has them; empty for a float32 training.
    """
    # --use-bmuf wraps the optimizer once more
    optimizer = getattr(trainer.optimizer, "_optimizer", trainer.optimizer)
    state: dict[str, Any] = {}
    # fairseq saves only the weights in half precision; a resumed training would copy these, with
    # their rounding errors
    if hasattr(optimizer, "fp32_params"):
        state["weights"] = [weight.detach() for _, weight in _pairs(optimizer)]
    # of --fp16, fairseq saves the loss scale, but not when it last changed; of --amp, neither
    scaler = getattr(optimizer, "scaler", None)
    if hasattr(scaler, "_last_overflow_iter"):
        state["counters"] = {name: getattr(scaler, name) for name in _COUNTERS}
    elif scaler is not None and scaler.is_enabled():
        saved = scaler.state_dict()
        state["amp"] = {name: saved[name] for name in ("scale", "_growth_tracker")}
        state["amp_retries"] = trainer._amp_retries
    return state


def _pairs(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of a half-precision parameter and its float32 copy in fairseq's ``optimizer``.

    Both have the same shape.
    """
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
            # options such as --amp-scale-window keep the values of this training
            scaler.load_state_dict({**scaler.state_dict(), **added["amp"]})
            self.saved_amp_retries = int(added["amp_retries"])

    return load_state_dict


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
