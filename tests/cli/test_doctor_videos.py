"""``fairseq-mm doctor`` on folders of videos and on checkpoints of models that summarise them."""

import json

import numpy as np
import pytest

from fairseq_mm.cli import doctor_videos
from fairseq_mm.cli.doctor_videos import check_video_checkpoint, check_videos, holds_videos
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.models._provenance import STATE_KEY, encode_json
from fairseq_mm.prepare import videos as prepare_videos
from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.videos import VideoWriter
from fairseq_mm.prepare.writer import Vocabulary


def write_folder(folder, **options):
    videos = {
        "train": [
            ("a", "tune the guitar" + " the" * 508, "tune it"),
            ("b", "the " * 512, "the guitar"),
        ],
        "valid": [("c", "the lute the guitar the the", "the guitar")],
    }
    splits = {
        split: [
            Example({"transcript": [said], "summary": [summary]}, f"{key}:1", key, [key])
            for key, said, summary in rows
        ]
        for split, rows in videos.items()
    }
    corpus = Corpus(prepare_videos.TABLE, "own", "as given", splits, ["data.jsonl"])
    subwords = options.pop("subwords", Subwords())
    tokenize = options.pop("tokenize", str)
    settings = options.pop("settings", {})
    writer = VideoWriter(tokenize, Vocabulary("text", 1, **options), subwords, settings=settings)
    writer.write(corpus, folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "data")


def write_store(path, rows, dim=5):
    with FeatureStoreWriter(path, dim=dim, attributes={"extractor": "x"}) as writer:
        for key, number in rows.items():
            writer.append(key, np.ones((number, dim), np.float32))
        writer.finish()
    return FeatureStore(path)


@pytest.fixture
def store(folder):
    return write_store(folder / "features.h5", {"a": 2, "b": 300, "c": 7})


def texts(findings, level=None):
    return [f"{x.subject}: {x.text}" for x in findings if level in (None, x.level)]


