"""Updates of many parameters by one operation, for fairseq's optimizers on a GPU.

fairseq calls each operation of an optimizer once for each parameter. On a GPU, the calls take
longer than the arithmetic of all but the largest parameters: an update of ``conv_story_gated`` has
271 parameters, of ``vg_bart_base`` 333. PyTorch's ``_foreach`` operations take lists of parameters.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# temporary results of an operation take as much memory as the parameters of a list
_MOST_ELEMENTS = 2**25


def split_parameters(
    params: list["Tensor"], key: Callable[["Tensor"], Any]
) -> Iterator[list["Tensor"]]:
    """Yield the parameters that have a gradient, in lists that one operation updates.

    The parameters of a list have the same device, dtype and value of ``key``. On a CPU, each list
    has one parameter, because the next operation finds its numbers in the cache.
    """
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


def can_use_foreach(optimizer: Any) -> bool:
    """Return True if all parameters with a gradient are on a GPU, dense, and of float32."""
    import torch

    return all(
        param.is_cuda and x.dtype == torch.float32 and not x.is_sparse
        for group in optimizer.param_groups
        for param in group["params"]
        if param.grad is not None
        for x in (param, param.grad)
    )


def adam_step(optimizer: Any) -> None:
    """Update the parameters of fairseq's ``Adam``, without ``amsgrad``, as its ``step`` does."""
    import torch

    state = optimizer.state
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        lists = split_parameters(group["params"], lambda x: state[x].get("step", 0))
        for params in lists:
            for param in params:
                if not state[param]:
                    zeros = {x: torch.zeros_like(param) for x in ("exp_avg", "exp_avg_sq")}
                    state[param].update(step=0, **zeros)
                state[param]["step"] += 1
            step = state[params[0]]["step"]
            grads: list[Any] = [param.grad for param in params]
            first, second = (
                [state[param][name].to(param) for param in params]
                for name in ("exp_avg", "exp_avg_sq")
            )
            torch._foreach_mul_(first, beta1)
            torch._foreach_add_(first, grads, alpha=1 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
            denominators = torch._foreach_sqrt(second)
            torch._foreach_add_(denominators, group["eps"])
            if group["weight_decay"] != 0:
                torch._foreach_add_(params, params, alpha=-group["weight_decay"] * group["lr"])
            size = group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
            torch._foreach_addcdiv_(params, first, denominators, value=-size)
            for param, *moments in zip(params, first, second):
                state[param]["exp_avg"], state[param]["exp_avg_sq"] = moments


def nag_step(optimizer: Any) -> None:
    """Update the parameters of fairseq's ``NAG`` as its ``step`` does."""
    import torch

    state = optimizer.state
    for group in optimizer.param_groups:
        lr, momentum = group["lr"], group["momentum"]
        lr_old = group.get("lr_old", lr)
        correction = lr / lr_old if lr_old > 0 else lr
        for params in split_parameters(group["params"], lambda x: None):
            for param in params:
                before = state[param].get("momentum_buffer")
                state[param]["momentum_buffer"] = (
                    torch.zeros_like(param) if before is None else before.to(param)
                )
            grads: list[Any] = [param.grad for param in params]
            buffers = [state[param]["momentum_buffer"] for param in params]
            if group["weight_decay"] != 0:
                torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            torch._foreach_add_(params, buffers, alpha=momentum * momentum * correction)
            torch._foreach_add_(params, grads, alpha=-(1 + momentum) * lr)
            torch._foreach_mul_(buffers, momentum * correction)
            torch._foreach_add_(buffers, grads, alpha=-lr)
        group["lr_old"] = lr


def update_together() -> None:
    """Make fairseq's Adam and NAG update many parameters by one operation on a GPU."""
    import torch
    from fairseq.optim.adam import Adam
    from fairseq.optim.nag import NAG

    for cls, step in ((Adam, adam_step), (NAG, nag_step)):
        cls.step = _with_foreach(cls.step, torch.no_grad()(step))


def _with_foreach(original: Callable[..., Any], step: Callable[[Any], None]) -> Callable[..., Any]:
    """Return an optimizer's method that calls ``step`` if it can, and otherwise ``original``."""

    @functools.wraps(original)
    def method(self: Any, closure: Any = None) -> Any:
        has_amsgrad = any(group.get("amsgrad") for group in self.param_groups)
        if closure is not None or has_amsgrad or not can_use_foreach(self):
            return original(self, closure)
        return step(self)

    return method


def total_norm(grads: list["Tensor"], chunk_size: int = 0) -> "Tensor":
    """Return the norm of all gradients, as ``fairseq.utils.clip_grad_norm_`` computes it.

    ``chunk_size`` is an argument of fairseq's function for Apex, and is not used.
    """
    import torch

    if all(x.is_cuda and x.dtype == torch.float32 and x.device == grads[0].device for x in grads):
        norms = list(torch._foreach_norm(grads))
    else:
        norms = [torch.norm(x, p=2, dtype=torch.float32).to(grads[0].device) for x in grads]
    return torch.norm(torch.stack(norms))


def clip_together() -> None:
    """Make fairseq compute the norms of all gradients by one operation on a GPU.

    fairseq does this only if Apex is installed.
    """
    from fairseq import utils

    utils.multi_tensor_total_norm = total_norm
    utils.multi_tensor_l2norm_available = True


def has_no_apex() -> bool:
    from fairseq import utils

    return not utils.multi_tensor_l2norm_available
