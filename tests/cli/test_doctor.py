"""``fairseq-mm doctor``: findings with their remedies, and the exit status."""

import hashlib
import importlib.metadata
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from toy_captioner import DIM, change_checkpoint, train_captioner
from toy_data import (
    WORDS,
    make_captions_folder,
    make_dictionary,
    make_videos_folder,
    make_visual_stories_folder,
    write_split,
    write_store,
)
from toy_story_models import make_story_folder
from toy_text_models import save_text_model

from fairseq_mm.cli import doctor
from fairseq_mm.cli.main import main
from fairseq_mm.models._provenance import fingerprint


@pytest.fixture
def data(tmp_path):
    """A folder with no fault but that its features name no whole extractor."""
    return make_captions_folder(tmp_path / "data")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_captioner(folder, folder / "data")
    return folder


def cut(path, count=1):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-count]))


def test_a_whole_installation_has_no_problem(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    subjects = [line.split()[1].rstrip(":") for line in lines]
    assert subjects[:5] == ["Python", "numpy", "h5py", "torch", "torchvision"]
    assert {"fairseq", "pycocoevalcap", "timm", "device"} <= set(subjects)
    assert lines[-1] == "no problem found"


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        ("sys.path.insert(0, {folder!r})", "does not import (ZeroDivisionError"),
        ("sys.modules['h5py'] = None", "h5py: does not import (ModuleNotFoundError"),
    ],
)
def test_it_runs_where_a_package_is_missing_or_broken(started_python, tmp_path, break_it, message):
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq/__init__.py").write_text("1 / 0\n")
    make_captions_folder(tmp_path / "data")
    code = (
        f"import sys; sys.argv[0] = 'fairseq-mm'; {break_it.format(folder=str(tmp_path))};"
        "from fairseq_mm.cli.main import main;"
        f"sys.exit(main(['doctor', '--data', {str(tmp_path / 'data')!r}, '--checkpoint', 'a.pt']))"
    )
    done = subprocess.run([started_python, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert message in "".join(x for x in done.stdout.splitlines() if x.startswith("PROBLEM"))
    assert "Traceback" not in done.stderr


def test_two_builds_of_fairseq_are_reported(monkeypatch):
    build = importlib.metadata.distribution("numpy")
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: [build])
    ((level, _, text, _),) = doctor.check_fairseq()
    assert level == "PROBLEM"
    assert "both are installed, in the same folder" in text


@pytest.mark.parametrize(
    ("make", "kind", "expected"),
    [
        (make_captions_folder, "captions", ["dict.txt: 16 words", "valid: 21 lines of 7 items"]),
        (make_visual_stories_folder, "visual stories", ["dict.txt: 17 words", "valid: "]),
        (make_story_folder, "prompts", ["dict.wp_source.txt: 13 words", "train: 8 pairs"]),
        (make_videos_folder, "videos", ["dict.tran.txt: 16 words", "train: 8 videos"]),
    ],
)
def test_a_whole_folder_has_no_problem(examine, tmp_path, make, kind, expected):
    folder = make(tmp_path / "data")
    assert doctor.find_data_folder(str(folder)) == (str(folder), kind)
    _, lines, problems = examine("--data", folder)
    assert problems == []
    for text in expected:
        assert any(line.startswith("ok ") and text in line for line in lines), text


@pytest.mark.parametrize("part", ["prompts", "stories"])
def test_the_folder_of_a_language_model_is_read_with_its_pairs(examine, tmp_path, part):
    folder = make_story_folder(tmp_path / "data")
    assert doctor.find_data_folder(str(folder / part)) == (str(folder), "prompts")
    _, lines, problems = examine("--data", folder / part)
    assert problems == []
    assert "ok       train: 8 pairs" in lines


def test_a_folder_of_text_alone_has_no_problem(examine, data):
    for path in (*data.glob("*.visual_ids"), *data.glob("*.references.jsonl")):
        path.unlink()
    (data / "features.h5").unlink()
    _, lines, problems = examine("--data", data)
    assert problems == []
    assert any("its text is not checked" in line for line in lines)


def spoil_row(data):
    with h5py.File(data / "features.h5", "r+") as file:
        file["features"][3, 2] = np.nan


def replace_store(data, keys):
    (data / "features.h5").unlink()
    write_store(data / "features.h5", keys)


def write_empty_line(data):
    write_split(data, "test", [("valid0.jpg", "a dog"), ("valid1.jpg", "")], make_dictionary())


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (lambda data: cut(data / "valid.visual_ids", 3), ["valid.visual_ids has 18 lines, but"]),
        (lambda data: cut(data / "valid.references.jsonl", 2), ["has no references for 'valid5"]),
        (
            lambda data: (data / "train.bin").write_bytes(b""),
            ["train.bin and .idx: cannot be read"],
        ),
        (lambda data: (data / "valid.idx").unlink(), ["valid.bin and .idx: cannot be read"]),
        (write_empty_line, ["line 2 has no word (1 empty in all)"]),
        (spoil_row, ["the features of 'train3.jpg' have NaN or infinite values"]),
        (
            lambda data: replace_store(data, [f"train{i}.jpg" for i in range(9)]),
            ["3 of 12 images of train have none there", "7 of 7 images of valid have none there"],
        ),
        (
            lambda data: (data / "dict.txt").write_text("a 9\nthe 8\n"),
            ["it has the numbers", "but the dictionary has 6 types"],
        ),
        (lambda data: (data / "dict.txt").unlink(), ["dict.txt: cannot be read as a dictionary"]),
        (
            lambda data: [path.unlink() for path in data.glob("*.*") if path.suffix in SPLIT_FILES],
            ["has none of the splits train, valid, test"],
        ),
    ],
)
def test_damage_is_a_problem(examine, data, damage, messages):
    damage(data)
    _, _, problems = examine("--data", data)
    for problem, message in zip(problems, messages):
        assert message in problem
    assert len(problems) == len(messages)


