"""Perplexity: equation 5, sums over a corpus, and fairseq-generate's output."""

import math

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.perplexity import (
    LogProbability,
    corpus_perplexity,
    mean_sentence_perplexity,
    perplexity_rows,
    read_log_probabilities,
)

OUTPUT = """\
2026-01-01 00:00:00 | INFO | fairseq_cli.generate | loading model(s) from m.pt
T-1\ta <<unk>> runs
H-1\t-1.75\ta <unk> runs
D-1\t-1.75\ta <unk> runs
P-1\t-1.0000 -2.0000 -3.0000 -1.0000
T-0\tdogs
H-0\t-2.0\tdogs
D-0\t-2.0\tdogs
P-0\t-3.0000 -1.0000
2026-01-01 00:00:01 | INFO | fairseq_cli.generate | Generate valid with beam=5: BLEU4 = 100
"""


@pytest.fixture
def write(tmp_path):
    def write_text(text):
        path = tmp_path / "scored.txt"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_text


def test_sentence_perplexity_is_equation_5():
    probabilities = [0.5, 0.125, 0.25]
    L = len(probabilities)
    log2_perplexity = -1 / L * sum(math.log2(p) for p in probabilities)
    text = LogProbability(sum(math.log2(p) for p in probabilities), L)
    assert (
        mean_sentence_perplexity([text]) == pytest.approx(2**log2_perplexity) == pytest.approx(4.0)
    )


def test_corpus_weighs_tokens_and_mean_weighs_sentences():
    texts = [LogProbability(-4.0, 2), LogProbability(-18.0, 6)]  # 2^2 and 2^3
    assert mean_sentence_perplexity(texts) == pytest.approx((4 + 8) / 2)
    assert corpus_perplexity(iter(texts)) == pytest.approx(2 ** (22 / 8))


def test_reads_positional_scores_by_line_number(write):
    assert read_log_probabilities(write(OUTPUT))[0] == {
        1: LogProbability(-7.0, 4),
        0: LogProbability(-4.0, 2),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a dog\n", "must end with a line break and have lines P-NUMBER"),
        ("P-0\t-1.0\nP-0\t-1.0\n", "look at P-0"),
        ("P-3\t-1.0\nP-5\t-1.0 x\n", "finite log2-probabilities.*look at P-5"),
        ("P-0\t-inf\n", "look at P-0"),
        ("P-0\t\n", "look at P-0"),
        ("P-0\t-1.0", "look at P-0"),
        (
            "T-0\tdogs\nH-0\t-1\tcats\nD-0\t-1\tcats\nP-0\t-1.0\n",
            r"scores the model's own texts \(1 of 1 differ.*needs fairseq-generate --score-ref",
        ),
    ],
)
def test_wrong_files_are_refused(write, text, message):
    with pytest.raises(UserError, match=message):
        read_log_probabilities(write(text))


def test_lines_that_are_not_scored_are_counted_in_the_rows():
    texts = {0: LogProbability(-2.0, 1), 2: LogProbability(-4.0, 1)}
    tokens, sentences = perplexity_rows(texts, expected=4)
    assert tokens.value == pytest.approx(2**3)
    assert sentences.value == pytest.approx((2**2 + 2**4) / 2)
    assert tokens.note == sentences.note == "2 of 4 lines not scored, such as [1, 3]"
    assert [row.note for row in perplexity_rows(texts)] == ["", ""]
    assert [row.note for row in perplexity_rows(texts, expected=1)] == ["", ""]
    for row in perplexity_rows(None, expected=2):
        assert (row.value, row.note) == (None, "2 of 2 lines not scored, such as [0, 1]")


@pytest.mark.parametrize(("differing", "is_refused"), [(1, False), (2, True)])
def test_more_than_half_of_the_targets_must_be_scored(tmp_path, differing, is_refused):
    lines = []
    for line in range(2):
        hypothesis = "other words" if line < differing else f"text {line}"
        lines += [f"T-{line}\ttext {line}", f"D-{line}\t-1.0\t{hypothesis}", f"P-{line}\t-1.0 -1.0"]
    path = tmp_path / "scores.txt"
    path.write_text("\n".join([*lines, ""]))
    if is_refused:
        with pytest.raises(UserError, match="scores the model's own texts"):
            read_log_probabilities(str(path))
    else:
        assert len(read_log_probabilities(str(path))[0]) == 2
