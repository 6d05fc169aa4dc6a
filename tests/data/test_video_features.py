"""Videos are cut, and noise is the same wherever it is asked for."""

import pickle

import numpy as np
import pytest
from toy_data import write_store

from fairseq_mm.data.feature_store import open_features
from fairseq_mm.data.truncation import CutVideos, NoiseVideos
from fairseq_mm.errors import UserError


@pytest.fixture
def features(tmp_path):
    write_store(tmp_path / "long.h5", ["a"], rows=7, dim=3)
    write_store(tmp_path / "short.h5", ["b", "c"], rows=4, dim=3)
    return open_features([tmp_path / "long.h5", tmp_path / "short.h5"])


def test_longer_videos_are_cut(features):
    videos = CutVideos(features, 5)
    assert [videos.count_rows(key) for key in "abc"] == [5, 4, 4]
    assert [videos.is_cut(key) for key in "abc"] == [True, False, False]
    assert np.array_equal(videos.read("a"), features.read("a")[:5])
    assert "a" in videos
    assert "d" not in videos
    with pytest.raises(UserError, match="no features for 'd'"):
        videos.count_rows("d")


def test_noise_is_uniform_and_depends_on_video_and_seed_alone(features):
    noise = NoiseVideos(features, 5, seed=1)
    first = noise.read("a")
    assert first.shape == (5, 3)
    assert first.dtype == features.dtype
    assert np.array_equal(first, noise.read("a"))
    assert np.array_equal(first, pickle.loads(pickle.dumps(noise)).read("a"))
    # of another length, it begins alike
    assert np.array_equal(first[:2], NoiseVideos(features, 2, seed=1).read("a"))
    assert not np.array_equal(noise.read("b"), noise.read("c"))
    assert not np.array_equal(first, NoiseVideos(features, 5, seed=2).read("a"))
    assert not np.isin(first, features.read("a")).any()


def test_noise_lies_between_0_and_3(tmp_path):
    write_store(tmp_path / "many.h5", ["a"], rows=500, dim=8)
    noise = NoiseVideos(open_features([tmp_path / "many.h5"]), 500, seed=1).read("a")
    assert noise.min() >= 0
    assert noise.max() <= 3
    assert noise.mean() == pytest.approx(1.5, abs=0.05)
    assert noise.std() == pytest.approx(3 / np.sqrt(12), abs=0.05)
