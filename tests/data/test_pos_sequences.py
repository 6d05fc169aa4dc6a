"""Tags of captions are read, held against the text, counted and drawn."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest

from fairseq_mm.data.pos_sequences import (
    FolderPosSequences,
    sample_pos_sequences,
)
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError

LINES = ["DET NOUN VERB", "NOUN VERB", "DET ADJ NOUN VERB"]
SIZES = np.array([4, 3, 5])  # with </s>


def write_records(folder, *tags):
    record = {"id": "x", "captions": ["a b"] * len(tags), "tags": list(tags)}
    (folder / "train.jsonl").write_text(json.dumps(record) + "\n")
    return open_split(folder, "train")


@pytest.fixture
def records(tmp_path):
    return write_records(tmp_path, *LINES)


def test_most_frequent_tag_comes_first_and_equals_by_name(records):
    dictionary = FolderPosSequences(records.folder).dictionary
    assert dictionary.symbols[4:] == ["NOUN", "VERB", "DET", "ADJ"]
    assert dictionary.count[4:] == [3, 3, 2, 1]


def test_a_folder_gives_a_split_its_own_pos_sequences(records):
    options = FolderPosSequences(records.folder).dataset_options(records, SIZES)
    assert options["source_dictionary"].symbols[4:] == ["NOUN", "VERB", "DET", "ADJ"]
    structures = options["source"]
    assert structures.sizes.tolist() == [4, 3, 5]
    # DET is 6, ADJ 7, NOUN 4, VERB 5, </s> 2
    expected = [[6, 4, 5, 2], [4, 5, 2], [6, 7, 4, 5, 2]]
    assert [structures[i].tolist() for i in range(len(structures))] == expected
    assert pickle.loads(pickle.dumps(structures))[2].tolist() == structures[2].tolist()


def test_unknown_tags_are_counted_and_warned_of(records, caplog):
    folder = FolderPosSequences("nowhere", ["VERB", "NOUN"])  # a checkpoint's, without the folder
    structures = folder.dataset_options(records, SIZES)["source"]
    assert [structures[i].tolist() for i in range(2)] == [[3, 5, 4, 2], [5, 4, 2]]
    assert "3 of 9 tags are not among those of training" in caplog.text


def test_caption_with_another_number_of_tags_is_named_with_both_counts(records):
    message = r"train.jsonl:1: each token must .* 6 tokens and 2 tags \(2 such lines\)"
    with pytest.raises(UserError, match=message):
        FolderPosSequences(records.folder).dataset_options(records, np.array([4, 7, 6]))


def test_captions_without_tags_are_named(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        '{"captions": ["a"], "tags": ["DET"]}\n{"captions": ["b"]}'
    )
    with pytest.raises(UserError, match=r"train\.jsonl:2: has no `tags`: make them with"):
        _ = FolderPosSequences(str(tmp_path)).dictionary


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


def test_drawn_pos_sequences_are_those_of_training_whatever_the_text(records):
    folder = FolderPosSequences(records.folder)
    options = folder.dataset_options(records, np.array([9, 3]), draw=True, seed=4)
    # the only structure of four tags or more
    assert [options["source"][i].tolist() for i in range(2)] == [[6, 7, 4, 5, 2]] * 2


def test_training_captions_that_are_too_short_or_long_to_be_drawn_are_named(tmp_path):
    records = write_records(tmp_path, "A B", "A " * 13)
    with pytest.raises(UserError, match=r"train\.jsonl: must have captions of 4 to 12 tags to"):
        FolderPosSequences(str(tmp_path)).dataset_options(records, np.array([3]), draw=True)
