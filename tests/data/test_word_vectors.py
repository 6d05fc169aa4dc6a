"""Word vectors are read from each of the usual formats."""

import gzip
import re

import numpy as np
import pytest

from fairseq_mm.data import word_vectors
from fairseq_mm.data.word_vectors import read_word_vectors
from fairseq_mm.errors import UserError

WORDS = ["<s>", "dog", "Cat", "zebra"]
LINES = ["the 1 2 3", "dog 0.5 -1e-2 4", "cat 7 8 9", "dog 0 0 0", "</s> 1 1 1"]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("header", [[], ["5 3"]])
@pytest.mark.parametrize("end", ["", " "])
def test_words_get_their_vectors(tmp_path, header, end):
    path = write(tmp_path / "v.txt", header + [line + end for line in LINES])
    found = read_word_vectors(path, WORDS, dim=3)
    assert found.is_found.tolist() == [False, True, True, False]
    assert found.vectors.dtype == np.float32
    # of two lines the first; Cat by its lower-case form
    expected = [[0, 0, 0], [0.5, -0.01, 4], [7, 8, 9], [0, 0, 0]]
    np.testing.assert_allclose(found.vectors, expected, rtol=1e-6)


def test_compressed_file_is_read(tmp_path):
    with gzip.open(tmp_path / "v.txt.gz", "wt") as file:
        file.write("dog 1 2\n")
    assert read_word_vectors(str(tmp_path / "v.txt.gz"), ["dog"], dim=2).is_found.all()


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    path = write(tmp_path / "v.txt", ["\ufeffdog 1 2", "cat 3 4"])
    assert read_word_vectors(path, ["dog", "cat"], dim=2).vectors.tolist() == [[1, 2], [3, 4]]


def test_words_with_spaces_do_not_disturb(tmp_path):
    lines = ["the 1 2 3", "a 1 2 3", "dog 4 5 6", "at name@x.org 7 8 9", ". . 1 2 3"]
    found = read_word_vectors(write(tmp_path / "v.txt", lines), ["dog", "at", "."], dim=3)
    assert found.is_found.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["5 4", *LINES], r"v\.txt: .*line 1 has vectors of 4 dimensions, but --word-dim is 3"),
        (["dog 1 2 3 4"], r"v\.txt: .*line 1 has vectors of 4 dimensions, but --word-dim is 3"),
        (["dog 1 2"], r"v\.txt: .*line 1 has vectors of 2 dimensions, but --word-dim is 3"),
        (["the 1 2 3", "a 1 2 3", "dog 1 2"], r"v\.txt: .*line 3 has vectors of 2 dimensions"),
        (["the 1 2 3", "a 1 2 3", "dog 1 x 3"], r"v\.txt: .*line 3 must be a word and its numbers"),
        (["the 1 2 3", "a 1 2 3", "dog 1 nan 3"], "the vector of 'dog' must be finite numbers"),
        (["a line of text"], r"v\.txt: .*line 1 must be a word and its numbers"),
        (["the 1 2 3"], r"has a vector of none of the 4 words of the dictionary"),
        ([], r"has a vector of none of the 4 words of the dictionary"),
    ],
)
def test_other_files_are_refused(tmp_path, lines, message):
    path = write(tmp_path / "v.txt", lines)
    with pytest.raises(UserError, match=message):
        read_word_vectors(path, WORDS, dim=3)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.txt: cannot be read as word vectors \(No such"):
        read_word_vectors(str(tmp_path / "none.txt"), WORDS, dim=3)
    (tmp_path / "v.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"v\.gz: cannot be read as word vectors"):
        read_word_vectors(str(tmp_path / "v.gz"), WORDS, dim=3)
    # fastText's own binary format
    (tmp_path / "v.bin").write_bytes(b"\xba\x16\x4f\x2f\x0c\x00\x00\x00\x64\x00\x00\x00 \n ")
    with pytest.raises(UserError, match=r"v\.bin: .*line 1 must be a word and its numbers"):
        read_word_vectors(str(tmp_path / "v.bin"), WORDS, dim=3)


VECTORS = {
    "the": [1, 2, 3],
    "dog": [0.5, -0.01, 4],
    "café": [7, 8, 9],
    # bytes of a line feed and a space, and all of them printable
    "cat": np.frombuffer(b"\n \n 1 2\n0.5\n", dtype="<f4").tolist(),
    "</s>": [0, 0, 0],
}


def binary(vectors, *, end=b"\n", header=None):
    """A file of word2vec's, ``end`` after each vector."""
    count, dim = len(vectors), len(next(iter(vectors.values())))
    content = b"%d %d\n" % (count, dim) if header is None else header
    for word, vector in vectors.items():
        word = word if isinstance(word, bytes) else word.encode()
        content += word + b" " + np.array(vector, dtype="<f4").tobytes() + end
    return content


@pytest.mark.parametrize("end", [b"\n", b""], ids=["line_feeds", "none"])
@pytest.mark.parametrize(
    ("name", "first"),
    [
        *(("v.bin", word) for word in VECTORS),
        *(("v.bin.gz", "the"), ("v", "the"), ("v.gz", "</s>")),
    ],
)
def test_binary_files_of_word2vec_are_read(tmp_path, end, name, first):
    vectors = {first: VECTORS[first], **VECTORS}
    content = binary(vectors, end=end)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    found = read_word_vectors(str(path), ["Dog", "café", "cat", "zebra"], dim=3)
    assert found.is_found.tolist() == [True, True, True, False]
    expected = np.array([VECTORS["dog"], VECTORS["café"], VECTORS["cat"], [0, 0, 0]], np.float32)
    np.testing.assert_array_equal(found.vectors, expected)


def test_binary_file_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "_START", 20)
    monkeypatch.setattr(word_vectors, "_PART", 7)
    for end in (b"\n", b""):
        vectors = {f"w{i}": [i, i + 0.5, -i] for i in range(200)}
        (tmp_path / "v.bin").write_bytes(binary(vectors, end=end))
        found = read_word_vectors(str(tmp_path / "v.bin"), list(vectors), dim=3)
        assert found.vectors.tolist() == list(vectors.values())


WHOLE = binary(VECTORS)
SPOILED = {
    "dimension": (binary({"dog": [1, 2, 3, 4]}), "line 1 has vectors of 4 dimensions, but --wo"),
    "cut": (WHOLE[:-20], "its first line says 5 words of 3 dimensions, but it ends in word 4"),
    "count": (b"99999999999999999 3\n" + WHOLE[4:], "but it ends in word 6"),
    "not finite": (
        binary({"a": [1, 2, 3], "dog": [1, float("nan"), 3]}),
        "the vector of 'dog' must be finite numbers",
    ),
    "long word": (b"2 3\nx " + bytes(12) + b"a" * 30_000, "but it ends in word 2"),
    "none": (binary({"the": [1, 2, 3]}), "has a vector of none of the 4 words of the dictionary"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_binary_files_are_refused_in_one_line(tmp_path, name):
    content, message = SPOILED[name]
    path = tmp_path / "v.bin"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_word_vectors(str(path), WORDS, dim=3)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
