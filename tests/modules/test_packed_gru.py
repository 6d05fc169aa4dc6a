"""A GRU that reads no padding."""

import pytest
import torch

from fairseq_mm.modules.packed_rnn import PackedGRU

B, N, D, H, LAYERS = 4, 6, 3, 5, 2
PADDING = {
    "left": [[0], [1, 0], [], [2, 1, 0]],
    "right": [[5], [5, 4], [], [5, 4, 3, 2]],
    "anywhere": [[0, 5], [2], [1, 3, 5], []],
    "none": [[], [], [], []],
}


@pytest.mark.parametrize("side", PADDING)
def test_each_row_is_what_a_gru_makes_of_its_real_elements(side):
    torch.manual_seed(6)
    module = PackedGRU(D, H, LAYERS)
    x = torch.randn(B, N, D)
    padding_mask = torch.zeros(B, N, dtype=torch.bool)
    for row, places in enumerate(PADDING[side]):
        padding_mask[row, places] = True
    x[padding_mask] = 1e4
    out = module(x, padding_mask)
    for row in range(B):
        real = ~padding_mask[row]
        alone = module.gru(x[row : row + 1, real])[0][0]
        torch.testing.assert_close(out[row, real], alone)
        assert not out[row, ~real].any()
