"""VG-BART under fairseq-train: from a text-only BART, by separate learning rates, and refused."""

import re

import pytest
import torch
from toy_bart import write_bart
from toy_data import make_videos_folder, run_fairseq

from fairseq_mm.inference.checkpoint import Checkpoint

TRAINING = (
    *("--task", "video_summarization", "--arch", "vg_bart_tiny", "--criterion", "cross_entropy"),
    *("--optimizer", "adam", "--batch-size", "3", "--max-update", "1", "--num-workers", "0"),
    *("--cpu", "--no-epoch-checkpoints", "--log-format", "none", "--disable-validation"),
)


@pytest.fixture
def data(tmp_path):
    return make_videos_folder(tmp_path / "data")


# stock fairseq's encoder layers have their weights a second time, and train one of the two
STOCKS_COPIES = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_")


def train(monkeypatch, data, save_dir, *options):
    run_fairseq(monkeypatch, "train", data, *TRAINING, "--save-dir", save_dir, *options)
    weights = Checkpoint.open(save_dir / "checkpoint_last.pt").weights
    return {key: x for key, x in weights.items() if not STOCKS_COPIES.match(key)}


def test_training_begins_with_a_published_bart(monkeypatch, tmp_path, data):
    path, weights = write_bart(tmp_path / "bart.pt")
    trained = train(monkeypatch, data, tmp_path / "run", "--lr", "0", "--finetune-from-model", path)
    for key, x in weights.items():
        if key in trained:
            assert torch.equal(trained[key], x), key
    assert "encoder.fusions.1.output_proj.weight" in trained
