"""Which sentences and images are ranked, their features, and the sample of training images."""

from argparse import Namespace

import numpy as np
import pytest
import torch
from toy_data import write_store

from fairseq_mm.data.feature_store import open_features
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.ranking import (
    SplitToRank,
    mean_training_image,
    sample_training_images,
)

VISUAL_IDS = ["b", "a\tc", "b", "d", "a\tc"]


@pytest.fixture
def dataset(tmp_path):
    write_store(tmp_path / "f.h5", ["a", "b", "c", "d", "e"], dim=3, rows=2)
    return Namespace(
        visual_ids=VISUAL_IDS,
        features=open_features([str(tmp_path / "f.h5")]),
        target=[torch.tensor([5 + i, 2]) for i in range(5)],
    )


def test_sentences_belong_to_images_in_order_of_first_appearance(dataset):
    split = SplitToRank(dataset)
    assert split.images == ["b", "a\tc", "d"]
    assert split.image_of_sentence.tolist() == [0, 1, 0, 2, 1]
    assert split.sentences == [(5 + i, 2) for i in range(5)]
    assert split.lines == [0, 1, 2, 3, 4]


def test_sampled_images_stand_behind_those_of_the_split(dataset):
    split = SplitToRank(dataset, sampled=["e", "b"])
    assert len(split) == 5
    features, padding_mask = split.read_images(1, 5)
    assert features.shape == (4, 4, 3)
    assert padding_mask.tolist() == [[False] * 4, *[[False, False, True, True]] * 3]
    read = dataset.features.read
    np.testing.assert_array_equal(features[0], np.concatenate([read("a"), read("c")]))
    np.testing.assert_array_equal(features[2, :2], read("e"))
    np.testing.assert_array_equal(features[3, :2], read("b"))


def test_the_mean_image_stands_last_and_in_the_identity(dataset, tmp_path):
    (tmp_path / "train.visual_ids").write_text("e\ne\nb\na\tc\n")
    read = dataset.features.read
    mean = mean_training_image(str(tmp_path), dataset.features)
    both = np.concatenate([read("a"), read("c")])
    np.testing.assert_allclose(mean, [(read("e").mean(0) + read("b").mean(0) + both.mean(0)) / 3])
    split = SplitToRank(dataset, mean_image=mean)
    assert len(split) == 4
    features, padding_mask = split.read_images(2, 4)
    np.testing.assert_array_equal(features[1, :1], mean)
    assert padding_mask[1].tolist() == [False, True]
    other = SplitToRank(dataset, mean_image=mean + 1).identity()
    assert [key for key, value in split.identity().items() if value != other[key]] == [
        "sampled_images"
    ]


def test_the_identity_changes_with_all_that_changes_the_scores(dataset, tmp_path):
    first = SplitToRank(dataset, sampled=["e"]).identity()
    assert first == SplitToRank(dataset, sampled=["e"]).identity()
    assert first["marginal_images"] == 1

    def changed(sampled="e", **changes):
        other = SplitToRank(Namespace(**{**vars(dataset), **changes}), sampled=[sampled])
        return [key for key, value in other.identity().items() if value != first[key]]

    assert changed(sampled="d") == ["sampled_images"]
    assert changed(target=[torch.tensor([5, 6, 2])] * 5) == ["sentences"]
    assert changed(visual_ids=["b", "a\tc", "d", "d", "a\tc"]) == ["sentences"]
    write_store(tmp_path / "g.h5", ["a", "b", "c", "d", "e"], dim=3, rows=2, seed=4)
    assert changed(features=open_features([str(tmp_path / "g.h5")])) == ["images", "sampled_images"]


def test_training_images_are_drawn_once_each_and_by_seed(tmp_path):
    (tmp_path / "train.visual_ids").write_text("".join(f"{i // 3}\n" for i in range(30)))
    sample = sample_training_images(str(tmp_path), 6, 1)
    assert len(set(sample)) == 6
    assert sample == sample_training_images(str(tmp_path), 6, 1)
    assert sample != sample_training_images(str(tmp_path), 6, 2)
    assert sorted(sample_training_images(str(tmp_path), 10, 1)) == [str(i) for i in range(10)]
    with pytest.raises(UserError, match=r"--marginal-images 11: the 10 images of .* too few"):
        sample_training_images(str(tmp_path), 11, 1)
