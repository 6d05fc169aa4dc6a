"""``fairseq-mm prepare videos``: options, messages, exit status."""

import json

import numpy as np
import pytest
import toy_subwords
from written_folder import keys, records, tokens

from fairseq_mm.data.feature_store_writer import FeatureStoreWriter


@pytest.fixture
def data(tmp_path):
    (tmp_path / "sub.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\n<i>It's</i> Talk5\n")
    path = tmp_path / "data.jsonl"
    with open(path, "w") as file:
        for number in range(6):
            text = "sub.vtt" if number == 5 else f"It's talk{number}."
            entry = {"video": f"v/{number}.mp4", "transcript": text, "summary": "The  Talk!"}
            file.write(json.dumps(entry) + "\n")
    return path


@pytest.fixture
def prepare(run_command, data, tmp_path):
    """Runs the command on ``data``; returns exit status, stdout, stderr."""

    def call(*options):
        options = ("--output", tmp_path / "out", *options)
        return run_command("prepare", "videos", data, *options)

    return call


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_own_data_becomes_a_data_folder(prepare, tmp_path):
    status, out, err = prepare("--valid-size", 1, "--threshold", 2)
    assert status == 0
    assert err == ""
    out_folder = tmp_path / "out"
    # it 's talkN . (of 5.mp4, which stays in train, without the point) and: the talk !
    assert out.splitlines() == [
        "train: 5 videos, 19 transcript tokens (26.32% unknown), 15 summary tokens "
        "(0.00% unknown); on average 3.8 tokens in a transcript and 3.0 in a summary",
        "valid: 1 videos, 4 transcript tokens (25.00% unknown), 3 summary tokens "
        "(0.00% unknown); on average 4.0 tokens in a transcript and 3.0 in a summary",
        "dict.tran.txt = dict.desc.txt: 6 words, 10 types with fairseq's symbols",
        f"wrote {out_folder}",
    ]
    ids = [*keys(out_folder, "train"), *keys(out_folder, "valid")]
    assert sorted(ids) == [f"{i}.mp4" for i in range(6)]
    assert set(tokens(out_folder, "train")) == {"the talk !"}
    assert records(out_folder, "train")[0]["summary"] == "The  Talk!"
    options = json.loads((out_folder / "prepare.json").read_text())["options"]
    assert (options["tokenizer"], options["subwords"], options["threshold"]) == ("words", "none", 2)


def test_videos_without_features_are_left_out_when_asked_for(prepare, tmp_path):
    store = tmp_path / "features.h5"
    with FeatureStoreWriter(store, dim=2, attributes={}) as writer:
        for number in range(5):
            writer.append(f"{number}.mp4", np.ones((number + 1, 2), np.float32))
        writer.finish()
    status, _, err = prepare("--features", store)
    assert status == 2
    assert err == (
        f"fairseq-mm prepare: {tmp_path}/data.jsonl:6: video 5.mp4 is missing (not in the feature "
        "store); of 6 train videos 1 lack features. --missing drop leaves them out.\n"
    )
    options = ["--features", store, "--missing", "drop"]
    status, out, _ = prepare(*options)
    assert status == 0
    assert "exception, train videos missing: 1 (5.mp4; all in prep" in out
    assert len(keys(tmp_path / "out", "train")) == 5
    status, _, err = prepare(*options, "--keys", "stem", "--overwrite")
    assert (
        status,
        "and so it is with all train videos; do features or files have other na" in err,
    ) == (
        2,
        True,
    )
    status, _, err = prepare("--missing", "drop", "--overwrite")
    assert (status, "--missing needs --features, or --images, to say" in err) == (2, True)


def test_a_pretrained_folder_brings_dictionary_and_subwords(prepare, tmp_path):
    _, merges = toy_subwords.write_gpt2(tmp_path / "bart")
    dictionary = tmp_path / "bart" / "dict.txt"
    dictionary.write_text("".join(f"{number} 1\n" for number in range(262)))
    status, out, _ = prepare("--pretrained", tmp_path / "bart")
    assert status == 0
    folder = tmp_path / "out"
    assert json.loads((folder / "subwords.json").read_text()) == {"kind": "gpt2"}
    assert (folder / "vocab.bpe").read_text() == merges.read_text()
    assert lines(folder / "dict.desc.txt") == lines(dictionary)
    assert "(0.00% unknown)" in out.splitlines()[0]
