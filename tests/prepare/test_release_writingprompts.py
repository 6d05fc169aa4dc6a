"""The official WritingPrompts release: pairing of its files, published figures."""

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.prepare.releases.writingprompts import (
    count_lines,
    read_writingprompts,
)


@pytest.fixture
def release(tmp_path):
    """Writes a release of so many prompts and stories a split."""

    def call(**lengths):
        for split, (prompts, stories) in lengths.items():
            for side, number in (("wp_source", prompts), ("wp_target", stories)):
                lines = "".join(f"{split} {side} {n}\n" for n in range(number))
                (tmp_path / f"{split}.{side}").write_text(lines)
        return tmp_path

    return call


def test_lines_of_the_two_files_make_pairs(release):
    folder = release(train=(3, 3), test=(2, 2))
    corpus = read_writingprompts(folder)
    assert {split: len(pairs) for split, pairs in corpus.splits.items()} == {"train": 3, "test": 2}
    pairs = list(corpus.splits["test"])
    assert pairs[1].texts == {"prompt": ["test wp_source 1"], "story": ["test wp_target 1"]}
    assert pairs[1].where == f"{folder / 'test.wp_source'}:2"
    assert pairs[1].places == {"story": f"{folder / 'test.wp_target'}:2"}
    assert list(corpus.splits["test"]) == pairs
    assert len(list(corpus.splits["train"])) == 3


def test_files_of_unequal_length_are_refused(release):
    folder = release(train=(3, 5), valid=(4, 4))
    with pytest.raises(UserError, match=r"train.wp_source has 3 lines and .*train.wp_target 5,"):
        read_writingprompts(folder)


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3), (b"a\rb\x85\xe2\x80\xa8\n", 1)],
)
def test_lines_end_at_line_feeds_alone(tmp_path, content, lines):
    (tmp_path / "file").write_bytes(content)
    assert count_lines(tmp_path / "file") == lines


def test_other_numbers_of_pairs_than_the_release_has_are_named(release):
    corpus = read_writingprompts(release(train=(3, 3)))
    assert corpus.deviations() == [
        "train: 3 pairs found, 272,600 expected (writingprompts, split official)"
    ]
