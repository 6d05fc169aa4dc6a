"""METEOR's official jar gives the frozen numbers, by which the Python program is tested."""

import shutil
from functools import partial

import pytest
from meteor_cases import ALIGNMENTS, ITEMS, SCORES, parse_alignment

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.meteor import Match, align
from fairseq_mm.metrics.meteor import meteor as any_meteor

meteor = partial(any_meteor, jar=True)


@pytest.fixture
def needs_jar():
    if shutil.which("java") is None:
        pytest.skip("no java on the PATH: METEOR's jar cannot run")
    pytest.importorskip("pycocoevalcap")


def test_jar_gives_the_frozen_numbers(needs_jar):
    hypotheses, references = zip(*ITEMS)
    corpus, scores = meteor(hypotheses, references)
    assert [corpus, *scores] == pytest.approx(SCORES["rank", True], abs=1e-8)


@pytest.mark.slow
def test_jar_gives_the_frozen_numbers_of_all_tasks_and_alignments(needs_jar):
    hypotheses, references = zip(*ITEMS)
    for (task, normalize), expected in SCORES.items():
        corpus, scores = meteor(hypotheses, references, task=task, normalize=normalize)
        assert [corpus, *scores] == pytest.approx(expected, abs=1e-8)
    pairs = [(text.split(), other.split()) for text, texts in ITEMS for other in texts]
    found = align(*zip(*pairs), jar=True)
    assert found == [[Match(*m) for m in parse_alignment(text)] for text in ALIGNMENTS]


def test_a_java_that_fails_or_is_missing_is_one_line(monkeypatch, tmp_path):
    pytest.importorskip("pycocoevalcap")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="METEOR's jar needs Java, but no `java` is on the PATH"):
        meteor(["a"], [["a"]])
    (tmp_path / "java").write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    (tmp_path / "java").chmod(0o755)
    with pytest.raises(UserError, match=r"ended with status 3: 'out of memory'\.$"):
        meteor(["a"], [["a"]])
