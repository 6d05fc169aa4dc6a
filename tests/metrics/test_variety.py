"""Self-BLEU, repeated n-grams and distinct-n at equal length: by hand, and against naive loops."""

import random

import pytest

from fairseq_mm.metrics.bleu import bleu_from_sums, bleu_sums, self_bleu
from fairseq_mm.metrics.score_rows import TokenizedItems
from fairseq_mm.metrics.text_scores import repeated_ngrams, score_texts


def random_texts(seed, count):
    generator = random.Random(seed)
    return [[generator.choice("abc") for _ in range(generator.randint(0, 9))] for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_self_bleu_equals_bleu_against_all_other_texts(seed):
    texts = random_texts(seed, 2 + 2 * seed)
    expected = [
        bleu_from_sums(bleu_sums(text, texts[:i] + texts[i + 1 :]))[3]
        for i, text in enumerate(texts)
    ]
    assert self_bleu(texts) == expected  # the same sums, so the same floats


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_repeated_ngrams_equal_a_loop(n):
    for text in random_texts(n, 30):
        repeated = total = 0
        for i in range(len(text) - n + 1):
            total += 1
            repeated += any(text[i : i + n] == text[j : j + n] for j in range(i))
        expected = pytest.approx(repeated / total) if total else None
        assert repeated_ngrams(text, n) == expected


def test_rows_show_the_value_of_people_beside_the_systems():
    hypotheses = [list("aaab"), list("ab"), list("acde")]
    references = [[list("aabc"), list("abcd")], [list("abcd")], [list("efgh")]]
    items = TokenizedItems(hypotheses, references, "none", first_words=4)
    rows = {row.name: row for row in score_texts(items, ["self_bleu", "seq_rep", "first_distinct"])}
    assert rows["seq_rep1"].value == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert rows["seq_rep1"].note == "people: 0.06250"  # a of aabc, of four references
    assert rows["seq_rep1"].per_item == pytest.approx([1 / 2, 0, 0])
    assert (rows["seq_rep3"].scored, rows["seq_rep3"].per_item[1]) == (2, None)
    assert rows["seq_rep2"].value == pytest.approx((1 / 3 + 0 + 0) / 3)
    assert rows["first_distinct1"].value == pytest.approx(5 / 8)  # a b c d e
    assert rows["first_distinct1"].scored == 2
    # a b c | d e f g h of 12 words
    assert rows["first_distinct1"].note == "people: 0.66667 (3 texts); 1 shorter texts left out"
    assert "|words:first-4|" in rows["first_distinct2"].signature
    people = self_bleu([texts[0] for texts in references])
    assert rows["self_bleu"].note == f"people: {sum(people) / 3:.5f}"
    assert "|of:corpus-3-texts|order:4|length:closest|smooth:none|" in rows["self_bleu"].signature
