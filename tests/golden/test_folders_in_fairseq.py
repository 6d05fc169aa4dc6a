"""fairseq's commands take a model folder where they take a checkpoint."""

import json

import pytest
import torch
from golden_commands import generate, train
from golden_files import DATA
from invocations import CHECKPOINT

pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def exported(root, tmp_path_factory):
    """Folder with a caption model and a story model, exported."""
    from fairseq_mm.hub.export import export_checkpoint
    from fairseq_mm.inference.checkpoint import Checkpoint

    folder = tmp_path_factory.mktemp("exported")
    for name, family in (("m_rnn", "captions"), ("conv_story_gated", "prompts")):
        checkpoint = Checkpoint.open(root / family / name / CHECKPOINT)
        export_checkpoint(checkpoint, str(folder / name))
    return folder


def test_generation_by_path(root, exported):
    outputs = [
        generate(
            root / DATA / "captions",
            *("--task", "multimodal_captioning", "--path", path, "--cpu", "--gen-subset", "valid"),
        )
        for path in (root / "captions" / "m_rnn" / CHECKPOINT, exported / "m_rnn")
    ]
    hypotheses = [[line for line in lines if line.startswith("H-")] for lines in outputs]
    assert hypotheses[0] == hypotheses[1]
    assert len(hypotheses[0]) == 7


@pytest.mark.parametrize("option", ["--finetune-from-model", "--restore-file"])
def test_a_training_begins_with_the_weights(root, exported, tmp_path, option):
    weights = []
    # --restore-file of the checkpoint also continues its optimizer, which a folder does not have
    reset = ["--reset-optimizer", "--reset-lr-scheduler", "--reset-dataloader", "--reset-meters"]
    for path in (root / "captions" / "m_rnn" / CHECKPOINT, exported / "m_rnn"):
        place = tmp_path / str(len(weights))
        train(
            root / DATA / "captions",
            *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--optimizer", "adam"),
            *("--lr", "1e-4", "--batch-size", "4", "--max-update", "2", "--cpu", "--seed", "1"),
            *("--save-dir", place, "--no-epoch-checkpoints", "--num-workers", "0", option, path),
            *(reset if option == "--restore-file" else ()),
            *("--log-format", "none"),
        )
        weights.append(torch.load(place / "checkpoint_last.pt")["model"])
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    before = torch.load(root / "captions" / "m_rnn" / CHECKPOINT)["model"]
    assert any(not torch.equal(before[name], weights[1][name]) for name in before)


def test_a_fusion_begins_with_a_folder(root, exported, tmp_path):
    from fairseq_mm.hub.export import export_checkpoint
    from fairseq_mm.inference.checkpoint import Checkpoint

    train(
        root / DATA / "prompts",
        *("--task", "hierarchical_story", "--arch", "conv_story_fusion"),
        *("--max-source-positions", "24", "--max-target-positions", "160"),
        *("--encoder-embed-dim", "12", "--decoder-embed-dim", "12", "--decoder-out-embed-dim"),
        *("12", "--encoder-layers", "[(12,3)]", "--decoder-layers", "[(12,4)]*2"),
        *("--pretrained-checkpoint", exported / "conv_story_gated", "--optimizer", "adam"),
        *("--criterion", "cross_entropy", "--lr", "1e-3", "--batch-size", "4", "--max-update", "1"),
        *("--cpu", "--save-dir", tmp_path / "out", "--no-epoch-checkpoints", "--num-workers", "0"),
        *("--log-format", "none", "--disable-validation"),
    )
    fusion = Checkpoint.open(tmp_path / "out" / "checkpoint_last.pt")
    before = torch.load(root / "prompts" / "conv_story_gated" / CHECKPOINT)["model"]
    frozen = [x for name, x in fusion.weights.items() if ".frozen." in name and x.dim() > 1]
    assert frozen
    for weight in frozen:
        assert any(torch.equal(weight, x) for x in before.values())
    export_checkpoint(fusion, str(tmp_path / "folder"))
    options = json.loads((tmp_path / "folder" / "config.json").read_text())["model_options"]
    assert options["pretrained_checkpoint"] == "conv_story_gated"
