"""A bidirectional GRU that reads no padding, wherever it is."""

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
