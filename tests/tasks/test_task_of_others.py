"""A task outside the package (``tests/toy_plugin``) gets training, validation, generation, scores,
reports and ``doctor`` without a line of ours that knows it."""

import json
import re
from pathlib import Path

import pytest
from toy_data import make_captions_folder, run_fairseq

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.inference.processor import Example

USER_DIR = str(Path(__file__).parents[1] / "toy_plugin")
COLOURS = {"a": [0.9, 0.1, 0.1], "b": [0.1, 0.2, 0.9]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder and a folder of checkpoints, trained and validated by fairseq."""
    folder = tmp_path_factory.mktemp("colours")
    make_captions_folder(folder / "data", dim=3)
    patch = pytest.MonkeyPatch()
    arguments = (
        *(folder / "data", "--task", "toy_colour_naming"),
        *("--arch", "m_rnn_tiny", "--criterion", "cross_entropy", "--optimizer", "adam"),
        *("--lr", "0.01", "--batch-size", "12", "--max-epoch", "3", "--cpu", "--num-workers", "0"),
        *("--eval-gen", "--best-checkpoint-metric", "cider", "--maximize-best-checkpoint-metric"),
        *("--save-dir", folder / "checkpoints", "--no-epoch-checkpoints"),
    )
    try:
        run_fairseq(patch, "train", *arguments, user_dir=USER_DIR)
    finally:
        patch.undo()
    return folder


@pytest.fixture
def lines(capsys):
    """Runs ``fairseq-mm``: exit status and lines of stdout."""

    def run(*arguments):
        capsys.readouterr()
        status = main([*map(str, arguments)]) or 0
        return status, capsys.readouterr().out.splitlines()

    return run


def test_python_and_the_command_generate_alike(trained, lines, tmp_path):
    model = fairseq_mm.from_pretrained(trained / "checkpoints", device="cpu")
    expected = [best.text for best, *_ in model.generate(list(COLOURS.values()))]
    assert model.generate(COLOURS["a"], preset="greedy")[0].index == 0
    inputs = tmp_path / "inputs.jsonl"
    records = [{"id": name, "colour": colour} for name, colour in COLOURS.items()]
    records.append({"id": "c", "colour": [2, 0, 0]})
    inputs.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ("generate", inputs, "--checkpoint", trained / "checkpoints", "--device", "cpu")
    status, printed = lines(*command, "--user-dir", USER_DIR)
    assert status == 2  # one of three is no colour
    assert [json.loads(line)["id"] for line in printed] == list(COLOURS)
    assert [json.loads(line)["hypothesis"] for line in printed] == expected


def test_fairseq_generates_the_same_from_the_data_folder(trained, monkeypatch, capsys):
    data = trained / "data"
    capsys.readouterr()
    run_fairseq(
        *(monkeypatch, "generate", data, "--task", "toy_colour_naming"),
        *("--path", trained / "checkpoints/checkpoint_best.pt", "--gen-subset", "valid"),
        *("--batch-size", "4", "--cpu", "--num-workers", "0"),
        user_dir=USER_DIR,
    )
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", capsys.readouterr().out, re.MULTILINE)
    texts = [text for _, text in sorted(found, key=lambda pair: int(pair[0]))]
    model = fairseq_mm.from_pretrained(trained / "checkpoints", device="cpu")
    store = FeatureStore(str(data / "features.h5"))
    examples = [Example(features=store.read(f"valid{i}.jpg")) for i in range(7)]
    assert [best.text for best, *_ in model.stream(examples, model.config())] == texts


def test_its_hypotheses_are_scored_and_shown(trained, lines, tmp_path):
    data, written = trained / "data", tmp_path / "valid.jsonl"
    names = list(dict.fromkeys((data / "valid.visual_ids").read_text().split()))
    written.write_text(
        "".join(
            json.dumps({"id": name, "hypothesis": "a dog runs", "score": -1}) + "\n"
            for name in names
        )
    )
    result, page = tmp_path / "scores.json", tmp_path / "page.html"
    scored = ("score", written, "--data", data, "--split", "valid", "--metrics", "bleu,cider")
    assert lines(*scored, "--json", result)[0] == 0
    names = [score["metric"] for score in json.loads(result.read_text())["scores"]]
    assert any("bleu" in name.lower() for name in names)
    shown = ("report", "--hypotheses", written, "--data", data, "--split", "valid")
    assert lines(*shown, "--output", page)[0] == 0
    assert "a dog runs" in page.read_text()


def test_the_doctor_finds_nothing_wrong(trained, lines):
    checkpoint = trained / "checkpoints" / "checkpoint_best.pt"
    _, printed = lines("doctor", "--data", trained / "data", "--checkpoint", checkpoint)
    mine = [line for line in printed if str(trained) in line or "checkpoint" in line]
    assert any("--task toy_colour_naming" in line for line in mine)
    # nothing but what made the features, which the toy's folder does not say
    problems = [line for line in mine if line.startswith("PROBLEM")]
    assert [line for line in problems if "no `preprocessing` is recorded" not in line] == []
