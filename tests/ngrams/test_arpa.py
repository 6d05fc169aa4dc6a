"""ARPA files are read with backoff as they define it, written back, and refused when damaged."""

import gzip
import math
import os
import random

import numpy as np
import pytest
from toy_ngrams import entries_of

from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.arpa import read_arpa, write_arpa
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney
from fairseq_mm.ngrams.ngram_model import NgramModel

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


def test_order_of_lines_and_spaces_do_not_matter(tmp_path):
    sections = ARPA.split("\n\n")
    header, *lines = sections[3].split("\n")
    sections[3] = "\n".join([header, *reversed(lines)])
    text = "\r\n".join("\n\n".join(sections).replace("\t", "  ").split("\n"))
    assert base_10(read_arpa(write(tmp_path / "a.arpa", text)), SENTENCES) == pytest.approx(
        LOG_PROBS
    )


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


def test_model_that_no_file_can_hold_is_not_written(tmp_path):
    model = estimate_kneser_ney([["ice cream"]])
    with pytest.raises(UserError, match=r"a\.arpa: words must have no spaces, but 'ice cream' is"):
        write_arpa(model, tmp_path / "a.arpa")
    with pytest.raises(UserError, match="words must have no spaces, but '' is one of them"):
        write_arpa(NgramModel([""], []), tmp_path / "a.arpa")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", ": must be an ARPA file, but has no line \\data\\."),
        ("ngram 1=5", "ngram 1=five", ":4: must be `ngram 1=` and a number, but is ngram 1=five"),
        ("ngram 2=3", "ngram 3=3", ":5: must be `ngram 2=` and a number, but is ngram 3=3"),
        (
            "ngram 1=5\nngram 2=3\nngram 3=1\n",
            "",
            ":5: must be `ngram 1=` and a number, but there is none.",
        ),
        (
            "ngram 2=3",
            "ngram 2=4",
            ":15: must be followed by the 4 2-grams that \\data\\ has, but is by 3.",
        ),
        ("\\2-grams:", "\\3-grams:", ":15: must be \\2-grams:, but is \\3-grams: instead."),
        ("ngram 3=1\n", "", ":19: must be \\end\\, but is \\3-grams: instead."),
        ("\\end\\", "", ":23: must be followed by \\end\\, but the file ends: is it complete?"),
        ("\\3-grams:\n-0.05\t<s> a b\n\n\\end\\\n", "", ":19: must be followed by \\end\\, but"),
        ("-0.6\ta", "-O.6\ta", ":12: must have a finite number, but has -O.6 instead."),
        ("-0.6\ta", "-inf\ta", ":12: must have a finite number, but has -inf instead."),
        ("a\t-0.2", "a\tnan", ":12: must have a finite number, but has nan instead."),
        ("-0.6\ta", "0.6\ta", ":12: log probability must be at most 0, but is 0.6 instead."),
        (
            "-0.4\ta b\t-0.25",
            "-0.4\ta",
            ":17: must be a log probability, 2 words and perhaps a backoff, but has 2 fields.",
        ),
        ("a b\t-0.25", "a b c -0.25", ":17: must be a log probability, 2 words and perhaps a"),
        ("-0.05\t<s> a b", "-0.05\t<s> a c", ":21: c is not among the 1-grams."),
        ("-0.05\t<s> a b", "-0.05\tb a b", ":21: its first 2 words must be a 2-gram, but are not."),
        ("\tb\t-0.4", "\ta\t-0.4", ":13: this n-gram is there twice."),
        ("a b\t-0.25", "<s> a\t-0.25", ":17: this n-gram is there twice."),
        ("<s>", "<S>", ": must have <s> among its 1-grams, but has not."),
        ("</s>", "</S>", ": must have </s> among its 1-grams, but has not."),
    ],
)
def test_damaged_files_are_refused_with_their_line(tmp_path, old, new, message):
    assert old in ARPA
    path = write(tmp_path / "a.arpa", ARPA.replace(old, new))
    with pytest.raises(UserError) as error:
        read_arpa(path)
    assert str(error.value).startswith(f"{path}{message}")


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.arpa: cannot be read as an ARPA file \(No such"):
        read_arpa(tmp_path / "none.arpa")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(ARPA.encode())[:-30])
    with pytest.raises(UserError, match=r"cut\.gz: cannot be read as an ARPA file \(Compressed"):
        read_arpa(tmp_path / "cut.gz")
    (tmp_path / "a.arpa").write_bytes(ARPA.encode().replace(b"\tb\t", b"\tb\xff\t"))
    with pytest.raises(UserError, match=r"a\.arpa:13: must be UTF-8 text, but b. is not"):
        read_arpa(tmp_path / "a.arpa")
