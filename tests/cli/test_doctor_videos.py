"""``fairseq-mm doctor`` on folders of videos and on checkpoints of models that summarise them."""

import json

import numpy as np
import pytest
from toy_captioner import change_checkpoint
from toy_data import forget_digests, run_fairseq

from fairseq_mm.cli.doctor_checkpoint import check_checkpoint
from fairseq_mm.cli.doctor_data import KINDS, check_data, check_features, find_data_folder
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.data.subwords import Subwords
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
    return forget_digests(folder)  # which would hide what the other checks find


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


def found_in(folder, store=None):
    return list(check_data(str(folder), store and store.path, is_readable=True))


def texts(findings, level=None):
    return [f"{x.subject}: {x.text}" for x in findings if level in (None, x.level)]


def test_a_whole_folder_has_no_problem(folder, store, capsys):
    status = main(["doctor", "--data", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    # the environment of the tests may have problems of its own
    assert status == (0 if lines[-1] == "no problem found" else 2)
    shown = [" ".join(line.split()) for line in lines]
    for line in (
        f"ok {folder}/features.h5: 3 items of feature dimension 5, all finite",
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
    assert find_data_folder(str(folder)) == (str(folder), "videos")
    assert find_data_folder(str(tmp_path)) == (str(tmp_path), "captions")
    for side in ("tran", "desc"):
        (folder / f"dict.{side}.txt").unlink()
    assert find_data_folder(str(folder)) == (str(folder), "videos")
    assert "no such file" in texts(found_in(folder), "PROBLEM")[0]


def test_a_folder_without_features_is_for_models_of_text(folder):
    findings = found_in(folder)
    assert texts(findings, "PROBLEM") == []
    assert texts(findings, "note") == [
        f"{folder}: has no features.h5; models that read the transcript alone need none"
    ]


def test_features_of_unknown_origin_are_noted_of_videos_not_images(folder):
    with FeatureStoreWriter(folder / "features.h5", dim=5, attributes={}) as writer:
        for key in "abc":
            writer.append(key, np.ones((2, 5), np.float32))
        writer.finish()
    (note,) = [x.text for x in check_features(str(folder), None)[1] if x.level == "note"]
    assert note.endswith("does not say which network made it: video files cannot be summarized")


def test_many_unknown_words_are_noted(tmp_path):
    folder = write_folder(tmp_path / "data", max_words=1)
    notes = texts(found_in(folder), "note")
    assert "valid: 33 % of the tokens in transcripts are unknown" in notes
    assert "train: 75 % of the tokens in summaries are unknown" in notes


def test_videos_without_features_are_a_problem(folder, tmp_path):
    store = write_store(tmp_path / "other.h5", {"a": 2, "c": 3})
    (found,) = texts(found_in(folder, store), "PROBLEM")
    assert "1 of 2 videos of train have none there" in found


def shorten(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train.visual_ids", shorten, "train.visual_ids has 1: they must agree line by line"),
        ("text/train.desc", shorten, "text/train.desc has 1: they must agree line by line"),
        (
            "valid.references.jsonl",
            lambda path: path.unlink(),
            "references.jsonl: no such file",
        ),
        (
            "train.references.jsonl",
            shorten,
            "train.references.jsonl: has no references for 'b'",
        ),
        ("train.tran-desc.desc.bin", lambda path: path.write_bytes(b""), "desc.bin and .idx can"),
        ("dict.desc.txt", shorten, "must be equal, but have"),
        ("subwords.json", lambda path: path.write_text("{}"), "`kind` must be none or gpt2"),
        (
            "subwords.json",
            lambda path: path.write_text('{"kind": "none", "numbered_unknowns": 2}'),
            "the dictionary lacks <unk-0> of 2 indexed OOV tokens",
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
    found = " ".join(texts(found_in(folder), "PROBLEM"))
    assert message in found


def test_indexed_oov_need_their_list(tmp_path):
    folder = write_folder(tmp_path / "data", subwords=Subwords(indexed_oov=3))
    findings = found_in(folder)
    assert texts(findings, "PROBLEM") == []
    assert any("none, " in text and "3 indexed OOV tokens" in text for text in texts(findings))
    (folder / "valid.unknowns.jsonl").write_text("")
    assert "valid.unknowns.jsonl" in texts(found_in(folder), "PROBLEM")[0]


def test_a_list_of_oov_of_another_folder_is_a_problem(folder):
    (folder / "valid.unknowns.jsonl").write_text("[]\n[]\n")
    (found,) = texts(found_in(folder), "PROBLEM")
    assert "valid.unknowns.jsonl has 2" in found


def test_a_folder_without_splits_is_a_problem(folder):
    for path in [*folder.glob("*.bin"), *folder.glob("*.idx"), *folder.glob("*.visual_ids")]:
        path.unlink()
    found = texts(found_in(folder), "PROBLEM")
    assert found == [f"{folder}: has none of the splits train, valid, test"]


def test_the_doctor_knows_what_prepare_writes():
    assert KINDS["videos"].languages == (prepare_videos.SOURCE, prepare_videos.TARGET)


def test_a_broken_report_is_no_crash(folder):
    (folder / "prepare.json").write_text(json.dumps(["x"]))
    (text,) = texts(found_in(folder), "PROBLEM")
    assert "must be" in text
    assert "object" in text


@pytest.fixture
def trained(folder, store, tmp_path, monkeypatch):
    """A checkpoint of ``vg_bart`` on the folder."""
    command = (
        f"{folder} --task video_summarization --arch vg_bart_tiny --save-dir {tmp_path}/c --cpu "
        "--max-update 1 --batch-size 2 --optimizer adam --num-workers 0 --disable-validation "
        "--log-format none"
    )
    run_fairseq(monkeypatch, "train", *command.split())
    return tmp_path / "c" / "checkpoint_last.pt"


def fit(checkpoint, folder, store=None):
    features = store and store.path
    return list(check_checkpoint(str(checkpoint), folder and str(folder), features, store, None))


def test_a_checkpoint_of_the_folder_fits(folder, trained):
    findings = fit(trained, folder)
    assert texts(findings, "PROBLEM") == []
    assert any("dictionary of 4 words, " in x and "subwords none" in x for x in texts(findings))


def test_a_checkpoint_of_other_data_is_a_problem(folder, trained, tmp_path):
    path = folder / "dict.tran.txt"
    lines = path.read_text().splitlines(keepends=True)
    for side in ("tran", "desc"):
        (folder / f"dict.{side}.txt").write_text("".join(lines[::-1]))
    (found,) = texts(fit(trained, folder), "PROBLEM")
    assert "the same words in another order" in found
    for side in ("tran", "desc"):
        (folder / f"dict.{side}.txt").write_text("".join(lines))
    narrow = write_store(tmp_path / "narrow.h5", {"a": 1}, dim=9)
    (found,) = texts(fit(trained, folder, narrow), "PROBLEM")
    assert "trained on 5-dimensional features, but the feature store has 9" in found
    (found,) = texts(fit(trained, None, narrow), "PROBLEM")
    assert found == f"checkpoint: needs feature dimension 5, but {tmp_path}/narrow.h5 has 9"
    (found,) = texts(fit(trained, tmp_path), "PROBLEM")
    assert (
        f"is a model of videos (--task video_summarization), but {tmp_path} has captions" in found
    )
    (folder / "subwords.json").write_text('{"kind": "none", "numbered_unknowns": 1}')
    (found,) = texts(fit(trained, folder), "PROBLEM")
    assert "subwords" in found


def test_missing_weights_of_a_video_extractor_are_found(trained, tmp_path):
    extractor = {"extractor": "resnext101_3d", "weights": "0" * 64}
    path = change_checkpoint(trained, tmp_path / "o.pt", provenance={"extractor": extractor})
    (found,) = texts(fit(path, None), "PROBLEM")
    assert f"weights of resnext101_3d: no file with the SHA-256 {'0' * 64} in " in found
