"""The estimator against Chen and Goodman's equations as loops, and by hand."""

import itertools
import math
import random
from collections import Counter

import pytest
from toy_ngrams import backed_off_log_prob, entries_of

from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney, read_token_lines


def random_lines(count, num_words, seed):
    """A few words are frequent, and what follows depends on the word before."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        line = []
        for _ in range(rng.randint(0, 7)):
            place = int(rng.paretovariate(0.8)) + (line[-1] if line else 0)
            line.append(place % num_words)
        lines.append([f"w{place}" for place in line])
    return lines


TINY = [["a", "b"], ["a", "c"], ["a", "b"], []]
LARGER = random_lines(300, 19, seed=1)
# n1, n2, n3 = 2, 1, 4 words: D2 = 2 - 3 * 2 / (2 + 2) * 4 / 1 < 0
ARTIFICIAL = [[*"abccdddeeefffgggh"]]


class ChenGoodman:
    """p(w | u) by recursion over dictionaries."""

    def __init__(self, lines, order):
        self.order = order
        self.counts = Counter()
        for line in lines:
            marked = ("<s>", *line, "</s>")
            for n in range(1, order + 1):
                self.counts.update(marked[i : i + n] for i in range(len(marked) - n + 1))
        self.vocabulary = {w for line in lines for w in line} | {"</s>", "<unk>"}
        self.adjusted = {ngram: self.adjust(ngram) for ngram in self.counts if ngram != ("<s>",)}
        self.discounts = [self.discount(n) for n in range(1, order + 1)]

    def adjust(self, ngram):
        if len(ngram) == self.order or ngram[0] == "<s>":
            return self.counts[ngram]
        return len({x[0] for x in self.counts if len(x) == len(ngram) + 1 and x[1:] == ngram})

    def discount(self, n):
        counts_of_counts = Counter(a for ngram, a in self.adjusted.items() if len(ngram) == n)
        n1, n2, n3, n4 = (counts_of_counts[j] for j in (1, 2, 3, 4))
        if 0 in (n1, n2, n3):
            return [0, 0.5, 1, 1.5]
        y = n1 / (n1 + 2 * n2)
        discounts = [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        return discounts if min(discounts[1:]) > 0 else [0, 0.5, 1, 1.5]

    def prob(self, history, word):
        n = len(history) + 1
        lower = self.prob(history[1:], word) if history else 1 / len(self.vocabulary)
        total = mass = 0
        for other in self.vocabulary:
            a = self.adjusted.get((*history, other), 0)
            total += a
            mass += self.discounts[n - 1][min(a, 3)]
        if not total:
            return lower
        a = self.adjusted.get((*history, word), 0)
        return (a - self.discounts[n - 1][min(a, 3)]) / total + mass / total * lower


def histories_of(vocabulary, order):
    """All that the model can be asked for, in one list."""
    words = sorted(vocabulary - {"</s>"})
    for n in range(order):
        for history in itertools.product(words, repeat=n):
            yield history
            if n:
                yield ("<s>", *history[1:])


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("lines", [TINY, LARGER, ARTIFICIAL], ids=["tiny", "larger", "artificial"])
def test_every_probability_is_that_of_the_equations(lines, order):
    expected = ChenGoodman(lines, order)
    entries = entries_of(estimate_kneser_ney(lines, order=order))
    for history in histories_of(expected.vocabulary, order):
        total = 0.0
        for word in expected.vocabulary:
            prob = 10 ** backed_off_log_prob(entries, history, word)
            assert prob == pytest.approx(expected.prob(history, word), abs=1e-10)
            total += prob
        assert total == pytest.approx(1, abs=1e-10)


def test_numbers_by_hand():
    # <s> a b </s>, <s> a c </s>: no n-gram has count 3, so that D is 0.5, 1, 1.5
    # one word stands before a, b, c, two before </s>: gamma() = (3 * 0.5 + 1) / 5 = 0.5, V = 5
    a = b = 0.5 / 5 + 0.5 / 5
    end = (2 - 1) / 5 + 0.5 / 5
    unknown = 0.5 / 5
    # gamma(<s>) = 1 / 2, gamma(a) = (0.5 + 0.5) / 2, gamma(b) = 0.5 / 1, gamma(<unk>) = 1
    start_a, start_b, start_unknown = (2 - 1) / 2 + 0.5 * a, 0.5 * b, 0.5 * unknown
    a_b, b_end, start_end = 0.5 / 2 + 0.5 * b, 0.5 / 1 + 0.5 * end, 0.5 * end
    model = estimate_kneser_ney(iter([["a", "b"], ["a", "c"]]), order=2)
    found = model.log_probs([["a", "b"], ["b"], [], ["x"]])
    expected = [start_a * a_b * b_end, start_b * b_end, start_end, start_unknown * end]
    assert found.tolist() == pytest.approx([math.log(p) for p in expected], abs=1e-12)
    # as lmplz -o 2 --discount_fallback writes them, with 7 or 8 decimals
    entries = entries_of(model)
    assert entries[("<unk>",)] == pytest.approx((-1, 0), abs=1e-6)
    assert entries[("</s>",)] == pytest.approx((-0.5228787, 0), abs=1e-6)
    assert entries[("a",)] == pytest.approx((-0.69897, -0.30103), abs=1e-6)
    assert entries["<s>", "a"][0] == pytest.approx(-0.22184873, abs=1e-6)
    assert entries["a", "b"][0] == pytest.approx(-0.45593196, abs=1e-6)
    assert entries["b", "</s>"][0] == pytest.approx(-0.18708666, abs=1e-6)


def test_unknown_word_of_the_text_is_a_word():
    model = estimate_kneser_ney([["a", "<unk>"]] * 9 + [["a", "b"]])
    unknown, b = model.log_probs([["a", "x"], ["a", "b"]])
    assert unknown > b
    assert model.words == ["<unk>", "<s>", "</s>", "a", "b"]


def test_lines_of_all_files_without_blank_ones(tmp_path):
    (tmp_path / "a").write_text("\ufeffa dog\n\n  two  men\n")  # a byte order mark is no word
    (tmp_path / "b").write_text("a cat")
    lines = list(read_token_lines([tmp_path / "a", str(tmp_path / "b")]))
    assert lines == [["a", "dog"], ["two", "men"], ["a", "cat"]]
    (tmp_path / "b").write_text("a dog\na <s> b\n")
    with pytest.raises(UserError, match=r"b:2: must be words, without <s> and </s>"):
        list(read_token_lines([tmp_path / "b"]))
