"""Tags of captions are read, held against the text, counted and drawn."""

from collections import Counter

import numpy as np
import pytest

from fairseq_mm.data.pos_sequences import (
    FolderPosSequences,
    TagLines,
    count_pos_sequences,
    load_pos_sequences,
    load_tag_dictionary,
    make_tag_dictionary,
    read_tags,
    sample_pos_sequences,
)
from fairseq_mm.errors import UserError

LINES = ["DET NOUN VERB", "NOUN VERB", "DET ADJ NOUN VERB"]
SIZES = np.array([4, 3, 5])  # with </s>


@pytest.fixture
def tags_file(tmp_path):
    path = tmp_path / "train.tags"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def test_most_frequent_tag_comes_first_and_equals_by_name():
    dictionary = make_tag_dictionary(LINES)
    assert dictionary.symbols[4:] == ["NOUN", "VERB", "DET", "ADJ"]
    assert dictionary.count[4:] == [3, 3, 2, 1]


def test_pos_sequences_are_lines_of_indices_with_an_end(tags_file):
    dictionary = load_tag_dictionary(str(tags_file.parent))
    structures = load_pos_sequences(str(tags_file), dictionary, sizes=SIZES, text_path="train.idx")
    assert len(structures) == 3
    assert structures.sizes.tolist() == [4, 3, 5]
    # DET is 6, ADJ 7, NOUN 4, VERB 5, </s> 2
    assert [structures[i].tolist() for i in range(3)] == [[6, 4, 5, 2], [4, 5, 2], [6, 7, 4, 5, 2]]


def test_unknown_tags_are_counted_and_warned_of(tags_file, caplog):
    dictionary = make_tag_dictionary(["NOUN VERB"])
    structures = load_pos_sequences(str(tags_file), dictionary, sizes=SIZES, text_path="train.idx")
    assert structures[1].tolist() == [4, 5, 2]
    assert structures[0].tolist() == [3, 4, 5, 2]
    assert "3 of 9 tags are not among those of training" in caplog.text


def test_line_with_another_number_of_tags_is_named_with_both_counts(tags_file):
    with pytest.raises(
        UserError,
        match=r"train.tags:2: has 2 tags, but line 2 of train.idx has 6 tokens \(2 such lines\): "
        "each token must have one tag",
    ):
        load_pos_sequences(
            str(tags_file),
            make_tag_dictionary(LINES),
            sizes=np.array([4, 7, 6]),
            text_path="train.idx",
        )


def test_other_number_of_lines_is_refused(tags_file):
    with pytest.raises(UserError, match=r"train.idx has 2 lines, but .*train.tags has 3: they"):
        load_pos_sequences(
            str(tags_file), make_tag_dictionary(LINES), sizes=SIZES[:2], text_path="train.idx"
        )


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no\.tags: cannot be read .*; it has the tags"):
        read_tags(str(tmp_path / "no.tags"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"folder: cannot be read"):
        read_tags(str(tmp_path / "folder"))
    (tmp_path / "latin.tags").write_bytes(b"NO\xfcN\n")
    with pytest.raises(UserError, match=r"latin\.tags:1: must be UTF-8 text"):
        read_tags(str(tmp_path / "latin.tags"))
    (tmp_path / "train.tags").write_text("")
    with pytest.raises(UserError, match=r"train\.tags: must have tags in each line, but is empty"):
        load_tag_dictionary(str(tmp_path))


def test_pos_sequences_of_four_to_twelve_tags_are_counted():
    lines = [" ".join(["A"] * length) for length in (3, 4, 4, 12, 13)] + ["A  A A A "]
    assert count_pos_sequences(lines) == {"A A A A": 3, " ".join(["A"] * 12): 1}


def test_pos_sequences_are_drawn_as_often_as_they_occur():
    counts = Counter({"A B C D": 30, "B B B B": 10})
    drawn = Counter(sample_pos_sequences(counts, 4000, seed=3))
    # 3000 expected, standard deviation 27
    assert abs(drawn["A B C D"] - 3000) < 140
    assert sum(drawn.values()) == 4000


def test_draws_depend_on_the_seed_alone():
    counts = Counter({"A B": 3, "B C": 2, "C D": 5})
    turned = Counter(dict(reversed(list(counts.items()))))
    assert sample_pos_sequences(counts, 20, seed=1) == sample_pos_sequences(turned, 20, seed=1)
    assert sample_pos_sequences(counts, 20, seed=1) != sample_pos_sequences(counts, 20, seed=2)


def test_pos_sequences_can_be_pickled_for_workers():
    import pickle

    structures = TagLines(LINES, make_tag_dictionary(LINES))
    assert pickle.loads(pickle.dumps(structures))[2].tolist() == structures[2].tolist()


def test_a_folder_gives_a_split_its_own_pos_sequences(tags_file):
    options = FolderPosSequences(str(tags_file.parent)).dataset_options("train", SIZES)
    assert options["source"][1].tolist() == [4, 5, 2]
    assert options["source_dictionary"].symbols[4:] == ["NOUN", "VERB", "DET", "ADJ"]
    with pytest.raises(UserError, match=r"valid\.tags: cannot be read"):
        FolderPosSequences(str(tags_file.parent)).dataset_options("valid", SIZES)


def test_drawn_pos_sequences_are_those_of_training_whatever_the_text(tags_file):
    folder = FolderPosSequences(str(tags_file.parent))
    options = folder.dataset_options("valid", np.array([9, 3]), draw=True, seed=4)
    # the only structure of four tags or more
    assert [options["source"][i].tolist() for i in range(2)] == [[6, 7, 4, 5, 2]] * 2


def test_training_captions_that_are_too_short_or_long_to_be_drawn_are_named(tmp_path):
    (tmp_path / "train.tags").write_text("A B\n" + "A " * 13 + "\n")
    folder = FolderPosSequences(str(tmp_path))
    with pytest.raises(UserError, match=r"train\.tags: must have lines of 4 to 12 tags to write"):
        folder.dataset_options("valid", np.array([3]), draw=True)


def test_dictionary_of_a_checkpoint_needs_no_folder():
    dictionary = FolderPosSequences("nowhere", ["VERB", "NOUN"]).dictionary
    assert dictionary.symbols[4:] == ["VERB", "NOUN"]
