"""What is exported: files, their content, and what is refused before anything is written."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from toy_captioner import change_checkpoint

from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.data.model_folder import write_weights
from fairseq_mm.errors import UserError
from fairseq_mm.hub.export import export_checkpoint, write_checkpoint
from fairseq_mm.hub.model_card import read_scores
from fairseq_mm.inference.checkpoint import Checkpoint


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_a_folder_has_plain_files_and_their_digests(checkpoint, folder):
    names = ["README.md", "config.json", "dict.source.txt", "dict.txt", "model.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == names
    config = config_of(folder)
    assert config["architecture"] == "conv_story_tiny"
    assert config["task"] == "translation"
    assert config["plugin"] is None
    assert config["checkpoint_sha256"] == compute_sha256(checkpoint)
    weights = folder / "model.safetensors"
    assert config["weights"]["sha256"] == compute_sha256(weights)
    assert config["weights"]["bytes"] == weights.stat().st_size
    assert config["files"] == {
        name: compute_sha256(folder / name) for name in ("dict.source.txt", "dict.txt")
    }
    words = Checkpoint.open(checkpoint).words
    assert (folder / "dict.txt").read_text() == "".join(f"{word} 1\n" for word in words)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert len(modes) == 1
    assert not any(b"pickle" in path.read_bytes() for path in folder.iterdir())


def test_paths_of_this_machine_are_shortened(checkpoint, tmp_path):
    state = torch.load(checkpoint)
    state["cfg"]["task"].update(data="/home/me/data-bin/wp", features="/home/me/a.h5:/b/c.h5")
    state["cfg"]["common"]["user_dir"] = "/home/me/fairseq_mm"
    torch.save(state, tmp_path / "a.pt")
    export_checkpoint(Checkpoint.open(tmp_path / "a.pt"), str(tmp_path / "out"))
    assert config_of(tmp_path / "out")["task_options"]["data"] == "wp"
    assert config_of(tmp_path / "out")["task_options"]["features"] == "a.h5:c.h5"
    for path in (tmp_path / "out").iterdir():
        assert b"/home/me" not in path.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda cfg: cfg["model"].update(x={1: 2}),
            r"a\.pt: .*model_options\.x. must be plain JSON",
        ),
        (lambda cfg: cfg["model"].update(x=float("inf")), r"model_options\.x. must be plain JSON"),
        (lambda cfg: cfg["task"].update(x="\ud800"), r"task_options\.x. must be plain JSON"),
        (lambda cfg: cfg["task"].update(x=["${nowhere}"]), r"a\.pt: .*nowhere"),
        # environment variables would be shared
        (lambda cfg: cfg["task"].update(x="${oc.env:HOME}"), r"a\.pt: its options .*oc\.env"),
        (lambda cfg: cfg["model"].update(x="oc.env", y="${${x}:HOME}"), r"a\.pt: its options"),
    ],
)
def test_options_that_are_not_plain_json_are_refused(checkpoint, tmp_path, change, message):
    state = torch.load(checkpoint)
    change(state["cfg"])
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(UserError, match=message):
        export_checkpoint(Checkpoint.open(tmp_path / "a.pt"), str(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_the_folder_must_be_new_or_empty(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened = Checkpoint.open(checkpoint)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for path, message in (
        (name, "must be a new folder in an existing folder")
        for name in ("full", "full/x", "link", "none/x")
    ):
        with pytest.raises(UserError, match=f"^{path}: {message}"):
            export_checkpoint(opened, path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir("empty")
    export_checkpoint(opened, ".")
    assert "config.json" in os.listdir()
    assert sorted(os.listdir(tmp_path)) == ["empty", "full", "link"]


def test_weights_that_find_no_room_are_reported_in_one_line(checkpoint, folder, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    opened, output = Checkpoint.open(checkpoint), str(tmp_path / "out")
    # a limit of the size of files ends the libraries' writers, as a full disk does
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for write, source in ((export_checkpoint, opened), (write_checkpoint, str(folder))):
            with pytest.raises(UserError, match=rf"^{output}: cannot be written \([^\n]+\)\.$"):
                write(source, output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_share_memory_are_stored_once(tmp_path):
    table = torch.arange(12.0).reshape(3, 4)
    weights = {
        "a": table,
        "b": table,
        "c": table[1:],
        "d": table.t(),
        "e": torch.empty(0, 3),
        "f": torch.empty(0, 3),
        "g": torch.tensor(2.5, dtype=torch.float64),
        "h": torch.tensor([True, False]),
        "i": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
    }
    record = write_weights(weights, str(tmp_path))
    assert record["shared"] == {"b": "a"}
    from safetensors.torch import load_file

    loaded = load_file(tmp_path / "model.safetensors")
    assert set(loaded) == set(weights) - {"b"}
    for name, weight in loaded.items():
        assert weight.dtype == weights[name].dtype
        assert torch.equal(weight, weights[name])


def test_the_card_says_what_is_known(checkpoint, tmp_path):
    scores = {
        "scores": [
            {
                "metric": "bleu4",
                "value": 0.2172,
                "scored": 5,
                "signature": "bleu|refs:5",
                "interval": [0.2, 0.23],
            },
            {"metric": "a|b<x>", "value": None},
        ],
    }
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    result = read_scores(str(tmp_path / "scores.json"))
    export_checkpoint(Checkpoint.open(checkpoint), str(tmp_path / "out"), scores=result)
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: fairseq_mm\npipeline_tag: text-generation\n")
    assert "# license: fill in" in card
    assert "Convolutional story model" in card
    assert 'fairseq-mm tell --prompt "A dragon opens a bakery ." --checkpoint OWNER/NAME' in card
    assert "| bleu4 | 0.21720 | 0.20000 to 0.23000 | 5 | `bleu\\|refs:5` |" in card
    assert "| abx | - |  |  | `` |" in card
    assert compute_sha256(checkpoint) in card
    assert "Load the package" not in card


def test_the_extractor_and_the_extra_of_its_library_are_in_the_folder(checkpoint, tmp_path):
    extractor = {"extractor": "timm:x", "library": "timm 1.0"}
    extractor["weights"] = "x"
    path = change_checkpoint(checkpoint, tmp_path / "a.pt", provenance={"extractor": extractor})
    export_checkpoint(Checkpoint.open(path), str(tmp_path / "out"))
    assert Checkpoint.open(tmp_path / "out").extractor == extractor
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pip install 'fairseq-mm[fairseq,hub,timm]'" in card
    assert "timm 1.0" in card
    # two rows, not of the same name
    assert "| number of weights | " in card
    assert "| weights of the extractor | `x` |" in card


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{}", "x", '{"scores": []}', '{"scores": [7]}', '{"scores": [{"metric": "x"}]}'),
        '{"scores": [{"metric": 1, "value": 1}]}',
        '{"scores": [{"metric": "x", "value": true}]}',
    ],
)
def test_other_files_than_results_are_refused(tmp_path, text):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(
        UserError, match=r"s\.json: (must be a result of fairseq-mm score|not JSON)"
    ):
        read_scores(str(tmp_path / "s.json"))


def test_a_checkpoint_comes_back_from_a_folder(checkpoint, folder, tmp_path):
    write_checkpoint(str(folder), str(tmp_path / "a.pt"))
    before, after = Checkpoint.open(checkpoint), Checkpoint.open(tmp_path / "a.pt")
    assert set(after.weights) == set(before.weights)
    for name, weight in before.weights.items():
        assert torch.equal(after.weights[name], weight)
    assert after.provenance == before.provenance
    assert dict(after.cfg.model) == dict(before.cfg.model)
    for path, output, message in (
        (checkpoint, "b.pt", "is a checkpoint already; --to-checkpoint is for model folders"),
        (folder, "a.pt", "must be a new file"),
        (folder, "none/a.pt", "must be a new file in an existing folder"),
    ):
        with pytest.raises(UserError, match=message):
            write_checkpoint(str(path), str(tmp_path / output))


def test_the_command_exports_and_names_its_files(checkpoint, run_command, tmp_path):
    status, out, err = run_command("export", checkpoint, tmp_path / "out")
    assert (status, err) == (0, "")
    assert out.startswith(f"{tmp_path / 'out'}: --arch conv_story_tiny, ")
    assert out.endswith(": README.md, config.json, dict.source.txt, dict.txt, model.safetensors\n")
    status, out, err = run_command("export", tmp_path / "out", tmp_path / "a.pt", "--to-checkpoint")
    assert (status, err) == (0, "")
    assert out == f"{tmp_path / 'a.pt'}: checkpoint of 0 updates, without optimizer\n"
    for arguments, message in (
        ((checkpoint, tmp_path / "out"), "must be a new folder"),
        ((tmp_path / "none.pt", tmp_path / "x"), "none.pt: no such checkpoint or folder"),
        ((checkpoint, tmp_path / "x", "--scores", tmp_path / "none"), "none: cannot be read"),
        (
            (tmp_path / "out", tmp_path / "x", "--to-checkpoint", "--data", "d"),
            "leave all other options out",
        ),
    ):
        status, out, err = run_command("export", *arguments)
        assert (status, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    assert not Path(tmp_path / "x").exists()
