"""Document frequencies that are written are read again."""

import math

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.document_frequencies import (
    count_frequencies,
    frequencies_path,
    read_frequencies,
    write_frequencies,
)

ITEMS = [
    [["a", "dog", "runs", "fast", "</s>"], ["a", "dog", "</s>"]],
    [["a", "dog", "runs", "fast", "now", "</s>"]],
    [["two", "men", "</s>"]],
]


def test_ngrams_of_all_orders_come_back(tmp_path):
    counts = count_frequencies(ITEMS)
    assert counts[("a", "dog")] == 2  # once an item, though it has two such references
    assert counts[("a", "dog", "runs", "fast")] == 2
    assert {len(ngram) for ngram in counts} == {1, 2, 3, 4}
    path = frequencies_path(str(tmp_path), "train")
    write_frequencies(path, counts, len(ITEMS), spell=str, texts="digest")
    weights = read_frequencies(str(tmp_path), "train", find=list, texts="digest")
    assert set(weights.squares) == set(counts)
    for ngram, count in counts.items():
        weight = math.log(len(ITEMS) / count)
        assert weights.squares[ngram] == pytest.approx(weight**2), ngram
    assert weights.unseen == pytest.approx(math.log(len(ITEMS)) ** 2)
    with pytest.raises(UserError, match="was counted from other texts"):
        read_frequencies(str(tmp_path), "train", find=list, texts="other")
