"""``fairseq-mm prepare stories``: options, messages, exit status."""

import json
import re

import numpy as np
import pytest
from written_folder import records, tokens

from fairseq_mm.data.feature_store_writer import FeatureStoreWriter


@pytest.fixture
def data(tmp_path):
    """Six stories of three image sequences."""
    path = tmp_path / "data.jsonl"
    with open(path, "w") as file:
        for number in range(6):
            entry = {
                "images": [f"photos/{number // 2}_{k}.jpg" for k in range(5)],
                "sentences": [f"It's Day{number}.", "We ran!", "We ran.", "We ran.", "Home."],
            }
            file.write(json.dumps(entry) + "\n")
    return path


@pytest.fixture
def store(tmp_path):
    """Writes a store of all images but some."""

    def write(*lacking):
        path = tmp_path / "features.h5"
        with FeatureStoreWriter(path, dim=3, dtype="float32", attributes={}) as writer:
            for key in [f"{i}_{k}.jpg" for i in range(3) for k in range(5)]:
                if key not in lacking:
                    writer.append(key, np.ones((1, 3), dtype="float32"))
            writer.finish()
        return path

    return write


@pytest.fixture
def prepare(run_command, data, tmp_path):
    """Runs the command on ``data``; returns exit status, stdout, stderr."""

    def call(*options):
        return run_command("prepare", "stories", data, "--output", tmp_path / "out", *options)

    return call


def test_own_data_becomes_a_data_folder(prepare, tmp_path):
    status, out, err = prepare("--valid-size", 1, "--threshold", 4)
    assert (status, err) == (0, "")
    # it 's dayN . <sent> we ran ! <sent> we ran . <sent> we ran . <sent> home .
    assert out.splitlines() == [
        "train: 4 stories, 2 albums, 2 image sequences, 10 images, 60 words (6.67% unknown)",
        "valid: 2 stories, 1 albums, 1 image sequences, 5 images, 30 words (6.67% unknown)",
        "dict.txt: 8 words, 12 types with fairseq's symbols",
        f"wrote {tmp_path / 'out'}",
    ]
    text = tokens(tmp_path / "out", "train")[0]
    assert re.fullmatch(
        r"it 's day\d \. <sent> we ran ! <sent> we ran \. <sent> we ran \. <sent> home \.", text
    )
    report = json.loads((tmp_path / "out" / "prepare.json").read_text())
    assert report["kind"] == "visual stories"
    assert report["options"] == {
        "tokenizer": "words", "keep_case": False, "keep_punctuation": True, "missing": "refuse",
        "threshold": 4, "dictionary": None,
    }  # fmt: skip


def test_text_can_keep_its_case_and_its_splits(prepare, tmp_path):
    options = ["--threshold", 1, "--keep-case", "--tokenizer", "whitespace"]
    status, out, err = prepare(*options)
    assert (status, err) == (0, "no valid split: train with --disable-validation\n")
    assert "(0.00% unknown)" in out
    text = tokens(tmp_path / "out", "train")[0]
    assert text == "It's Day0. <sent> We ran! <sent> We ran. <sent> We ran. <sent> Home."


def test_images_that_the_store_lacks_are_refused_dropped_or_masked(prepare, store, tmp_path):
    path = store("1_3.jpg")
    options = ["--threshold", 1, "--features", path]
    status, out, err = prepare(*options)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == (
        f"fairseq-mm prepare: {tmp_path / 'data.jsonl'}:3: image 1_3.jpg of story 3 is missing "
        "(not in the feature store); of 6 train stories 2 lack features. --missing drop leaves "
        "them out, --missing keep keeps them without the image."
    )
    status, out, _ = prepare(*options, "--missing", "drop")
    assert status == 0
    assert out.startswith("train: 4 stories, 2 albums, 2 image sequences")
    assert "exception, train stories left out, images missing: 2 (3, 4; all in pre" in out
    status, out, _ = prepare(*options, "--missing", "keep", "--overwrite")
    assert out.startswith("train: 6 stories, 3 albums, 3 image sequences")
    assert records(tmp_path / "out", "train")[2]["missing"] == ["1_3.jpg"]
