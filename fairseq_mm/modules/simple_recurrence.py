"""Computes the recurrent layer of m-RNN (Mao et al. 2015, section 3.2, equation 2).

The states are ``r(t) = f(U r(t-1) + w(t))``, where w(t) is the vector of word t and U a learned
matrix. The function f is the ReLU, or a function that footnote 3 names: the sigmoid, or the scaled
hyperbolic tangent of equation 4.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# 1.7159 tanh(2/3 x), equation 4. Derivatives are written in terms of the value, so that the
# backward pass needs no input.
_SCALE, _SLOPE = 1.7159, 2 / 3


class Activation(NamedTuple):
    """Activation function of the recurrence, with its derivative.

    Attributes:
        apply_: Function that applies the activation to a tensor in place and returns it.
        derivative: Function from the activation's value to its derivative.
    """

    apply_: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


ACTIVATIONS = {
    "relu": Activation(torch.relu_, lambda y: y > 0),
    "scaled_tanh": Activation(
        lambda x: x.mul_(_SLOPE).tanh_().mul_(_SCALE), lambda y: _SLOPE * (_SCALE - y * y / _SCALE)
    ),
    "sigmoid": Activation(torch.sigmoid_, lambda y: y * (1 - y)),
}


class _SimpleRecurrence(torch.autograd.Function):
    """Recurrence with one matrix product per step, and one product for the weight's gradient.

    Autograd would keep three graph nodes per step and add up a weight gradient at each step.
    ``nn.RNN`` would also multiply the input by a matrix, which m-RNN does not have. See
    ``benchmarks/m_rnn.py`` for the speed.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, initial: Tensor, activation: Activation
    ) -> Tensor:
        T, B, H = inputs.shape
        states = inputs.new_empty(T + 1, B, H)
        states[0] = initial
        transposed = weight.t()
        for t in range(T):
            activation.apply_(torch.addmm(inputs[t], states[t], transposed, out=states[t + 1]))
        ctx.save_for_backward(states, weight)
        ctx.activation = activation
        return states[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, weight = ctx.saved_tensors
        T, B, H = grad_states.shape
        # gradient of each step before its activation, which is also the gradient of the input
        before = grad_states.new_empty(T, B, H)
        derivative = ctx.activation.derivative(states[1:])
        from_future = grad_states.new_zeros(B, H)
        for t in range(T - 1, -1, -1):
            torch.mul(from_future.add_(grad_states[t]), derivative[t], out=before[t])
            torch.mm(before[t], weight, out=from_future)
        grad_weight = before.flatten(0, 1).t() @ states[:-1].flatten(0, 1)
        return before, grad_weight, from_future, None


def simple_recurrence(
    inputs: Tensor, weight: Tensor, initial: Tensor, activation: str = "relu"
) -> Tensor:
    """Compute the states ``r(t) = f(U r(t-1) + w(t))``, [B, T, H] (Mao et al. 2015, equation 2).

    Args:
        inputs: [B, T, H] word vectors w(1), ..., w(T); the states have their dtype.
        weight: [H, H] matrix U.
        initial: [B, H] state r(0).
        activation: Name of f in ``ACTIVATIONS``.
    """
    dtype = inputs.dtype
    states = _SimpleRecurrence.apply(
        # Time first, so that each step reads and writes contiguous memory.
        inputs.transpose(0, 1).contiguous(),
        # Autocast does not reach operations with `out=`, so weight and state get the dtype of the
        # inputs.
        weight.to(dtype),
        initial.to(dtype),
        ACTIVATIONS[activation],
    )
    return states.transpose(0, 1)
