"""Content F1: the rule for stop words by hand, a naive recount of METEOR's real alignments."""

import numpy as np
import pytest

from fairseq_mm.metrics.meteor import Match, align
from fairseq_mm.metrics.text_scores import STOP_WORDS, content_f1

HYPOTHESIS = ["learn", "to", "mix", "a", "cake", "cake", "in", "the", "kitchen"]
REFERENCE = ["how", "to", "blend", "cake", "batter", "in", "a", "free", "kitchen", "kitchen"]
# "to", "in" and "a" of the reference are stop words; blend ~ mix; the words of a paraphrase stay
MATCHES = [
    Match(1, 1, 1, 1),  # to = to
    Match(2, 1, 2, 1),  # blend ~ mix
    Match(3, 2, 4, 1),  # cake batter ~ cake
    Match(5, 2, 6, 2),  # in a ~ in the: two words, kept
    Match(8, 1, 8, 1),  # kitchen = kitchen
    Match(7, 1, 0, 1),  # free ~ learn
]

# lines of Bart_text_only.txt where several words are aligned with one stop word
SPANS = (270, 481, 1469, 1682, 1812, 1913, 2034)


def naive_content_f1(hypothesis, reference, matches):
    """With a list for everything, and precision and recall as they are called."""
    stopped = [m for m in matches if m[1] == 1 and reference[m[0]] in STOP_WORDS]
    kept = [m for m in matches if m not in stopped]
    gone_here = [hypothesis[m[2]] for m in stopped]
    gone_there = [reference[m[0]] for m in stopped]
    here = {word for word in hypothesis if word not in gone_here}
    there = {word for word in reference if word not in gone_there}
    if not here or not there or not kept:
        return 0.0
    precision = sum(m[1] for m in kept) / len(there)
    recall = sum(m[3] for m in kept) / len(here)
    return 2 * precision * recall / (precision + recall)


def test_by_hand():
    # removed: to = to, free ~ learn. Left of the hypothesis: mix a cake in the kitchen (6);
    # of the reference: how blend cake batter in a kitchen (7)
    precision, recall = (1 + 2 + 2 + 1) / 7, (1 + 1 + 2 + 1) / 6
    expected = 2 * precision * recall / (precision + recall)
    assert content_f1(HYPOTHESIS, REFERENCE, MATCHES) == pytest.approx(expected, abs=1e-12)
    assert naive_content_f1(HYPOTHESIS, REFERENCE, MATCHES) == pytest.approx(expected, abs=1e-12)


def test_of_a_span_aligned_with_a_stop_word_only_the_first_word_is_left_out():
    # the ~ this is: "is" stays, so that two content words of the hypothesis are left, not one
    found = content_f1(
        ["this", "is", "cake"], ["the", "cake"], [Match(0, 1, 0, 2), Match(1, 1, 2, 1)]
    )
    precision, recall = 1 / 1, 1 / 2
    assert found == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-12)


def test_repeated_words_can_be_above_one():
    # two aligned words over a set of one
    assert content_f1(["x", "x"], ["x", "x"], [Match(0, 1, 0, 1), Match(1, 1, 1, 1)]) == 2.0


@pytest.mark.parametrize(
    ("hypothesis", "reference", "matches"),
    [
        ([], ["cake"], []),
        (["cake"], [], []),
        (["cake"], ["pie"], []),
        # all that is aligned is a stop word, and no word is left
        (["the"], ["the"], [Match(0, 1, 0, 1)]),
    ],
)
def test_nothing_aligned_or_no_content_words_is_zero(hypothesis, reference, matches):
    assert content_f1(hypothesis, reference, matches) == 0.0


def how2(shared_data, name):
    lines = (shared_data("how2") / "outputs" / name).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines]


def test_real_alignments_and_their_naive_recount(shared_data):
    """The golden mean is of alignments that METEOR's jar wrote."""
    pytest.importorskip("pycocoevalcap")
    picked = [*range(97), *SPANS]
    outputs, targets = how2(shared_data, "Bart_text_only.txt"), how2(shared_data, "test.tgt")
    ours = [[], *(outputs[i] for i in picked)]
    references = [["nothing"], *(targets[i] for i in picked)]
    alignments = align(ours, references)
    assert alignments[0] == []
    # "how to", "your", "in this free video clip on perennial gardening ." of the first pair
    assert [match[0] for match in alignments[1]] == [0, 3, 4, 6, 10, *range(12, 21)]
    for hypothesis, reference, matches in zip(ours, references, alignments):
        for i, length, j, own_length in matches:
            assert i + length <= len(reference)
            assert j + own_length <= len(hypothesis)
        found = content_f1(hypothesis, reference, matches)
        assert found == pytest.approx(naive_content_f1(hypothesis, reference, matches), abs=1e-12)
    scores = list(map(content_f1, ours, references, alignments))
    assert float(np.mean(scores[1:])) == pytest.approx(0.6292989758, abs=1e-9)
