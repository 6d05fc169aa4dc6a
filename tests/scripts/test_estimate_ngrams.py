"""``scripts/estimate_ngrams.py``: an ARPA file of text files."""

import functools
import os

import pytest

from fairseq_mm.ngrams.arpa import read_arpa
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney


@pytest.fixture
def estimate(run_script):
    return functools.partial(run_script, "estimate_ngrams.py")


@pytest.mark.parametrize(
    ("options", "order", "sizes"),
    [
        ([], 3, "7 1-grams, 7 2-grams, 7 3-grams"),
        (["--order", 2], 2, "7 1-grams, 7 2-grams"),
    ],
)
def test_model_of_all_files_is_written(estimate, tmp_path, options, order, sizes):
    (tmp_path / "a.txt").write_text("a dog runs\na dog\n")
    (tmp_path / "b.txt").write_text("a cat runs\n")
    output = tmp_path / "model.arpa"
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    status, out, err = estimate(*texts, "--output", output, *options)
    assert (status, out, err) == (0, f"{output}: {sizes}\n", "")
    sentences = [["a", "dog", "runs"], ["a", "dog"], ["a", "cat", "runs"]]
    expected = estimate_kneser_ney(sentences, order=order).log_probs(sentences)
    assert read_arpa(output).log_probs(sentences).tolist() == pytest.approx(expected, abs=1e-6)


def test_mistakes_are_one_line_each_and_write_nothing(estimate, tmp_path):
    text, output = tmp_path / "a.txt", tmp_path / "model.arpa"
    text.write_text("a dog\na </s> b\n")
    status, out, err = estimate(text, "--output", output)
    assert (status, out) == (2, "")
    assert err == f"estimate_ngrams.py: {text}:2: must be words, without <s> and </s>.\n"
    status, _, err = estimate(text, "--output", output, "--order", 0)
    assert status == 2
    assert "argument --order: must be a number of 1 or more, but is '0'" in err
    text.write_text("a dog\n")
    status, _, err = estimate(text, "--output", tmp_path / "." / "a.txt")
    assert (status, err.count("\n")) == (2, 1)
    assert "a.txt: is the text to read" in err
    assert text.read_text() == "a dog\n"
    assert os.listdir(tmp_path) == ["a.txt"]
