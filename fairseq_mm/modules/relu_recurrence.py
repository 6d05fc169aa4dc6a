"""The recurrent layer of m-RNN: a sentence's states from its word vectors.

Mao et al. 2015, section 3.2, equation 2: ``r(t) = ReLU(U r(t-1) + w(t))``.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _ReluRecurrence(torch.autograd.Function):
    """One fused product and a ReLU a step; the weight's gradient is one product over all steps.

    Autograd over the same loop keeps three graph nodes a step and adds up a weight gradient at
    each; ``nn.RNN`` multiplies the input by a matrix that is the identity here. Figures:
    ``benchmarks/m_rnn.py``.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, initial: Tensor) -> Tensor:
        T, B, H = inputs.shape
        states = inputs.new_empty(T + 1, B, H)
        states[0] = initial
        transposed = weight.t()
        for t in range(T):
            torch.addmm(inputs[t], states[t], transposed, out=states[t + 1]).relu_()
        ctx.save_for_backward(states, weight)
        return states[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        T, B, H = grad_states.shape
        # d(t): the gradient before the ReLU of step t, which is the input's gradient as well
        before_relu = grad_states.new_empty(T, B, H)
        active = states[1:] > 0
        from_future = grad_states.new_zeros(B, H)
        for t in range(T - 1, -1, -1):
            torch.mul(from_future.add_(grad_states[t]), active[t], out=before_relu[t])
            torch.mm(before_relu[t], weight, out=from_future)
        grad_weight = before_relu.flatten(0, 1).t() @ states[:-1].flatten(0, 1)
        return before_relu, grad_weight, from_future


def relu_recurrence(inputs: Tensor, weight: Tensor, initial: Tensor) -> Tensor:
    """States of a ReLU recurrence, for all steps (Mao et al. 2015, equation 2).

    Args:
        inputs: ``[B, T, H]`` word vectors w(1), ..., w(T).
        weight: ``[H, H]`` the matrix U.
        initial: ``[B, H]`` the state r(0).

    Returns:
        states: ``[B, T, H]`` r(1), ..., r(T), in the inputs' dtype.
    """
    dtype = inputs.dtype
    states = _ReluRecurrence.apply(
        inputs.transpose(0, 1).contiguous(), weight.to(dtype), initial.to(dtype)
    )
    return states.transpose(0, 1)