def test_a_whole_folder_has_no_problem(folder, store, capsys):
    status = main(["doctor", "--data", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    # the environment of the tests may have problems of its own
    assert status == (0 if lines[-1] == "no problem found" else 2)
    shown = [" ".join(line.split()) for line in lines]
    for line in (
        f"ok {folder}/features.h5: 3 items of 5 channels, all finite",
        f"ok {folder}/dict.tran.txt: 4 words",
        f"ok subwords: none, {Subwords().fingerprint}",
        "ok train: 2 videos; transcripts of 512 to 513 tokens, 1 cut to 512, 0.00 % unknown; "
        "summaries of 3 to 3 tokens, 0 cut to 64, 0.00 % unknown; videos of 2 to 300 rows of "
        "features, median 151, 1 cut to 256",
        "ok valid: 1 videos; transcripts of 7 to 7 tokens, 0 cut to 512, 16.67 % unknown; "
        "summaries of 3 to 3 tokens, 0 cut to 64, 0.00 % unknown; videos of 7 to 7 rows of "
        "features, median 7, 0 cut to 256",
    ):
        assert line in shown


def test_folders_of_videos_are_told_from_others(folder, tmp_path):
    assert holds_videos(str(folder))
    assert not holds_videos(str(tmp_path))
    for side in ("tran", "desc"):
        (folder / f"dict.{side}.txt").unlink()
    assert holds_videos(str(folder))
    assert "No such file" in texts(check_videos(str(folder), None), "PROBLEM")[0]


def test_a_folder_without_features_is_for_models_of_text(folder):
    findings = check_videos(str(folder), None)
    assert texts(findings, "PROBLEM") == []
    assert texts(findings, "note") == [
        f"{folder}: has no features.h5; models that read the transcript alone need none"
    ]


def test_many_unknown_words_are_noted(tmp_path):
    folder = write_folder(tmp_path / "data", max_words=1)
    notes = texts(check_videos(str(folder), None), "note")
    assert "valid: 33 % of the tokens in transcripts are unknown" in notes
    assert "train: 75 % of the tokens in summaries are unknown" in notes


def test_videos_without_features_are_a_problem(folder, tmp_path):
    store = write_store(tmp_path / "other.h5", {"a": 2, "c": 3})
    assert texts(check_videos(str(folder), store), "PROBLEM") == [
        f"train: 1 of 2 videos have no features in {tmp_path}/other.h5, the first 'b'"
    ]


def shorten(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train.visual_ids", shorten, "train.visual_ids has 1: they must agree line by line"),
        ("text/train.desc", shorten, "text/train.desc has 1: they must agree line by line"),
        ("train.visual_ids", lambda path: path.unlink(), "train.visual_ids: no such file"),
        ("valid.references.jsonl", lambda path: path.unlink(), "references.jsonl: no such file"),
        (
            "train.references.jsonl",
            shorten,
            "1 of 2 videos have no references, the first 'b'",
        ),
        ("train.tran-desc.desc.bin", lambda path: path.write_bytes(b""), "desc.bin and .idx can"),
        ("dict.desc.txt", shorten, "is not the dictionary of"),
        ("subwords.json", lambda path: path.write_text("{}"), "`kind` must be none or gpt2"),
        (
            "subwords.json",
            lambda path: path.write_text('{"kind": "none", "numbered_unknowns": 2}'),
            "the dictionary lacks <unk-0> of 2 numbered unknowns",
        ),
        (
            "subwords.json",
            lambda path: path.write_text('{"kind": "none", "numbered_unknowns": 2}'),
            "the folder was prepared with others",
        ),
    ],
)
def test_damage_is_a_problem(folder, name, damage, message):
    damage(folder / name)
    found = " ".join(texts(check_videos(str(folder), None), "PROBLEM"))
    assert message in found


def test_numbered_unknowns_need_their_list(tmp_path):
    folder = write_folder(tmp_path / "data", subwords=Subwords(numbered_unknowns=3))
    findings = check_videos(str(folder), None)
    assert texts(findings, "PROBLEM") == []
    assert any("none, " in text and "3 numbered unknowns" in text for text in texts(findings))
    (folder / "valid.unknowns.jsonl").write_text("")
    assert "valid.unknowns.jsonl" in texts(check_videos(str(folder), None), "PROBLEM")[0]


def test_a_folder_without_splits_is_a_problem(folder):
    for path in [*folder.glob("*.bin"), *folder.glob("*.idx"), *folder.glob("*.visual_ids")]:
        path.unlink()
    found = texts(check_videos(str(folder), None), "PROBLEM")
    assert found == [f"{folder}: has none of the splits train, valid, test"]


@pytest.fixture
def state(folder):
    words = [line.split()[0] for line in (folder / "dict.tran.txt").read_text().splitlines()]
    content = {
        "words": words,
        "source_words": words,
        "extractor": {"extractor": "x"},
        "feature_dim": 5,
        "subwords": Subwords().to_state(),
    }

    def make(**changed):
        return {
            "cfg": {"task": {"_name": "video_summarization"}, "model": {"_name": "vg_bart"}},
            "model": {STATE_KEY: encode_json({**content, **changed})},
        }

    return make


def check(state, folder, store=None):
    return check_video_checkpoint("a.pt", state, folder and str(folder), store)


def test_a_checkpoint_of_the_folder_fits(folder, state):
    findings = check(state(), folder)
    assert [finding.level for finding in findings] == ["ok"]
    assert findings[0].text.startswith("dictionary of 4 words, ")
    assert findings[0].text.endswith("subwords none")


def test_missing_weights_of_a_video_extractor_are_found(folder, state):
    of_file = {"extractor": "resnext101_3d", "weights": "0" * 64}
    (found,) = texts(check(state(extractor=of_file), folder), "PROBLEM")
    assert f"weights of resnext101_3d: no file with the SHA-256 {'0' * 64} in " in found
    # reads transcripts alone
    assert not texts(check(state(extractor=of_file, feature_dim=0), folder), "PROBLEM")


def test_a_checkpoint_of_other_data_is_a_problem(folder, state, store, tmp_path):
    (found,) = texts(check(state(words=["the"]), folder), "PROBLEM")
    assert "its dictionary (1 words, " in found
    assert f"is not that of {folder} (4 words, " in found
    (found,) = texts(check(state(subwords={"kind": "none", "numbered_unknowns": 4}), folder))[1:]
    assert "its subwords (none, " in found
    (found,) = texts(check(state(feature_dim=9), folder, store), "PROBLEM")
    assert found == f"checkpoint: needs 9 channels, but {folder}/features.h5 has 5"
    (found,) = texts(check(state(extractor={"extractor": "y"}), folder, store), "PROBLEM")
    assert "y" in found
    (found,) = texts(check(state(), tmp_path), "PROBLEM")
    assert found == f"checkpoint: summarises videos, but {tmp_path} has none"


def test_a_checkpoint_of_fairseqs_own_carries_no_dictionary(state):
    without = state()
    without["model"] = {}
    (found,) = check(without, None)
    assert (found.level, "carries no dictionary" in found.text) == ("note", True)


def test_the_doctor_knows_what_prepare_writes():
    for name in ("SOURCE", "TARGET", "MAX_TOKENS"):
        assert getattr(doctor_videos, name) == getattr(prepare_videos, name)


def test_a_broken_report_is_no_crash(folder):
    (folder / "prepare.json").write_text(json.dumps(["x"]))
    assert texts(check_videos(str(folder), None), "PROBLEM") == []
