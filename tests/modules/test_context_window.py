"""Windows of neighbours, against sums written as loops."""

import torch
from numerics import assert_close

from fairseq_mm.modules.linear import ContextWindow

B, T, L, I, O = 2, 4, 3, 5, 6  # noqa: E741


def test_equals_a_sum_over_the_window_written_as_loops():
    torch.manual_seed(1)
    window = ContextWindow(L, I, O)
    x = torch.randn(B, T + L - 1, I)
    out = window(x)
    assert out.shape == (B, T, O)
    for row in range(B):
        for t in range(T):
            expected = torch.zeros(O)
            for i in range(L):
                expected = expected + window.weight[:, i * I : (i + 1) * I] @ x[row, t + i]
            torch.testing.assert_close(out[row, t], expected)


def test_rows_of_the_folded_table_add_up_to_the_window():
    torch.manual_seed(2)
    window = ContextWindow(L, I, O)
    table = torch.randn(7, I)
    words = torch.randint(7, (B, T + L - 1))
    folded = window.project_table(table)
    assert folded.shape == (L, 7, O)
    added = sum(folded[i][words[:, i : i + T]] for i in range(L))
    assert_close(added, window(table[words]))
