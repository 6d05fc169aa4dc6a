import pytest
import torch

from fairseq_mm.modules.packed_rnn import SkippingLSTM


@pytest.mark.parametrize("missing", [[], [0], [4], [1, 2], [0, 1, 3], [0, 1, 2, 3], [1, 2, 3, 4]])
def test_missing_elements_are_passed_over(missing):
    torch.manual_seed(4)
    lstm = SkippingLSTM(3, 2, 2, dropout=0.0).eval()
    x = torch.randn(2, 5, 3)
    padding_mask = torch.zeros(2, 5, dtype=torch.bool)
    padding_mask[0, missing] = True
    out = lstm(x, padding_mask)
    real = [i for i in range(5) if i not in missing]
    alone = lstm.lstm(x[:1, real])[0][0]
    for i in range(5):
        before = [place for place, j in enumerate(real) if j <= i]
        after = [place for place, j in enumerate(real) if j >= i]
        forward = alone[before[-1], :2] if before else torch.zeros(2)
        backward = alone[after[0], 2:] if after else torch.zeros(2)
        torch.testing.assert_close(out[0, i], torch.cat([forward, backward]))
    torch.testing.assert_close(out[1:], lstm.lstm(x[1:])[0])
