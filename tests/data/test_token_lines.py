"""Cut lines keep the ends that a model reads."""

import numpy as np
import pytest
import torch

from fairseq_mm.data.truncation import CutLines, TensorLines

EOS, BOS = 2, 0
LINES = TensorLines([torch.tensor([5, 6, 7, 8, EOS]), torch.tensor([9, EOS])])


@pytest.mark.parametrize(
    ("options", "expected", "num_cut"),
    [
        ({}, [[5, 6, EOS], [9, EOS]], 1),
        ({"start": BOS}, [[BOS, 5, EOS], [BOS, 9, EOS]], 1),
        ({"keeps_end": False}, [[5, 6, 7], [9]], 1),
    ],
)
def test_lines_are_cut_between_their_ends(options, expected, num_cut):
    lines = CutLines(LINES, 3, EOS, **options)
    assert [lines[i].tolist() for i in range(2)] == expected
    assert lines.sizes.tolist() == [len(line) for line in expected]
    assert (len(lines), lines.num_cut) == (2, num_cut)


def test_a_line_that_just_fits_is_whole():
    lines = CutLines(LINES, 5, EOS)
    assert torch.equal(lines[0], LINES[0])
    assert lines.num_cut == 0
    assert lines.sizes.dtype == np.int64
