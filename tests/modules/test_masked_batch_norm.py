import torch
from numerics import assert_close
from torch import nn

from fairseq_mm.models._image_sequence import MaskedBatchNorm


def test_equals_batch_normalisation_of_the_real_rows():
    torch.manual_seed(3)
    x = torch.randn(4, 5, 3) * 7 + 2
    valid_mask = torch.rand(4, 5) > 0.3
    ours, theirs = MaskedBatchNorm(3), nn.BatchNorm1d(3, momentum=None)
    for norm in (ours, theirs):
        nn.init.constant_(norm.weight, 1.5)
        nn.init.constant_(norm.bias, -0.5)
    expected = theirs(x[valid_mask])
    assert_close(ours(x, valid_mask)[valid_mask], expected)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x, valid_mask)[valid_mask], theirs.eval()(x[valid_mask]))


def test_statistics_are_the_mean_of_batches_until_momentum_is_larger():
    torch.manual_seed(3)
    norm = MaskedBatchNorm(2, momentum=0.4)
    expected = torch.zeros(2)
    for share in (1, 1 / 2, 0.4, 0.4):
        x = torch.randn(6, 2) * 0.01 + 3
        norm(x, torch.ones(6, dtype=torch.bool))
        expected = expected * (1 - share) + x.mean(0) * share
    torch.testing.assert_close(norm.running_mean, expected)
    assert norm.running_var.max() < 1e-3


def test_a_single_real_row_is_normalised_with_the_running_statistics():
    norm = MaskedBatchNorm(2)
    x = torch.tensor([[[3.0, -1.0], [9.0, 9.0]]])
    out = norm(x, torch.tensor([[True, False]]))
    torch.testing.assert_close(out[0, 0], x[0, 0] / (1 + 1e-5) ** 0.5)
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert norm.num_batches == 0


def test_running_statistics_stay_in_single_precision():
    norm = MaskedBatchNorm(2).half()
    norm(torch.randn(3, 2).half() * 0.01 + 1, torch.ones(3, dtype=torch.bool))
    assert norm.running_mean.dtype == norm.running_var.dtype == torch.float32
    assert norm.weight.dtype == torch.float16
