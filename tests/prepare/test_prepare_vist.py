"""``fairseq-mm prepare vist``: the official release becomes a data folder."""

import json

import numpy as np
import pytest
from written_folder import keys, tokens

from fairseq_mm.data.feature_store_writer import FeatureStoreWriter


@pytest.fixture
def prepare(run_command, release, tmp_path):
    def call(*options):
        return run_command("prepare", "vist", release, "--output", tmp_path / "out", *options)

    return call


def annotations(key, *, tier, order=(4, 0, 3, 1, 2), photo=0):
    return [
        [
            {
                "story_id": key,
                "album_id": f"album of {key}",
                "photo_flickr_id": str(photo + place),
                "text": f"[Male] was at {place} .",
                "original_text": f"Joe was at {place}.",
                "worker_arranged_photo_order": place,
                "tier": tier,
            }
        ]
        for place in order
    ]


@pytest.fixture
def release(tmp_path):
    """Stories a and b (images 10 to 14), c (20 to 24) for training, v (30 to 34), one bad."""
    folder = tmp_path / "release"
    folder.mkdir()
    for tier in ("story-in-sequence", "description-in-sequence", "description-in-isolation"):
        parts = {
            "train": [("a", 10), ("b", 10), ("c", 20)],
            "val": [("v", 30)],
        }
        for split, stories in parts.items():
            content = [one for key, n in stories for one in annotations(key, tier=tier, photo=n)]
            if split == "train":
                content += annotations("bad", tier=tier, order=(0, 1, 2, 3), photo=40)
            path = folder / f"{split}.{tier}.json"
            images = [{"id": str(number)} for number in range(7 if split == "train" else 0)]
            path.write_text(json.dumps({"images": images, "annotations": content}))
    return folder


def test_the_release_becomes_a_data_folder(prepare, tmp_path):
    status, out, err = prepare("--threshold", 3)
    assert status == 0
    assert err.splitlines() == [
        "train: 3 stories found, 40,155 expected (vist, split official)",
        "valid: 1 stories found, 4,990 expected (vist, split official)",
    ]
    assert out.splitlines()[:4] == [
        "train: 3 stories, 3 albums, 2 image sequences, 10 images, 75 words (0.00% unknown), "
        "7 images listed",
        "valid: 1 stories, 1 albums, 1 image sequences, 5 images, 25 words (0.00% unknown)",
        "exception, train stories left out, not five sentences at five positions of one album: 1 "
        "(bad; all in prepare.json)",
        "dict.txt: 10 words, 14 types with fairseq's symbols",
    ]
    folder = tmp_path / "out"
    assert keys(folder, "train")[1:] == ["10\t11\t12\t13\t14", "20\t21\t22\t23\t24"]
    assert tokens(folder, "valid") == [
        " <sent> ".join(f"[male] was at {place} ." for place in range(5))
    ]
    report = json.loads((folder / "prepare.json").read_text())
    assert (report["options"]["tier"], report["options"]["missing"]) == (
        "story-in-sequence",
        "drop",
    )


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "features.h5"
    with FeatureStoreWriter(path, dim=3, dtype="float32", attributes={}) as writer:
        for number in [*range(10, 15), *range(30, 35)]:
            writer.append(f"{number}.jpg", np.ones((1, 3), dtype="float32"))
        writer.finish()
    return path


def test_the_stores_own_keys_are_taken(prepare, store, tmp_path):
    status, out, _ = prepare("--threshold", 1, "--features", store)
    assert status == 0
    assert "exception, train images missing: 5 (20, 21, 22, ...; all in" in out
    ids = "\t".join(f"{n}.jpg" for n in range(10, 15))
    assert keys(tmp_path / "out", "train") == [ids] * 2
    report = json.loads((tmp_path / "out" / "prepare.json").read_text())
    # as many stories as were read, whatever was left out
    expected = "train: 3 stories found, 40,155 expected (vist, split official)"
    assert report["deviations"][0] == expected


def test_the_small_release_becomes_a_data_folder(run_command, shared_data, tmp_path):
    release, options = shared_data("vist_mini"), ("--threshold", 3)
    assert run_command("prepare", "vist", release, "--output", tmp_path / "out", *options)[0] == 0
    counts = json.loads((tmp_path / "out" / "prepare.json").read_text())["counts"]
    assert counts["train"]["stories"] == len(keys(tmp_path / "out", "train")) == 2802
    assert counts["valid"]["image_sequences"] == 100
