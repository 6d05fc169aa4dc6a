"""Bidirectional recurrent layers over sequences with gaps; padding is not read, wherever it is."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class PackedGRU(nn.Module):
    """A bidirectional GRU over the real elements of each row, in their order.

    Args:
        input_dim: D.
        hidden_dim: H of each direction.
    """

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int) -> None:
        super().__init__()
        self.gru = nn.GRU(input_dim, hidden_dim, num_layers, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """
        Args:
            x: ``[B, N, D]``.
            padding_mask: ``[B, N]`` bool, True at padding, at either side or between; at least one
                element of a row is real.

        Returns:
            ``[B, N, 2H]``, forward before backward, zero at padding.
        """
        valid_mask = ~padding_mask
        counts = valid_mask.sum(dim=1).cpu()  # the only wait for a GPU
        if counts.eq(x.size(1)).all():
            return self.gru(x)[0]
        order = padding_mask.long().sort(dim=1, stable=True).indices  # real ones first
        moved = x.gather(1, order.unsqueeze(-1).expand_as(x))
        packed = pack_padded_sequence(moved, counts, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(
            self.gru(packed)[0], batch_first=True, total_length=x.size(1)
        )
        places = (valid_mask.long().cumsum(dim=1) - 1).clamp(min=0)  # index among the real elements
        back = states.gather(1, places.unsqueeze(-1).expand(-1, -1, states.size(-1)))
        return back.masked_fill(padding_mask.unsqueeze(-1), 0)


class SkippingLSTM(nn.Module):
    """Bidirectional LSTM that skips missing elements.

    The output at a missing element is the carried state: the forward output of the last real
    element before it, and the backward output of the next real one; zeros if there is none.

    Args:
        input_dim: D.
        hidden_dim: H of each direction.
        dropout: Dropout between layers.
    """

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_dim,
            hidden_dim,
            num_layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if num_layers > 1 else 0.0,
        )

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """
        Args:
            x: ``[B, N, D]``.
            padding_mask: ``[B, N]`` bool; at least one element of a row is there.

        Returns:
            ``[B, N, 2H]``, forward before backward.
        """
        return self.with_last_states(x, padding_mask)[0]

    def with_last_states(
        self, x: Tensor, padding_mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As :meth:`forward`, and each direction's state and cell ``[2 * num_layers, B, H]`` after
        the last real element that it reads."""
        counts = (~padding_mask).sum(dim=1)
        on_cpu = counts.cpu()  # the only wait for a GPU
        if on_cpu.eq(x.size(1)).all():
            return self.lstm(x)
        order = padding_mask.long().sort(dim=1, stable=True).indices  # real ones first
        moved = x.gather(1, order.unsqueeze(-1).expand_as(x))
        packed = pack_padded_sequence(moved, on_cpu, batch_first=True, enforce_sorted=False)
        states, last = self.lstm(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.size(1))
        forward, backward = states.chunk(2, dim=-1)
        before = (~padding_mask).long().cumsum(dim=1)  # real ones up to here
        after = counts.unsqueeze(1) - before + (~padding_mask).long()  # from here on
        outputs = torch.cat(
            [
                _rows_or_zeros(forward, before - 1),
                _rows_or_zeros(backward, counts.unsqueeze(1) - after),
            ],
            dim=-1,
        )
        return outputs, last


def _rows_or_zeros(x: Tensor, places: Tensor) -> Tensor:
    """Rows ``[B, N]`` of ``[B, N, H]``; zeros for places before the first and after the last."""
    is_there = ((places >= 0) & (places < x.size(1))).unsqueeze(-1)
    # beyond a row's last real element the states are padding's, which are zeros
    chosen = x.gather(1, places.clamp(0, x.size(1) - 1).unsqueeze(-1).expand_as(x))
    return torch.where(is_there, chosen, torch.zeros_like(chosen))
