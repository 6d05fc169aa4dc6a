"""The dataset gives each line its features, and loses none in batches."""

import numpy as np
import pytest
import torch
from toy_data import make_dictionary, write_store

from fairseq_mm.data.feature_store import open_features
from fairseq_mm.data.multimodal_dataset import (
    MultimodalDataset,
    encode_words,
)
from fairseq_mm.errors import UserError


class Lines(list):
    """Token lines with the sizes that fairseq's datasets have."""

    @property
    def sizes(self):
        return np.array([len(line) for line in self])


@pytest.fixture
def features(tmp_path):
    write_store(tmp_path / "one.h5", ["a", "b"], rows=1)
    write_store(tmp_path / "three.h5", ["c"], rows=3)
    return open_features([tmp_path / "one.h5", tmp_path / "three.h5"])


def dataset_of(features, visual_ids, **options):
    text = Lines(torch.arange(4, 6 + i % 4) for i in range(len(visual_ids)))
    return MultimodalDataset(visual_ids, features, text, make_dictionary(), **options)


def test_several_keys_of_a_line_are_joined_in_order(features):
    dataset = dataset_of(features, ["b\tc\ta"])
    rows = dataset[0]["features"]
    assert rows.shape == (5, 5)
    assert np.array_equal(rows[0], features.read("b")[0])
    assert np.array_equal(rows[1:4], features.read("c"))


def test_size_counts_the_longest_text_and_the_visual_rows(features):
    source = Lines([torch.arange(9), torch.arange(1)])
    dataset = dataset_of(
        features, ["a", "b\tc"], source=source, source_dictionary=make_dictionary()
    )
    # line 0: max(2, 9) + 1 row; line 1: max(3, 1) + 4 rows
    assert dataset.num_tokens_vec(np.array([0, 1])).tolist() == [10, 7]
    assert [dataset.num_tokens(0), dataset.num_tokens(1)] == [10, 7]


def test_examples_keep_their_line_number_when_some_lines_are_left_out(features):
    dataset = dataset_of(features, ["a", "a", "b", "a"], lines=[2, 3])
    assert [dataset[i]["id"] for i in range(2)] == [2, 3]
    assert [dataset[i]["is_first"] for i in range(2)] == [True, False]
    assert dataset.size(1) == 5


def drawn_lines(dataset, epoch, line):
    dataset.set_epoch(epoch)
    return dataset.collater([dataset[line]])["negatives"]["id"].tolist()


def test_negatives_are_lines_of_the_whole_split(features):
    dataset = dataset_of(features, ["a", "b", "c"] * 4, num_negatives=3, seed=5)
    batch = dataset.collater([dataset[i] for i in (4, 2)])
    assert batch["nsentences"] == 2
    drawn = batch["negatives"]
    lines = drawn["id"].tolist()
    assert len(set(lines)) == 3
    expected = dataset_of(features, ["a", "b", "c"] * 4)
    torch.testing.assert_close(drawn, expected._collate([expected[i] for i in lines]))
    assert dataset.collater([]) == {}


def test_negatives_are_drawn_evenly_and_without_repetition(features):
    dataset = dataset_of(features, ["a", "b", "c"] * 2, num_negatives=2)
    counts = np.zeros(6)
    for epoch in range(600):
        lines = drawn_lines(dataset, epoch, line=1)
        assert len(set(lines)) == 2
        counts[lines] += 1
    # 600 x 2 / 6 = 200 of each, with a standard deviation of 600 x 1/3 x 2/3 = 11.5 squared
    assert np.abs(counts - 200).max() < 60


def test_draws_differ_by_seed_epoch_and_batch_alone(features):
    visual_ids = ["a", "b", "c"] * 30
    dataset = dataset_of(features, visual_ids, num_negatives=5, seed=1)
    first = drawn_lines(dataset, 1, 0)
    assert drawn_lines(dataset, 2, 0) != first
    assert drawn_lines(dataset, 1, 1) != first
    np.random.seed(3)
    torch.manual_seed(3)
    assert drawn_lines(dataset, 1, 0) == first
    other_seed = dataset_of(features, visual_ids, num_negatives=5, seed=2)
    assert drawn_lines(other_seed, 1, 0) != first


@pytest.mark.parametrize("multiple", [1, 3, 8])
@pytest.mark.parametrize("limits", [{"max_sentences": 4}, {"max_tokens": 21}])
@pytest.mark.parametrize("count", [1, 5, 8, 13])
def test_every_example_is_in_exactly_one_batch(features, multiple, limits, count):
    dataset = dataset_of(features, ["a", "b"] * 6 + ["c"], lines=np.arange(count))
    batches = dataset.batch_by_size(
        dataset.ordered_indices(), required_batch_size_multiple=multiple, **limits
    )
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))


def test_order_is_by_size_and_random_within_one(features):
    dataset = dataset_of(features, ["a"] * 40, shuffle=True)
    np.random.seed(5)
    first, second = dataset.ordered_indices(), dataset.ordered_indices()
    assert first.tolist() != second.tolist()
    assert np.all(np.diff(dataset.num_tokens_vec(first)) >= 0)
    unshuffled = dataset_of(features, ["a"] * 40).ordered_indices()
    assert unshuffled[:3].tolist() == [0, 4, 8]


def test_key_that_is_not_in_the_store_is_named(features):
    with pytest.raises(UserError, match=r"'zebra'.* \(2 of 3 images of train have none there"):
        dataset_of(features, ["a", "zebra", "a\tzero"], split="train")


def test_missing_images_are_rows_of_zeros_where_they_stand(features):
    dataset = dataset_of(
        features, ["b\tgone\ta", "a\tb", "gone\tc"], missing={"gone", "c"}, rows_per_image=2
    )
    first = dataset[0]
    assert first["missing"].tolist() == [False, True, True, False]
    assert first["features"].dtype == features.dtype
    assert np.array_equal(first["features"][[0, 3]], [features.read("b")[0], features.read("a")[0]])
    assert not first["features"][1:3].any()
    assert dataset[1]["missing"] is None
    # listed as missing, though the store has it
    assert dataset[2]["missing"].tolist() == [True] * 4
    # lines of 2, 3 and 4 tokens; missing images take rows too
    assert dataset.num_tokens_vec(np.arange(3)).tolist() == [2 + 4, 3 + 2, 4 + 4]
    with pytest.raises(UserError, match=r"'zebra'.* \(1 of 2 images"):
        dataset_of(features, ["gone\tzebra"], missing={"gone"})


def test_word_that_is_not_in_the_dictionary_is_named():
    assert encode_words(make_dictionary(), "a dog").tolist() == [4, 6]
    with pytest.raises(UserError, match="the word 'zebra' is not in the dictionary of 16 words"):
        encode_words(make_dictionary(), "a zebra")


def test_lines_of_one_image_have_its_number_within_the_split(features):
    dataset = dataset_of(features, ["b", "a", "b", "a\tb", "c"], lines=[1, 2, 3, 4])
    batch = dataset.collater([dataset[i] for i in range(4)])
    assert batch["item"].tolist() == [1, 0, 2, 3]
