"""METEOR: equal to the jar's frozen numbers, its rules, input of any kind, no torch or fairseq."""

import subprocess
import sys

import pytest
from meteor_cases import ALIGNMENTS, ITEMS, SCORES, parse_alignment

from fairseq_mm.errors import UserError
from fairseq_mm.metrics import _meteor_alignment
from fairseq_mm.metrics._meteor_words import normalize
from fairseq_mm.metrics.meteor import (
    Match,
    align,
    meteor,
    meteor_sums,
    score_sums,
)

HYPOTHESES, REFERENCES = zip(*ITEMS)


@pytest.fixture(autouse=True)
def needs_tables():
    pytest.importorskip("pycocoevalcap")


@pytest.mark.parametrize(("task", "normalizes"), SCORES)
def test_scores_are_those_of_the_jar(task, normalizes):
    corpus, scores = meteor(HYPOTHESES, REFERENCES, task=task, normalize=normalizes)
    assert [corpus, *scores] == pytest.approx(SCORES[task, normalizes], abs=1e-8)


def test_alignments_are_those_of_the_jar():
    pairs = [(text.split(), other.split()) for text, texts in ITEMS for other in texts]
    expected = [[Match(*match) for match in parse_alignment(text)] for text in ALIGNMENTS]
    assert align(*zip(*pairs)) == expected


@pytest.mark.parametrize(
    ("normalizes", "expected"), [(True, 0.32500671986268), (False, 0.323987773445627)]
)
def test_real_summaries_score_as_by_the_jar(shared_data, normalizes, expected):
    """The first 300 summaries of How2; the jar computed the scores."""
    folder = shared_data("how2") / "outputs"
    texts, targets = (
        (folder / name).read_text(encoding="utf-8").splitlines()[:300]
        for name in ("Bart_text_only.txt", "test.tgt")
    )
    corpus, _ = meteor(texts, [[text] for text in targets], normalize=normalizes)
    assert corpus == pytest.approx(expected, abs=1e-11)


def test_batches_change_nothing(monkeypatch):
    expected = meteor(HYPOTHESES, REFERENCES)
    pairs = [text.split() for text in HYPOTHESES], [texts[0].split() for texts in REFERENCES]
    alignments = align(*pairs)
    monkeypatch.setattr("fairseq_mm.metrics.meteor._CHARACTERS_AT_ONCE", 150)
    assert meteor(HYPOTHESES, REFERENCES) == expected
    assert align(*pairs) == alignments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Fox isn't well-known.", "mr. fox isn 't well known ."),
        ("in the U.S. now", "in the us now"),
        ("at No. 5 or no. one", "at no. 5 or no. one"),
        ("so... 'tis 3.5, a,b", "so ... ' tis 3.5 , a , b"),
        ("a\u2013b \u201cc\u201d\u00a0d", 'a - b " c " d'),
        ("end. Next", "end . next"),
    ],
)
def test_normalized_texts(text, expected):
    assert " ".join(normalize(text, {"Mr": False, "No": True})) == expected


def test_control_characters_and_lone_surrogates_are_characters_like_others():
    texts = ["\x00a\x01 \x02", "\x0b", "\x1c\x1d", "\ud800 b", "\U0001f600"]
    references = [["a\x01"], ["\x0b"], ["x"], ["? b"], ["\ud83d\ude00"]]
    for normalizes in (True, False):
        _, scores = meteor(texts, references, normalize=normalizes)
        assert scores == [1, 0, 0, 1, 0]
    assert align([["\ud800", "b"]], [["?", "b"]]) == [[Match(0, 1, 0, 1), Match(1, 1, 1, 1)]]


def test_texts_that_would_take_hours_are_one_line():
    alike = "a " * 100_000
    with pytest.raises(UserError, match="METEOR aligns texts in which"):
        meteor(["a", alike], [["b"], [alike]])
    with pytest.raises(UserError, match="up to 1,000,000 pairs of words match"):
        align([alike.split()], [alike.split()[1:]])


def test_the_limit_counts_paraphrases(monkeypatch):
    """The table has most paraphrases in both directions, which are two matches, as in the jar."""
    pair = [["because", "of", "us"]], [["due", "to", "us"]]
    monkeypatch.setattr(_meteor_alignment, "MAX_MATCHES", 7)
    assert align(*pair) == [[Match(0, 2, 0, 2), Match(2, 1, 2, 1)]]
    monkeypatch.setattr(_meteor_alignment, "MAX_MATCHES", 6)
    with pytest.raises(UserError, match="METEOR aligns"):
        align(*pair)


WITHOUT_TORCH = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(("torch", "torchvision", "fairseq", "fairseq_cli")))
import fairseq_mm.metrics
for module in pkgutil.iter_modules(fairseq_mm.metrics.__path__):
    importlib.import_module(f"fairseq_mm.metrics.{module.name}")
from fairseq_mm.metrics.meteor import meteor
print(meteor(["a dog"], [["a dog"]]))
"""


def test_metrics_need_neither_torch_nor_fairseq():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1.0, [1.0])\n", "")


def test_summed_counts_give_the_score_of_every_part_of_a_corpus():
    texts = ["a dog runs", "the cats sleep", "a man is here", "no word matches", "a dog runs"]
    references = [
        ["a dog runs"],  # one chunk: its penalty does not count in a corpus
        ["the cat is sleeping now", "cats"],
        ["here is a man"],
        ["something else"],
        ["runs a dog"],
    ]
    for task in ("rank", "hter"):
        scores, counts = meteor_sums(texts, references, task=task)
        assert scores == meteor(texts, references, task=task)[1]
        for items in ([0], [3], [0, 0], [0, 1, 2], [1, 1, 2, 4], range(5)):
            part = [texts[i] for i in items], [references[i] for i in items]
            expected = meteor(*part, task=task)[0]
            assert score_sums(task, counts[[*items]].sum(0)) == expected
    assert meteor_sums([], [])[1].shape == (0, len(counts[0]))
