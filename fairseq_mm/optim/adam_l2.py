"""Implements Adam with L2 regularisation (``--optimizer adam_l2``).

Kingma, Ba. Adam: A Method for Stochastic Optimization. ICLR 2015, Algorithm 1.
Reddi, Kale, Kumar. On the Convergence of Adam and Beyond. ICLR 2018 (``--amsgrad``).

As in ``torch.optim.Adam``, the moments are computed from the gradient ``g_t`` of the loss plus the
gradient of the L2 penalty,

    g_t + wd * w_{t-1}

with weight ``w`` and weight decay ``wd``. fairseq's ``--optimizer adam`` is AdamW (Loshchilov,
Hutter. Decoupled Weight Decay Regularization. ICLR 2019), which subtracts ``lr * wd * w`` from the
weight and does not change the moments. AdamW and L2 regularisation differ strongly where gradients
are small, because Adam divides the penalty's gradient by its own size. If the loss has no gradient
for a weight, L2 regularisation shrinks the weight by up to ``lr`` at each update, decoupled weight
decay by ``lr * wd`` times its value.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, List, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam
from omegaconf import II
from torch import Tensor

from fairseq_mm.compat.literals import parse_literal
from fairseq_mm.compat.options import check_sizes, option
from fairseq_mm.errors import UserError

_HALF_PRECISION = (torch.float16, torch.bfloat16)
# temporary results of an operation take as much memory as the parameters of a list
_MOST_ELEMENTS = 2**25


@dataclass
class AdamL2Config(FairseqDataclass):
    adam_betas: Any = option(
        (0.9, 0.999), "decay rates of the first and the second moment's running averages"
    )
    adam_eps: float = option(1e-8, "constant added to the denominator of each update", above=0)
    weight_decay: float = option(
        0.0, "L2 penalty: this times each weight is added to its gradient", least=0
    )
    amsgrad: bool = option(False, "divide by the largest second moment so far (Reddi et al. 2018)")
    # fairseq builds a command-line parser from these types, and it does not support `list[float]`
    lr: List[float] = II("optimization.lr")  # noqa: UP006, RUF009


@register_optimizer("adam_l2", dataclass=AdamL2Config)
class FairseqAdamL2(FairseqAdam):
    """fairseq optimizer for Adam with L2 regularisation."""

    def __init__(self, cfg: AdamL2Config, params: Any) -> None:
        # FairseqAdam's own __init__ would build AdamW
        super(FairseqAdam, self).__init__(cfg)
        self._optimizer = AdamL2(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """Arguments of :class:`AdamL2`; they override the arguments recorded in a checkpoint."""
        lr = self.cfg.lr
        # fairseq gives one rate per epoch; the scheduler sets the later ones.
        rates = list(lr) if isinstance(lr, Collection) else [lr]
        check_sizes(AdamL2Config, self.cfg)
        return {
            "lr": rates[0],
            "betas": _betas(self.cfg.adam_betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
            "amsgrad": self.cfg.amsgrad,
        }


def _betas(value: Any) -> tuple[float, float]:
    # fairseq evaluates this option as Python; a literal is enough and runs no code
    with contextlib.suppress(TypeError, ValueError):
        first, second = parse_literal(value) if isinstance(value, str) else value
        if 0 <= first < 1 and 0 <= second < 1:
            return first, second
    raise UserError(
        "--adam-betas must be two numbers of 0 or more and below 1, such as '(0.9, 0.999)', but is "
        f"{value}."
    )


class AdamL2(torch.optim.Optimizer):
    """``torch.optim.Adam`` for weights of any precision.

    Moments are float32, and updates of float16 and bfloat16 weights are computed in float32. As in
    PyTorch, a weight without gradient (None) does not change, and a weight whose gradient is zero
    decays. For weights that no batch uses, the gradient is None with one process in single
    precision, and zero with ``--fp16``, ``--bf16`` or ``--ddp-backend legacy_ddp``.
    """

    supports_memory_efficient_fp16 = True
    # each element is updated by itself, so fairseq may join all parameters to one
    supports_flat_params = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params_by_steps = _split_parameters(
                group["params"], lambda param: self.state[param].get("step", 0)
            )
            for params in params_by_steps:
                self._update(params, group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads: Any = [param.grad for param in params]
        is_half = params[0].dtype in _HALF_PRECISION
        weights = [param.float() if is_half else param for param in params]
        grads = [grad.to(weights[0].dtype) for grad in grads]
        if group["weight_decay"]:
            # Into the gradient and thus into the moments; subtracting from the weight would be
            # AdamW.
            grads = torch._foreach_add(grads, weights, alpha=group["weight_decay"])
        beta1, beta2 = group["betas"]
        states = [self.state[param] for param in params]
        for state in states:
            state["step"] = state.get("step", 0) + 1
        step = states[0]["step"]
        moments = self._moments(states, "exp_avg", weights)
        torch._foreach_mul_(moments, beta1)
        torch._foreach_add_(moments, grads, alpha=1 - beta1)
        second = self._moments(states, "exp_avg_sq", weights)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
        if group["amsgrad"]:
            largest = self._moments(states, "max_exp_avg_sq", weights)
            # Before the bias correction, as in torch.optim.Adam.
            second = [torch.max(x, y, out=x) for x, y in zip(largest, second)]
        # eps is added to the bias-corrected root, as in Algorithm 1. fairseq's Adam adds it to the
        # uncorrected root, which is so small at first that eps would outweigh the L2 penalty
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, math.sqrt(1 - beta2**step))
        torch._foreach_add_(denominators, group["eps"])
        size = -group["lr"] / (1 - beta1**step)
        torch._foreach_addcdiv_(weights, moments, denominators, value=size)
        if is_half:
            for param, weight in zip(params, weights):
                param.copy_(weight)

    @staticmethod
    def _moments(states: list[dict[str, Any]], name: str, weights: list[Tensor]) -> list[Tensor]:
        for state, weight in zip(states, weights):
            # A moment that was loaded from a checkpoint may be on another device.
            before = state.get(name)
            state[name] = torch.zeros_like(weight) if before is None else before.to(weight)
        return [state[name] for state in states]


def _split_parameters(params: list[Tensor], key: Callable[[Tensor], Any]) -> Iterator[list[Tensor]]:
    """Yield the parameters that have a gradient, in lists that can be updated together."""
    lists: dict[Any, list[Tensor]] = {}
    sizes: dict[Any, int] = {}
    for param in params:
        if param.grad is None:
            continue
        alike = (param.device, param.dtype, key(param))
        lists.setdefault(alike, []).append(param)
        sizes[alike] = sizes.get(alike, 0) + param.numel()
        if not param.is_cuda or sizes[alike] > _MOST_ELEMENTS:
            yield lists.pop(alike)
            sizes.pop(alike)
    yield from lists.values()
