"""The LSTM with peepholes equals equations 1 to 5 of Kiros et al. 2014, written as loops."""

import math

import pytest
import torch

from fairseq_mm.models.vse import PeepholeLSTM

B, T, D, H = 3, 6, 4, 5


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def states_by_loops(lstm, x):
    """``[T][H]`` of one sequence ``[T, D]``."""
    W_x, b = lstm.input_proj.weight.tolist(), lstm.input_proj.bias.tolist()
    W_h, W_c = lstm.hidden_weight.tolist(), lstm.cell_weight.tolist()
    m, c = [0.0] * H, [0.0] * H

    def term(gate, j, t):
        row = gate * H + j
        total = b[row] + sum(W_x[row][k] * float(x[t, k]) for k in range(D))
        return total + sum(W_h[row][k] * m[k] for k in range(H))

    def peep(gate, j, cell):
        row = gate * H + j
        if lstm.diagonal:
            return W_c[row] * cell[j]
        return sum(W_c[row][k] * cell[k] for k in range(H))

    rows = []
    for t in range(len(x)):
        i = [sigmoid(term(0, j, t) + peep(0, j, c)) for j in range(H)]
        f = [sigmoid(term(1, j, t) + peep(1, j, c)) for j in range(H)]
        new = [f[j] * c[j] + i[j] * math.tanh(term(3, j, t)) for j in range(H)]
        o = [sigmoid(term(2, j, t) + peep(2, j, new)) for j in range(H)]
        m, c = [o[j] * math.tanh(new[j]) for j in range(H)], new
        rows.append(m)
    return torch.tensor(rows)


@pytest.mark.parametrize("diagonal", [False, True])
def test_equals_the_equations_written_as_loops(diagonal):
    torch.manual_seed(1)
    lstm = PeepholeLSTM(D, H, diagonal=diagonal)
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(B, T, D)
    expected = torch.stack([states_by_loops(lstm, row) for row in x])
    torch.testing.assert_close(lstm(x), expected)
