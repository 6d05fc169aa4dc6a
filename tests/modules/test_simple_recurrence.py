"""The recurrence and its gradients equal autograd through the loop."""

import pytest
import torch

from fairseq_mm.modules.recurrent_steps import ACTIVATIONS, simple_recurrence

B, T, H = 3, 5, 4
FUNCTIONS = {  # equation 2, footnote 3 with equation 4, footnote 3
    "relu": lambda x: x.clamp(min=0),
    "scaled_tanh": lambda x: 1.7159 * torch.tanh(2 / 3 * x),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
}


def loop(inputs, weight, initial, activation="relu"):
    """r(t) = f(U r(t-1) + w(t)) (Mao et al. 2015, equation 2)."""
    state, states = initial, []
    for t in range(inputs.size(1)):
        before = inputs[:, t] + torch.stack([weight @ row for row in state])
        state = FUNCTIONS[activation](before)
        states.append(state)
    return torch.stack(states, dim=1)


@pytest.fixture
def arguments():
    torch.manual_seed(2)
    tensors = [torch.randn(B, T, H), torch.randn(H, H) * 0.5, torch.rand(B, H)]
    return [tensor.double().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_states_equal_the_loop(arguments, activation):
    found = simple_recurrence(*arguments, activation)
    torch.testing.assert_close(found, loop(*arguments, activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_equal_those_of_the_loop(arguments, activation):
    weights = torch.randn(B, T, H).double()
    found = simple_recurrence(*arguments, activation)
    ours = torch.autograd.grad((found * weights).sum(), arguments)
    looped = loop(*arguments, activation)
    expected = torch.autograd.grad((looped * weights).sum(), arguments)
    for gradient, reference in zip(ours, expected):
        torch.testing.assert_close(gradient, reference)
