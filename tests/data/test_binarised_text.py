"""Damaged dictionaries and binarised texts are named before the first step."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from toy_data import make_dictionary, write_split

from fairseq_mm.data.binarised_text import load_binarised_text, load_dictionary
from fairseq_mm.errors import UserError

LINES = [("a.jpg", "a dog runs"), ("b.jpg", "the cat sits in grass"), ("c.jpg", "snow")]


@pytest.fixture
def base(tmp_path):
    write_split(tmp_path, "train", LINES, make_dictionary())
    return str(tmp_path / "train")


def load(base, num_types=20):
    return load_binarised_text(base, num_types=num_types, end=2)


def test_whole_text_is_loaded(base):
    text = load(base)
    assert [len(line) for line in text] == [4, 6, 2]


def change(path, what):
    content = path.read_bytes()
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what != "missing":
        path.write_bytes(
            {
                "empty": b"",
                "half": content[: len(content) // 2],
                "other": b"some text\n" * 9,
                "zeros": bytes(len(content)),
            }[what]
        )


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
@pytest.mark.parametrize("what", ["missing", "folder", "empty", "half", "other", "zeros"])
def test_damaged_file_is_named_and_nothing_else_is_printed(base, tmp_path, suffix, what, capsys):
    change(tmp_path / f"train{suffix}", what)
    with pytest.raises(UserError, match=re.escape(base)) as caught:
        load(base)
    assert "cannot be read; binarise the split anew (" in str(caught.value)
    assert capsys.readouterr().err == ""


def test_no_byte_of_an_index_may_be_another(base):
    path = Path(f"{base}.idx")
    content = path.read_bytes()
    others = [content[:-1]]
    for at, byte in enumerate(content):
        changed = bytes([(byte + 1) % 256])
        others += [content[:at] + piece + content[at + 1 :] for piece in (b"", changed, b"\r\n")]
    for other in others:
        path.write_bytes(other)
        with pytest.raises(UserError, match=re.escape(base)):
            load(base)


def test_text_of_another_dictionary_or_index_is_refused(base, tmp_path):
    with pytest.raises(UserError, match=r"has the numbers 2 to 15, .* has 15 types"):
        load(base, num_types=15)
    text = MMapIndexedDatasetBuilder(f"{base}.bin", dtype=np.int32)
    text.add_item(torch.tensor([-1, 2]))
    text.finalize(f"{base}.idx")
    with pytest.raises(UserError, match=r"has the numbers -1 to 2"):
        load(base)
    text = MMapIndexedDatasetBuilder(f"{base}.bin", dtype=np.int32)
    for line in ([5, 2], [2], [2]):
        text.add_item(torch.tensor(line))
    text.finalize(f"{base}.idx")
    with pytest.raises(UserError, match=r"line 2 has no word \(2 empty in all\)"):
        load(base)
    (tmp_path / "other").mkdir()
    write_split(tmp_path, "train", LINES, make_dictionary())
    # as many words in all, in lines of other lengths
    write_split(tmp_path / "other", "train", [*LINES[1:], LINES[0]], make_dictionary())
    (tmp_path / "other" / "train.idx").replace(f"{base}.idx")
    with pytest.raises(UserError, match=r"[12] lines without </s>"):
        load(base)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "(it has no word"),
        (b"dog 3\ncat\n", "(Incorrect dictionary format"),
        (b"dog 3\n\n", "("),
        (b"dog 3\ndog 2\n", "(Duplicate word found"),
        (b"d\xf6g 3\n", "(Exception: Incorrect encoding"),
        (None, "(No such file"),
    ],
)
def test_damaged_dictionary_is_named(tmp_path, content, message):
    path = tmp_path / "dict.txt"
    if content is not None:
        path.write_bytes(content)
    message = re.escape(f"{path}: cannot be read as a dictionary {message}")
    with pytest.raises(UserError, match=message):
        load_dictionary(str(path))


def test_folder_in_place_of_a_dictionary_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot be read as a dictionary"):
        load_dictionary(str(tmp_path))
