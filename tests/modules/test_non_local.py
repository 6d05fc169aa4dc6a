import torch
from numerics import assert_close

from fairseq_mm.models._image_sequence import NonLocalBlock


def randomise(block):
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.4)


def test_equals_equations_1_to_4_in_loops():
    torch.manual_seed(2)
    block = NonLocalBlock(6).eval()
    randomise(block)
    x = torch.randn(2, 5, 6)
    z = block(x, torch.ones(2, dtype=torch.bool))
    for b in range(2):
        for i in range(5):
            y = torch.zeros(3)
            for j in range(5):
                y += (block.theta(x[b, i]) @ block.phi(x[b, j])) * block.g(x[b, j])
            assert_close(z[b, i], block.output(y / 5) + x[b, i])


def test_starts_as_the_identity_with_and_without_batch_normalisation():
    x = torch.randn(2, 4, 6)
    for has_batch_norm in (False, True):
        block = NonLocalBlock(6, has_batch_norm=has_batch_norm)
        assert torch.equal(block(x, torch.ones(2, dtype=torch.bool)), x)


def test_batch_normalisation_leaves_missing_grids_out():
    torch.manual_seed(2)
    block = NonLocalBlock(6, has_batch_norm=True)
    randomise(block)
    x = torch.randn(3, 4, 6)
    valid_mask = torch.tensor([True, False, True])
    z = block(x, valid_mask)
    assert_close(z[valid_mask], block(x[valid_mask], torch.ones(2, dtype=torch.bool)))
