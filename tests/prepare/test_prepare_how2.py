"""``fairseq-mm prepare how2``: the release becomes a data folder with features."""

import numpy as np
import pytest
from written_folder import keys, records, tokens

from fairseq_mm.data.feature_store import FeatureStore


@pytest.fixture
def prepare(run_command, tmp_path):
    def call(*options):
        out = tmp_path / "out"
        return run_command("prepare", "how2", *options, "--output", out)

    return call


@pytest.fixture
def release(tmp_path):
    """Text with ids, features of all videos but one."""
    for name, videos in (("sum_train", ["a", "b", "c"]), ("sum_cv", ["d"]), ("sum_devtest", ["e"])):
        folder = tmp_path / "text" / name
        folder.mkdir(parents=True)
        for side in ("tran", "desc"):
            text = "".join(f"{key} {side} of the video\n" for key in videos)
            (folder / f"{side}.tok.txt").write_text(text)
    (tmp_path / "actions").mkdir()
    for i, key in enumerate("acdef", start=1):
        np.save(tmp_path / "actions" / f"{key}.npy", np.full((i, 2048), i, np.float32))
    return tmp_path


def test_text_and_features_become_a_data_folder(prepare, release):
    options = [release / "text", "--features", release / "actions"]
    status, out, err = prepare(*options)
    assert (status, out) == (2, "")
    assert err == (
        f"fairseq-mm prepare: {release}/text/sum_train/tran.tok.txt:2: video b is missing "
        f"({release}/actions has no b.npy); of 3 train videos 1 lack features. --missing drop "
        "leaves them out.\n"
    )
    status, out, err = prepare(*options, "--missing", "drop")
    assert status == 0
    assert err.splitlines() == [
        "train: 3 videos read, 73,993 in the paper",
        "valid: 1 videos read, 2,965 in the paper",
        "test: 1 videos read, 2,156 in the paper, 2,127 in its authors' released references",
        "test: 1 videos found, 2,127 expected (how2, split train sum_train, valid sum_cv, test "
        "sum_devtest)",
    ]
    folder = release / "out"
    lines = out.splitlines()
    assert lines[0] == (
        "train: 2 videos, 8 transcript tokens (0.00% unknown), 8 summary tokens (0.00% unknown); "
        "on average 4.0 tokens in a transcript and 4.0 in a summary"
    )
    assert lines[3] == ("exception, train videos missing: 1 (b; all in prepare.json)")
    assert lines[-2:] == [f"wrote {folder}", f"wrote {folder}/features.h5: 4 videos"]
    assert tokens(folder, "train", "tran") == ["tran of the video"] * 2
    store = FeatureStore(folder / "features.h5")
    assert list(store.ids) == ["a", "c", "d", "e"]
    status, out, _ = prepare(*options, "--missing", "drop", "--overwrite")
    assert status == 0
    assert out.splitlines()[-1] == (
        f"{folder}/features.h5 has the features of all 4 videos already and stays; delete it to "
        "have it made anew"
    )


SETS = (
    "--train sum_train sum_asr_train --valid sum_cv sum_asr_cv --test sum_devtest sum_asr_devtest"
)


def test_the_twelve_real_videos_are_prepared(prepare, shared_data, tmp_path):
    clips = shared_data("how2/clips")
    status, out, err = prepare(
        clips / "text", *SETS.split(), "--features", clips / "video_action_features"
    )
    assert (status, err) == (0, "")
    folder = tmp_path / "out"
    assert out.splitlines()[:3] == [
        "train: 4 videos, 1,460 transcript tokens (0.00% unknown), 129 summary tokens "
        "(0.00% unknown); on average 365.0 tokens in a transcript and 32.2 in a summary",
        "valid: 4 videos, 906 transcript tokens (30.24% unknown), 83 summary tokens "
        "(38.55% unknown); on average 226.5 tokens in a transcript and 20.8 in a summary",
        "test: 4 videos, 863 transcript tokens (31.40% unknown), 117 summary tokens "
        "(38.46% unknown); on average 215.8 tokens in a transcript and 29.2 in a summary",
    ]
    store = FeatureStore(folder / "features.h5")
    ids = [key for split in ("train", "valid", "test") for key in keys(folder, split)]
    assert list(store.ids) == ids
    frames = sorted(store.count_rows(key) for key in ids)
    assert (len(ids), frames[0], frames[-1], sum(frames)) == (12, 88, 301, 2295)
    key = "gk0hmh49gCQ"
    original = np.load(clips / "video_action_features" / f"{key}.npy")
    assert np.array_equal(store.read(key), original)
    first = records(folder, "test")[0]
    assert first["id"] == key
    assert first["summary"].startswith("learn tips on how to design your garden around a col")
