"""Word vectors are read from each of the usual text formats."""

import gzip

import numpy as np
import pytest

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


def test_exact_word_goes_before_its_lower_case_form(tmp_path):
    path = write(tmp_path / "v.txt", ["cat 1 1", "Cat 2 2"])
    assert read_word_vectors(path, ["Cat"], dim=2).vectors.tolist() == [[2, 2]]


def test_compressed_file_is_read(tmp_path):
    with gzip.open(tmp_path / "v.txt.gz", "wt") as file:
        file.write("dog 1 2\n")
    assert read_word_vectors(str(tmp_path / "v.txt.gz"), ["dog"], dim=2).is_found.all()


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    path = write(tmp_path / "v.txt", ["\ufeffdog 1 2", "cat 3 4"])
    assert read_word_vectors(path, ["dog", "cat"], dim=2).vectors.tolist() == [[1, 2], [3, 4]]


def test_a_compressed_file_that_is_damaged_is_named(tmp_path):
    content = bytearray(gzip.compress(b"dog 1 2\n" * 50, mtime=0))
    content[10] = 0xFF  # of the compressed blocks, the kind that does not exist
    path = tmp_path / "v.gz"
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"v.gz: cannot be read as word vectors \(Error -3"):
        read_word_vectors(str(path), ["dog"], dim=2)


def test_words_with_spaces_do_not_disturb(tmp_path):
    lines = ["the 1 2 3", "a 1 2 3", "dog 4 5 6", "at name@x.org 7 8 9", ". . 1 2 3"]
    found = read_word_vectors(write(tmp_path / "v.txt", lines), ["dog", "at", "."], dim=3)
    assert found.is_found.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["5 4", *LINES], r"v\.txt:1: has vectors of 4 dimensions, but --word-dim is 3"),
        (["dog 1 2 3 4"], r"v\.txt:1: has vectors of 4 dimensions, but --word-dim is 3"),
        (["dog 1 2"], r"v\.txt:1: has vectors of 2 dimensions, but --word-dim is 3"),
        (["the 1 2 3", "a 1 2 3", "dog 1 2"], r"v\.txt:3: has vectors of 2 dimensions"),
        (["the 1 2 3", "a 1 2 3", "dog 1 x 3"], r"v\.txt:3: must be a word and its numbers"),
        (["the 1 2 3", "a 1 2 3", "dog 1 nan 3"], r"v\.txt:3: the vector must be finite numbers"),
        (["a line of text"], r"v\.txt:1: must be a word and its numbers"),
        (["the 1 2 3"], r"has a vector of none of the 4 words of the dictionary"),
        ([], r"v\.txt: must have a word and its numbers in each line, but is empty"),
    ],
)
def test_other_files_are_refused(tmp_path, lines, message):
    path = write(tmp_path / "v.txt", lines)
    with pytest.raises(UserError, match=message):
        read_word_vectors(path, WORDS, dim=3)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.txt: cannot be read as word vectors \(No such"):
        read_word_vectors(str(tmp_path / "none.txt"), WORDS, dim=3)
    with pytest.raises(UserError, match="must be a file of word vectors, but is a folder"):
        read_word_vectors(str(tmp_path), WORDS, dim=3)
    (tmp_path / "v.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"v\.gz: cannot be read as word vectors"):
        read_word_vectors(str(tmp_path / "v.gz"), WORDS, dim=3)
    (tmp_path / "v.bin").write_bytes(b"3 3\nthe \x00\xff\x80\x3f\x01\x02\ndog ")
    with pytest.raises(UserError, match=r"v\.bin:2: must be a word and its numbers"):
        read_word_vectors(str(tmp_path / "v.bin"), WORDS, dim=3)
