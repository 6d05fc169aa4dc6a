"""Defines an LSTM with peephole connections (Kiros et al. 2014, equations 1 to 5)."""

import torch
from torch import Tensor, nn

# Section 4: "weights initialized uniformly from [-0.08, 0.08]".
_INITIAL = 0.08


class PeepholeLSTM(nn.Module):
    """LSTM of one layer whose gates see the cell (Kiros et al. 2014, equations 1 to 5):

        i(t) = sigmoid(x(t) W_xi + m(t-1) W_hi + c(t-1) W_ci + b_i)     (1)
        f(t) = sigmoid(x(t) W_xf + m(t-1) W_hf + c(t-1) W_cf + b_f)     (2)
        c(t) = f(t) c(t-1) + i(t) tanh(x(t) W_xc + m(t-1) W_hc + b_c)   (3)
        o(t) = sigmoid(x(t) W_xo + m(t-1) W_ho + c(t) W_co + b_o)       (4)
        m(t) = o(t) tanh(c(t))                                          (5)

    where x is the input, m the state, c the cell, and i, f and o are the input, forget and output
    gate. The initial state m(0) and cell c(0) are zero.

    Args:
        diagonal: True if W_ci, W_cf and W_co are diagonal, as in other descriptions of peepholes;
            the equations of Kiros et al. 2014 multiply by full matrices.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, diagonal: bool = False) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.diagonal = diagonal
        # rows in the order i, f, o, c
        self.input_proj = nn.Linear(input_dim, 4 * hidden_dim)
        self.hidden_weight = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        # in the order i, f, o
        # Kept apart from hidden_weight: i and f see the cell of the step before, o sees the new
        # cell.
        shape = (3 * hidden_dim,) if diagonal else (3 * hidden_dim, hidden_dim)
        self.cell_weight = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.input_proj.weight, self.hidden_weight, self.cell_weight):
            nn.init.uniform_(parameter, -_INITIAL, _INITIAL)
        nn.init.zeros_(self.input_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the state after each input of x, which may be right-padded.

        The shape changes from [B, T, input_dim] to [B, T, hidden_dim].
        """
        B, H = x.size(0), self.hidden_dim
        inputs = self.input_proj(x).unbind(1)  # T of [B, 4H]
        hidden_weight = self.hidden_weight.t()
        hidden = x.new_zeros(B, H)
        cell = x.new_zeros(B, H)
        peepholes = x.new_zeros(B, 2 * H)  # the cell's terms in the gates i and f
        states = []
        for t, term in enumerate(inputs):
            # The first state is zero, so its product is left out.
            gates = term if t == 0 else torch.addmm(term, hidden, hidden_weight)
            input_gate, forget_gate = torch.sigmoid(gates[:, : 2 * H] + peepholes).chunk(2, dim=1)
            cell = forget_gate * cell + input_gate * torch.tanh(gates[:, 3 * H :])
            # One product with the new cell serves o of this step and i and f of the next.
            if self.diagonal:
                terms = cell.repeat(1, 3) * self.cell_weight
            else:
                terms = cell @ self.cell_weight.t()
            peepholes, output_peephole = terms.split([2 * H, H], dim=1)
            output_gate = torch.sigmoid(gates[:, 2 * H : 3 * H] + output_peephole)
            hidden = output_gate * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, dim=1)