SPLIT_FILES = (".bin", ".idx", ".visual_ids")


def test_stores_that_the_folder_lists_are_its_features(examine, data, tmp_path):
    (data / "features.h5").unlink()
    first, second = tmp_path / "a.h5", tmp_path / "b.h5"
    write_store(first, [f"train{i}.jpg" for i in range(12)])
    write_store(second, [f"valid{i}.jpg" for i in range(7)])
    listed = data / "features.json"
    listed.write_text('[{"store": "../a.h5"}, {"store": "../b.h5"}]')
    _, lines, problems = examine("--data", data)
    assert problems == []
    assert any(line.startswith(f"ok       {first}:{second}: 19 items") for line in lines)
    listed.write_text('[{"store": "../a.h5", "prefix": "other/"}, {"store": "../b.h5"}]')
    _, _, (problem,) = examine("--data", data)
    assert "no features for 'train0.jpg'" in problem


def test_videos_without_features_are_for_models_of_text(examine, tmp_path):
    folder = make_videos_folder(tmp_path / "data")
    for path in folder.glob("features.*"):
        path.unlink()
    assert examine("--data", folder)[2] == []


def test_a_checkpoint_and_its_data_have_no_problem(examine, trained):
    data = trained / "data.moved"
    _, lines, problems = examine("--data", data, "--checkpoint", trained / "checkpoint_last.pt")
    assert problems == []
    expected = "--arch m_rnn_tiny, --task multimodal_captioning, 15 updates, epoch 3"
    assert any(line.endswith(f"checkpoint_last.pt: {expected}") for line in lines)
    assert f"ok       checkpoint: dictionary of 16 words, {fingerprint(WORDS)}" in lines


def test_a_checkpoint_of_other_data_is_found(examine, trained, tmp_path):
    data = shutil.copytree(trained / "data.moved", tmp_path / "data")
    words = [*WORDS[:-2], WORDS[-1], WORDS[-2]]
    (data / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    _, _, problems = examine("--data", data, "--checkpoint", trained)
    assert fingerprint(WORDS) in problems[0]
    assert fingerprint(words) in problems[0]
    write_store(tmp_path / "narrow.h5", ["a"], attributes={})
    _, _, problems = examine("--features", tmp_path / "narrow.h5", "--checkpoint", trained)
    assert "narrow.h5 with 5." in problems[0]
    drawn = {"extractor": "drawn", "weights": "w", "layer": "l", "grid": 0, "preprocessing": "{}"}
    write_store(tmp_path / "other.h5", ["a"], dim=DIM, attributes=drawn)
    _, _, problems = examine("--features", tmp_path / "other.h5", "--checkpoint", trained)
    assert "another extractor" in problems[0]
    story = save_text_model(tmp_path / "story.pt")
    problem = examine("--checkpoint", story, "--data", trained / "data.moved")[2][0]
    assert "is a model of prompts (--task translation), but" in problem


def test_both_dictionaries_of_a_story_model_are_named_and_compared(examine, tmp_path):
    data = make_story_folder(tmp_path / "data")
    words = {
        side: [x.split()[0] for x in (data / f"dict.wp_{side}.txt").read_text().splitlines()]
        for side in ("source", "target")
    }
    pair = {"words": words["target"], "source_words": words["source"]}
    story = save_text_model(tmp_path / "story.pt", **pair)
    _, lines, problems = examine("--checkpoint", story, "--data", data)
    assert problems == []
    for side, own in words.items():
        expected = f"{side} dictionary of {len(own)} words, {fingerprint(own)}"
        assert f"ok       checkpoint: {expected}" in lines
    story = save_text_model(tmp_path / "o.pt", **{**pair, "source_words": words["source"][::-1]})
    _, _, (problem,) = examine("--checkpoint", story, "--data", data)
    expected = f"13 (fingerprint {fingerprint(words['source'])})"
    assert f"source dictionary of the data folder has {expected}" in problem


def spoil(bias):
    bias[7] = float("nan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weights": {"decoder.output_proj.bias": spoil}},
            "decoder.output_proj.bias has NaN or infinite values -> name another checkpoint",
        ),
        ({"provenance": {"words": [*WORDS, "more"]}}, "weights do not fit --arch m_rnn_tiny"),
        (None, "changed.pt: cannot be loaded safely"),
    ],
)
def test_a_broken_checkpoint_is_found(examine, trained, tmp_path, change, message):
    path = tmp_path / "changed.pt"
    if change is None:
        path.write_text("no checkpoint")
    else:
        change_checkpoint(trained / "checkpoint_last.pt", path, **change)
    assert message in examine("--checkpoint", path)[2][0]


def test_missing_weights_of_the_extractor_are_found(examine, trained, tmp_path):
    file = Path(shutil.copy(trained / "checkpoint_last.pt", tmp_path))
    weights = trained / "squeezenet.pth"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    _, _, (found,) = examine("--checkpoint", file)
    assert f"features of squeezenet1_1 with weights from a file (SHA-256 {digest})" in found
    _, lines, problems = examine("--checkpoint", file, "--weights", weights)
    assert problems == []
    assert f"ok       weights of squeezenet1_1: {weights}" in lines
    (tmp_path / "other.pth").write_bytes(b"other weights")
    _, _, problems = examine("--checkpoint", file, "--weights", tmp_path / "other.pth")
    assert f"must have the SHA-256 {digest[:12]}... of the weights" in problems[0]
