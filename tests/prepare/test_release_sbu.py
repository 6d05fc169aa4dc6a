"""SBU captioned photos, from tiny files in the official layout."""

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.prepare.releases.sbu import LINES, URLS, read_sbu

ADDRESS = "http://static.flickr.com/2723/"


@pytest.fixture
def release(tmp_path):
    names = ("4385058960_b0f291553e.jpg", "2148024429_06aec6e8ca.jpg", "4385058960_b0f291553e.jpg")
    (tmp_path / URLS).write_text("".join(f"{ADDRESS}{name}\r\n" for name in names))
    captions = ("A wooden chair in the living room", "The river in winter .", "My chair")
    (tmp_path / LINES).write_text("".join(f"{caption}\n" for caption in captions))
    return tmp_path


def test_lines_of_both_files_belong_together(release):
    corpus = read_sbu(release)
    assert [(one.id, one.texts["captions"]) for one in corpus.splits["train"]] == [
        ("4385058960_b0f291553e.jpg", ["A wooden chair in the living room", "My chair"]),
        ("2148024429_06aec6e8ca.jpg", ["The river in winter ."]),
    ]
    assert corpus.exceptions == {"image of several lines": ["4385058960_b0f291553e.jpg"]}
    assert corpus.deviations() == [
        "train: 2 images found, 1,000,000 expected (sbu, split whole)",
    ]


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        (LINES, "one too many\n", r"captions.txt:4: .*urls.txt has only 3 lines"),
        (URLS, f"{ADDRESS}5.jpg\n", r"urls.txt:4: .*captions.txt has only 3 lines"),
    ],
)
def test_files_of_different_lengths_are_refused(release, file, line, message):
    with open(release / file, "a") as stream:
        stream.write(line)
    with pytest.raises(UserError, match=message):
        read_sbu(release)


def test_a_line_without_a_file_name_is_refused(release):
    (release / URLS).write_text(f"{ADDRESS}\na/2.jpg\na/3.jpg\n")
    with pytest.raises(UserError, match=r"urls.txt:1: an image's id must be"):
        read_sbu(release)
