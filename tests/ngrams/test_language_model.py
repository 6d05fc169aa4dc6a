"""A file's content says whether it is an ARPA file or a binary one of KenLM."""

import math
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.arpa import KenlmModel, load_language_model, write_arpa
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney

LINES = [random.Random(i).choices("abcde", range(1, 6), k=i % 7) for i in range(50)]


class StandIn:
    """Scores as ``kenlm.Model`` does: texts in, logarithms to base 10 out."""

    order = 4

    def __init__(self, path):
        if path.endswith("broken.bin"):
            raise OSError("Cannot read model")

    def score(self, text, bos, eos):
        return -float(len(text)) if bos and eos else 0.0


@pytest.fixture
def binary_file(tmp_path):
    path = tmp_path / "a.arpa"  # a misleading name
    path.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0\0")
    return path


def test_arpa_file_needs_no_kenlm(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", None)
    model = estimate_kneser_ney(LINES)
    write_arpa(model, tmp_path / "a.bin")
    found = load_language_model(tmp_path / "a.bin")
    assert found.order == 3
    np.testing.assert_allclose(found.log_probs(LINES), model.log_probs(LINES), atol=1e-6)


def test_binary_file_is_scored_by_kenlm(binary_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", SimpleNamespace(Model=StandIn))
    model = load_language_model(binary_file)
    assert model.order == 4
    expected = [-3 * math.log(10), 0]
    assert model.log_probs([["a", "b"], []]).tolist() == pytest.approx(expected)
    assert model.log_probs([]).tolist() == []


def test_files_that_are_no_models_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", SimpleNamespace(Model=StandIn))
    with pytest.raises(UserError, match=r"none: cannot be read as an ARPA file \(No such file"):
        load_language_model(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(UserError, match="empty: cannot be read as an ARPA file"):
        load_language_model(tmp_path / "empty")
    with pytest.raises(UserError, match=r"broken\.bin: cannot be loaded by kenlm \(Cannot read"):
        KenlmModel(tmp_path / "broken.bin")


def test_scores_equal_those_of_kenlm(tmp_path):
    pytest.importorskip("kenlm", reason="kenlm is not installed")
    write_arpa(estimate_kneser_ney(LINES, order=3), tmp_path / "a.arpa")
    sentences = [*LINES, [], ["x"], ["a", "x", "b"], list("edcba")]
    own = load_language_model(tmp_path / "a.arpa")
    theirs = KenlmModel(tmp_path / "a.arpa")
    assert own.order == theirs.order
    # kenlm adds in single precision
    np.testing.assert_allclose(own.log_probs(sentences), theirs.log_probs(sentences), atol=1e-5)
