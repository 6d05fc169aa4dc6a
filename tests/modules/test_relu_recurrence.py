"""The recurrence and its gradients equal autograd through the loop."""

import pytest
import torch

from fairseq_mm.modules.relu_recurrence import relu_recurrence

B, T, H = 3, 5, 4


def loop(inputs, weight, initial):
    """r(t) = ReLU(U r(t-1) + w(t)) (Mao et al. 2015, equation 2)."""
    state, states = initial, []
    for t in range(inputs.size(1)):
        state = torch.relu(inputs[:, t] + torch.stack([weight @ row for row in state]))
        states.append(state)
    return torch.stack(states, dim=1)


@pytest.fixture
def arguments():
    torch.manual_seed(2)
    tensors = [torch.randn(B, T, H), torch.randn(H, H) * 0.5, torch.rand(B, H)]
    return [tensor.double().requires_grad_() for tensor in tensors]


def test_states_equal_the_loop(arguments):
    torch.testing.assert_close(relu_recurrence(*arguments), loop(*arguments))


def test_gradients_equal_those_of_the_loop(arguments):
    weights = torch.randn(B, T, H).double()
    ours = torch.autograd.grad((relu_recurrence(*arguments) * weights).sum(), arguments)
    expected = torch.autograd.grad((loop(*arguments) * weights).sum(), arguments)
    for gradient, reference in zip(ours, expected):
        torch.testing.assert_close(gradient, reference)


def test_equals_torch_rnn_with_an_identity_for_the_input(arguments):
    inputs, weight, initial = (tensor.detach().float() for tensor in arguments)
    rnn = torch.nn.RNN(H, H, nonlinearity="relu", bias=False, batch_first=True)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(torch.eye(H))
        rnn.weight_hh_l0.copy_(weight)
        expected, _ = rnn(inputs, initial.unsqueeze(0))
    torch.testing.assert_close(relu_recurrence(inputs, weight, initial), expected)


def test_states_come_in_the_dtype_of_the_inputs(arguments):
    inputs, weight, initial = (tensor.detach() for tensor in arguments)
    assert relu_recurrence(inputs.bfloat16(), weight, initial).dtype == torch.bfloat16
