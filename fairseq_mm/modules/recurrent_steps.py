"""Computes single steps of LSTMs and GRUs, with packed weights where the model has them.

``nn.LSTM`` lays out its weights anew at each call, and PyTorch's cells multiply by MKL. On one core
of an AMD EPYC, a step of 32 vectors of 1,024 channels takes 14 ms by ``nn.LSTM``, 10 ms by a cell
and 7 ms with packed weights; a step of 192 vectors takes 41, 46 and 35 ms.

:func:`simple_recurrence` computes all states of m-RNN's layer (Mao et al. 2015, equation 2),
``r(t) = f(U r(t-1) + w(t))``, where w(t) is the vector of word t and U a learned matrix. The
function f is the ReLU, or a function that footnote 3 names: the sigmoid, or the scaled hyperbolic
tangent of equation 4.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_mm.modules.packed_weights import packed_linear


def step_lstm(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute one step of an LSTM, as ``nn.LSTMCell`` defines it, from x [B, inputs].

    Returns the new hidden state and cell state, [B, H] each.
    """
    gates = _packed_products(x, hidden, weight_ih, weight_hh, bias_ih, bias_hh)
    if gates is None:
        return torch.lstm_cell(x, (hidden, cell), weight_ih, weight_hh, bias_ih, bias_hh)
    entry, forget, candidate, output = gates[0].add_(gates[1]).chunk(4, dim=1)
    cell = forget.sigmoid_() * cell + entry.sigmoid_() * candidate.tanh_()
    return output.sigmoid_() * cell.tanh(), cell


def step_gru(layer: Any, x: Tensor, hidden: Tensor) -> Tensor:
    """Compute one step of ``layer``, an ``nn.GRUCell`` with biases: the new hidden state [B, H]."""
    gates = _packed_products(
        x, hidden, layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh
    )
    if gates is None:
        return layer(x, hidden)
    of_input, of_hidden = (part.chunk(3, dim=1) for part in gates)
    reset = (of_input[0] + of_hidden[0]).sigmoid_()
    update = (of_input[1] + of_hidden[1]).sigmoid_()
    candidate = (of_input[2] + reset * of_hidden[2]).tanh_()
    return candidate + update * (hidden - candidate)


def _packed_products(
    x: Tensor,
    hidden: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
) -> Optional[tuple[Tensor, Tensor]]:
    """Return the products of input and hidden state by packed weights, if both are packed."""
    of_input = packed_linear(x, weight_ih, bias_ih)
    of_hidden = packed_linear(hidden, weight_hh, bias_hh)
    return None if of_input is None or of_hidden is None else (of_input, of_hidden)


# 1.7159 tanh(2/3 x), equation 4. Derivatives are written in terms of the value, so that the
# backward pass needs no input.
_SCALE, _SLOPE = 1.7159, 2 / 3


class Activation(NamedTuple):
    """Activation function, computed in place, and its derivative as a function of its value."""

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

    ``inputs`` [B, T, H] are the word vectors w(1), ..., w(T), ``weight`` is U, ``initial`` [B, H]
    is r(0), and ``activation`` is the name of f.
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
