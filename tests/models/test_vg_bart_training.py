"""VG-BART under fairseq-train: from a text-only BART, by separate learning rates, and refused."""

import re

import pytest
import torch
from toy_bart import write_bart
from toy_data import make_videos_folder, run_fairseq

from fairseq_mm.errors import UserError
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


def test_a_bart_of_another_size_ends_training_with_one_line(monkeypatch, tmp_path, data):
    path, _ = write_bart(tmp_path / "large.pt", encoder_layers=3)
    with pytest.raises(UserError, match=r"large\.pt: its weights do not fit --arch vg_bart_tiny: "):
        train(monkeypatch, data, tmp_path / "run", "--lr", "0", "--finetune-from-model", path)


def test_training_goes_on_where_it_was_left(monkeypatch, tmp_path, data):
    options = ("--lr", "0.01", "--max-epoch", "2", "--dropout", "0", "--video-dropout", "0")
    whole = train(monkeypatch, data, tmp_path / "whole", *options, "--max-update", "4")
    train(monkeypatch, data, tmp_path / "parts", *options, "--max-update", "2")
    parts = train(monkeypatch, data, tmp_path / "parts", *options, "--max-update", "4")
    for key, x in whole.items():
        torch.testing.assert_close(parts[key], x, msg=key)
