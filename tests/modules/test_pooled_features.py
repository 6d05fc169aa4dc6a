"""Features of images become one vector each."""

import pytest
import torch

from fairseq_mm.models._bases import SCALINGS, masked_mean, scale_vectors


def test_mean_is_over_real_rows():
    features = torch.randn(2, 3, 5)
    padding_mask = torch.tensor([[False, False, False], [False, True, True]])
    means = masked_mean(features, padding_mask)
    torch.testing.assert_close(means, torch.stack([features[0].mean(0), features[1, 0]]))
    one = masked_mean(features[:, :1].half(), padding_mask[:, :1])
    assert torch.equal(one, features[:, 0].half().float())


def test_vectors_are_scaled_as_asked_for():
    x = torch.tensor([[4.0, -9.0, 0.0, 1.0, 16.0]])
    # roots 2 -3 0 1 4, less their mean 0.8: 1.2 -3.8 -0.8 0.2 3.2; mean square 5.36
    roots = torch.tensor([[1.2, -3.8, -0.8, 0.2, 3.2]]) / 5.36**0.5
    torch.testing.assert_close(scale_vectors(x, "root"), roots)
    # squares 16 + 81 + 0 + 1 + 256 = 354
    torch.testing.assert_close(scale_vectors(x, "scale"), x / (354 / 5) ** 0.5)
    torch.testing.assert_close(scale_vectors(x, "unit"), x / 354**0.5)
    assert torch.equal(scale_vectors(x, "none"), x)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_zeros_stay_zeros(scaling):
    assert torch.equal(scale_vectors(torch.zeros(2, 3), scaling), torch.zeros(2, 3))
