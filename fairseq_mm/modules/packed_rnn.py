"""Bidirectional recurrent layers that skip padding, wherever it is in a row."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def _pack(x: Tensor, padding_mask: Tensor, counts: Tensor) -> PackedSequence:
    """Pack the elements of x [B, N, D] that are not padding; ``counts`` [B] is on the CPU."""
    # PyTorch packs right-padded rows only, so the real elements are moved to the front. The sort
    # must be stable to keep their order.
    order = padding_mask.long().sort(dim=1, stable=True).indices
    moved = x.gather(1, order.unsqueeze(-1).expand_as(x))
    return pack_padded_sequence(moved, counts, batch_first=True, enforce_sorted=False)


class PackedGRU(nn.Module):
    """Bidirectional GRU that runs over the real elements of each row and leaves out padding."""

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int) -> None:
        super().__init__()
        self.gru = nn.GRU(input_dim, hidden_dim, num_layers, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Encode x [B, N, input_dim] to [B, N, 2 * hidden_dim]; the output is zero at padding.

        ``padding_mask`` is [B, N] bool, True at padding, which may be anywhere in a row; at least
        one element of each row is real.
        """
        valid_mask = ~padding_mask
        # pack_padded_sequence wants lengths on the CPU: the only wait for a GPU
        counts = valid_mask.sum(dim=1).cpu()
        # Without padding, the layer runs on the tensor as it is: packing would lay it out anew.
        if counts.eq(x.size(1)).all():
            return self.gru(x)[0]
        states, _ = self.gru(_pack(x, padding_mask, counts))
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.size(1))
        places = (valid_mask.long().cumsum(dim=1) - 1).clamp(min=0)  # index among the real elements
        back = states.gather(1, places.unsqueeze(-1).expand(-1, -1, states.size(-1)))
        return back.masked_fill(padding_mask.unsqueeze(-1), 0)


class SkippingLSTM(nn.Module):
    """Bidirectional LSTM that skips missing elements.

    The output at a missing element is the state carried over the gap: the forward output of the
    last real element before it and the backward output of the next real element, or zeros if there
    is no such element.
    """

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_dim,
            hidden_dim,
            num_layers,
            batch_first=True,
            bidirectional=True,
            # PyTorch warns about dropout between the layers of a single layer.
            dropout=dropout if num_layers > 1 else 0.0,
        )

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Encode x: [B, N, input_dim] -> [B, N, 2 * hidden_dim]; at least one element of each row
        is real.
        """
        return self.with_last_states(x, padding_mask)[0]

    def with_last_states(
        self, x: Tensor, padding_mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the output of :meth:`forward`, and the last states of the LSTM.

        The hidden and cell state of each layer and direction after its last real element are [2 *
        num_layers, B, hidden_dim] each.
        """
        counts = (~padding_mask).sum(dim=1)
        # pack_padded_sequence wants lengths on the CPU: the only wait for a GPU
        on_cpu = counts.cpu()
        if on_cpu.eq(x.size(1)).all():
            return self.lstm(x)
        # The last states come from the packed run, because the state after the last real element is
        # not at the end of a padded row.
        states, last = self.lstm(_pack(x, padding_mask, on_cpu))
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.size(1))
        forward, backward = states.chunk(2, dim=-1)
        before = (~padding_mask).long().cumsum(dim=1)  # real elements up to and with this
        after = counts.unsqueeze(1) - before + (~padding_mask).long()  # from this element on
        outputs = torch.cat(
            [
                _rows_or_zeros(forward, before - 1),
                _rows_or_zeros(backward, counts.unsqueeze(1) - after),
            ],
            dim=-1,
        )
        return outputs, last


def _rows_or_zeros(x: Tensor, places: Tensor) -> Tensor:
    """Gather the elements ``places`` [B, N] of x [B, N, H]; zeros for indices out of range."""
    is_there = ((places >= 0) & (places < x.size(1))).unsqueeze(-1)
    # pad_packed_sequence has put zeros beyond the last real element of a row
    chosen = x.gather(1, places.clamp(0, x.size(1) - 1).unsqueeze(-1).expand_as(x))
    return torch.where(is_there, chosen, torch.zeros_like(chosen))
