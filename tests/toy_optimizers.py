"""Optimizers as fairseq builds them in each precision, and training that is resumed."""

from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch
from fairseq import optim
from omegaconf import OmegaConf
from torch import Tensor, nn

# dtype of the model, and fairseq's options of the precision
PRECISIONS = [
    (torch.float16, {"fp16": True}),
    (torch.float16, {"fp16": True, "memory_efficient_fp16": True}),
    (torch.bfloat16, {"bf16": True}),
    (torch.bfloat16, {"bf16": True, "memory_efficient_fp16": True}),
]


def optimizer_config(optimizer: dict[str, Any], **common: Any) -> Any:
    """What fairseq's trainer gives to an optimizer's ``build_optimizer``."""
    settings = {
        "fp16_init_scale": 4,
        "fp16_scale_tolerance": 0.0,
        "threshold_loss_scale": None,
        "min_loss_scale": 1e-4,
        "fp16_scale_window": 100,
        "fp16": False,
        "bf16": False,
        "fp16_no_flatten_grads": True,
        **common,
    }
    return OmegaConf.create({"optimizer": optimizer, "common": settings})


def build_optimizer(model: nn.Module, cfg: Any) -> Any:
    """The optimizer, in the wrapper of its precision."""
    params = [p for p in model.parameters() if p.requires_grad]
    if cfg.common.get("memory_efficient_fp16", False):
        return optim.MemoryEfficientFP16Optimizer.build_optimizer(cfg, params)
    if cfg.common.fp16 or cfg.common.bf16:
        return optim.FP16Optimizer.build_optimizer(cfg, params)
    return optim.build_optimizer(cfg.optimizer, params)


def run_updates(
    model: nn.Module,
    optimizer: Any,
    steps: Iterable[int],
    loss_of: Callable[[nn.Module, int], Tensor],
    *,
    clip_norm: float = 0.0,
) -> None:
    for step in steps:
        optimizer.zero_grad()
        optimizer.backward(loss_of(model, step))
        optimizer.clip_grad_norm(clip_norm)
        optimizer.step()


def check_resuming(
    toy_model: Callable[[], nn.Module],
    loss_of: Callable[[nn.Module, int], Tensor],
    cfg: Any,
    dtype: torch.dtype,
    lr: Optional[float] = None,
) -> None:
    """Three updates, a checkpoint and two more end at the very weights of five."""
    whole, model = toy_model().to(dtype), toy_model().to(dtype)
    run_updates(whole, build_optimizer(whole, cfg), range(5), loss_of)
    first = build_optimizer(model, cfg)
    run_updates(model, first, range(3), loss_of)
    resumed_model = toy_model().to(dtype)
    resumed_model.load_state_dict(model.state_dict())
    resumed = build_optimizer(resumed_model, cfg)
    resumed.load_state_dict(first.state_dict(), {})
    if lr is not None:
        resumed.set_lr(lr)
    if hasattr(resumed, "fp32_params"):  # fairseq saves no copy in single precision
        for ours, theirs in zip(resumed.fp32_params, first.fp32_params):
            ours.data.copy_(theirs.data)
    run_updates(resumed_model, resumed, range(3, 5), loss_of)
    for name, weight in whole.named_parameters():
        assert torch.equal(resumed_model.get_parameter(name), weight), name
