"""ARPA files are read with backoff as they define it, written back, and refused when damaged."""

import gzip
import math
import random

import numpy as np
import pytest
from toy_ngrams import entries_of

from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.arpa import read_arpa, write_arpa
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney

ARPA = """made by hand

\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-1\t<unk>
-99\t<s>\t-0.5
-0.7\t</s>
-0.6\ta\t-0.2
-0.8\tb\t-0.4

\\2-grams:
-0.3\t<s> a\t-0.1
-0.4\ta b\t-0.25
-0.2\tb </s>

\\3-grams:
-0.05\t<s> a b

\\end\\
"""
SENTENCES = [["a", "b"], ["b", "a"], ["x"], []]
LOG_PROBS = [
    -0.3 - 0.05 - (0.25 + 0.2),  # <s> a; <s> a b; a b, b </s>
    -(0.5 + 0.8) - (0.4 + 0.6) - (0.2 + 0.7),  # <s>, b; b, a (<s> b is none); a, </s>
    -(0.5 + 1) - 0.7,  # <s>, <unk>; </s> (<unk> has no backoff)
    -(0.5 + 0.7),  # <s>, </s>
]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def base_10(model, sentences):
    return (model.log_probs(sentences) / math.log(10)).tolist()


def test_scores_of_a_file_by_hand(tmp_path):
    model = read_arpa(write(tmp_path / "a.arpa", ARPA))
    assert base_10(model, SENTENCES) == pytest.approx(LOG_PROBS)
    assert model.order == 3
    assert model.words == ["<unk>", "<s>", "</s>", "a", "b"]


def test_compressed_file_is_read_whatever_its_name(tmp_path):
    path = tmp_path / "a.arpa"
    path.write_bytes(gzip.compress(ARPA.encode()))
    assert base_10(read_arpa(path), SENTENCES) == pytest.approx(LOG_PROBS)


def test_other_names_of_the_unknown_word(tmp_path):
    model = read_arpa(write(tmp_path / "a.arpa", ARPA.replace("<unk>", "<UNK>")))
    assert base_10(model, [["x"]]) == pytest.approx([-2.2])
    lacking = ARPA.replace("-1\t<unk>\n", "").replace("1=5", "1=4")
    model = read_arpa(write(tmp_path / "b.arpa", lacking))
    assert base_10(model, [["x"], ["a", "b"]]) == pytest.approx([-0.5 - 100 - 0.7, LOG_PROBS[0]])


def test_inner_ngrams_may_be_missing(tmp_path):
    # pruned models lack the end of a longer n-gram: <s> a b without a b
    text = ARPA.replace("-0.4\ta b\t-0.25\n", "").replace("2=3", "2=2")
    model = read_arpa(write(tmp_path / "a.arpa", text))
    assert base_10(model, [["a", "b"]]) == pytest.approx([-0.3 - 0.05 - 0.2])


def test_sentence_before_is_no_context(tmp_path):
    text = ARPA.replace("2=3", "2=4").replace("3=1", "3=2")
    text = text.replace("\n\n\\3", "\n-0.01\t</s> <s>\t-3\n\n\\3")
    text = text.replace("\n\n\\end", "\n-0.01\t</s> <s> a\n\n\\end")
    model = read_arpa(write(tmp_path / "a.arpa", text))
    assert base_10(model, SENTENCES[:1] * 2 + SENTENCES) == pytest.approx(
        LOG_PROBS[:1] * 2 + LOG_PROBS
    )


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_written_model_is_read_back(tmp_path, order):
    rng = random.Random(0)
    lines = [
        rng.choices(["a", "é", "\u00a0", "\\data\\", "-1"], k=rng.randint(0, 6)) for _ in "x" * 50
    ]
    model = estimate_kneser_ney(lines, order=order)
    write_arpa(model, tmp_path / "a.arpa")
    read = read_arpa(tmp_path / "a.arpa")
    assert read.words == model.words
    expected, found = entries_of(model), entries_of(read)
    assert list(found) == list(expected)
    # written with 7 decimals
    np.testing.assert_allclose(list(found.values()), list(expected.values()), atol=1e-6)
    np.testing.assert_allclose(read.log_probs(lines), model.log_probs(lines), atol=1e-5)


LINE = "cannot be read as an ARPA file (line"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", "it must end with"),
        ("ngram 1=5", "ngram 1=five", f"{LINE} 4 is 'ngram 1=five'"),
        ("ngram 2=3", "ngram 3=3", f"{LINE} 5 is 'ngram 3=3'"),
        ("ngram 2=3", "ngram 2=4", "the [5, 4, 1] n-grams of each order that"),
        ("\\2-grams:", "\\3-grams:", f"{LINE} 15 is"),
        ("\\end\\", "", "says, but has [5, 3, 1]"),
        ("\\3-grams:\n-0.05\t<s> a b\n\n\\end\\\n", "", "says, but has [5, 3]"),
        ("-0.6\ta", "-O.6\ta", f"{LINE} 12 is"),
        ("-0.6\ta", "-inf\ta", f"{LINE} 12 is"),
        ("a\t-0.2", "a\tnan", f"{LINE} 12 is"),
        ("-0.6\ta", "0.6\ta", f"{LINE} 12 is"),
        ("-0.4\ta b\t-0.25", "-0.4\ta", f"{LINE} 17 is"),
        ("a b\t-0.25", "a b c -0.25", f"{LINE} 17 is"),
        ("-0.05\t<s> a b", "-0.05\t<s> a c", f"{LINE} 21 is"),
        ("-0.05\t<s> a b", "-0.05\tb a b", "'b a b' is there twice, or its first 2 words are no"),
        ("a b\t-0.25", "<s> a\t-0.25", "'<s> a' is there twice"),
        ("<s>", "<S>", "<s> and </s> must be among its 1-grams"),
    ],
)
def test_damaged_files_are_refused(tmp_path, old, new, message):
    assert old in ARPA
    path = write(tmp_path / "a.arpa", ARPA.replace(old, new))
    with pytest.raises(UserError) as error:
        read_arpa(path)
    assert str(error.value).startswith(f"{path}:")
    assert message in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.arpa: cannot be read as an ARPA file \(No such"):
        read_arpa(tmp_path / "none.arpa")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(ARPA.encode())[:-30])
    with pytest.raises(UserError, match=r"cut\.gz: cannot be read as an ARPA file \(Compressed"):
        read_arpa(tmp_path / "cut.gz")
    (tmp_path / "a.arpa").write_bytes(ARPA.encode().replace(b"\tb\t", b"\tb\xff\t"))
    with pytest.raises(UserError, match=r"a\.arpa: cannot be .* \(line 13 is"):
        read_arpa(tmp_path / "a.arpa")
