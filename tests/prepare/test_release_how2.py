"""Both layouts of How2 give the same videos, and features of no other."""

import numpy as np
import pytest

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.releases.how2 import SETS, find_features, read_how2, write_features

ROWS = {"-a": ("one two", "sum one"), "b.c": ("three", "sum two"), "d": ("four", "sum three")}


def write_ids(folder, *, tran=ROWS, desc=("d", "b.c", "-a")):
    folder.mkdir(parents=True)
    for side, order, place in (("tran", tran, 0), ("desc", desc, 1)):
        text = "".join(f"{key} {ROWS[key][place]}\n" for key in order)
        (folder / f"{side}.tok.txt").write_text(text)


def write_triple(folder, prefix="tr", ending=".npy"):
    folder.mkdir(parents=True)
    (folder / f"{prefix}_tran_text.txt").write_text("\n".join(a for a, _ in ROWS.values()))
    (folder / f"{prefix}_desc_text.txt").write_text("\n".join(b for _, b in ROWS.values()))
    paths = [f"../how2data/video_action_features/{key}{ending}" for key in ROWS]
    (folder / f"{prefix}_action.txt").write_text("\n".join(paths))


def contents(videos):
    return [(video.id, *video.texts["transcript"], *video.texts["summary"]) for video in videos]


@pytest.mark.parametrize("write", [write_ids, write_triple])
def test_both_layouts_give_the_same(tmp_path, write):
    write(tmp_path / "sum_train")
    corpus = read_how2(tmp_path, {"train": ["sum_train"]})
    assert contents(corpus.splits["train"]) == [(key, a, b) for key, (a, b) in ROWS.items()]
    assert corpus.division == "train sum_train"
    assert corpus.exceptions == {}
    video = corpus.splits["train"][0]
    lines = [where.rpartition(":")[2] for where in (video.where, video.places["summary"])]
    assert lines == (["1", "3"] if write is write_ids else ["1", "1"])


def test_videos_of_one_file_alone_are_left_out_and_listed(tmp_path):
    write_ids(tmp_path / "sum_cv", tran=["-a", "d"], desc=["d", "b.c"])
    corpus = read_how2(tmp_path, {"valid": ["sum_cv"]})
    assert contents(corpus.splits["valid"]) == [("d", "four", "sum three")]
    assert corpus.exceptions == {
        "sum_cv: videos without a summary, left out": ["-a"],
        "sum_cv: videos without a transcript, left out": ["b.c"],
    }


def test_the_published_test_split_is_known_by_its_size(tmp_path):
    write_triple(tmp_path / "sum_devtest", "dete")
    write_triple(tmp_path / "sum_cv", "cv", ".npy \r")
    assert read_how2(tmp_path, {"test": SETS["test"]}).deviations() == [
        "test: 3 videos found, 2,127 expected (how2, split test sum_devtest)"
    ]
    assert read_how2(tmp_path, {"test": ["sum_cv"]}).deviations() == []


def test_sets_that_are_incomplete_are_refused(tmp_path):
    def read():
        return read_how2(tmp_path, {"train": ["s"]})

    folder = tmp_path / "s"
    with pytest.raises(UserError, match=r"s: no such folder; a set has tran\.tok\.txt and"):
        read()
    write_triple(folder)
    (folder / "cv_tran_text.txt").write_text("x")
    with pytest.raises(UserError, match=r"s: has 2 \*_tran_text\.txt; a set has"):
        read()
    (folder / "cv_tran_text.txt").unlink()
    (folder / "tr_desc_text.txt").write_text("one\ntwo")
    with pytest.raises(UserError, match=r"tr_tran_text\.txt has 3, .*desc_text\.txt has 2, .*n\.t"):
        read()
    (folder / "tr_desc_text.txt").unlink()
    with pytest.raises(UserError, match=r"tr_desc_text\.txt: cannot be read"):
        read()
    for side in ("tran_text", "desc_text", "action"):
        (folder / f"tr_{side}.txt").write_text(".npy\n")
    with pytest.raises(UserError, match=r"action\.txt:1: a video's id must be text"):
        read()
    (folder / "tran.tok.txt").write_text("a b\na c\n")
    with pytest.raises(UserError, match=r"tok\.txt:2: video a was given before, at .*:1"):
        read()


@pytest.fixture
def corpus(tmp_path):
    write_ids(tmp_path / "sum_train")
    return read_how2(tmp_path, {"train": ["sum_train"]})


@pytest.fixture
def features(tmp_path):
    folder = tmp_path / "actions"
    folder.mkdir()
    for i, key in enumerate([*ROWS, "other", "d_noise"], start=1):
        np.save(folder / f"{key}.npy", np.full((i, 2048), i / 8, np.float32))
    return folder


def test_features_of_the_videos_become_a_store(corpus, features, tmp_path):
    source = find_features(corpus, features, missing="refuse")
    path = tmp_path / "features.h5"
    assert write_features(source, path, dtype="float16")
    store = FeatureStore(path)
    assert list(store.ids) == list(ROWS)
    assert [store.count_rows(key) for key in ROWS] == [1, 2, 3]
    assert (store.read("d") == 3 / 8).all()
    assert store.dtype == np.float16
    assert store.attributes["extractor"] == "resnext101_3d"
    assert store.attributes["frames_per_clip"] == store.attributes["stride"] == 16
    assert store.attributes["imported_from"] == "actions"
