"""Trainings that diverge end in one line, which names the last usable checkpoint."""

import re

import pytest
import torch
from fairseq.trainer import Trainer
from toy_captioner import change_checkpoint
from toy_data import needs_float16_on_cpu, run_fairseq

from fairseq_mm.errors import UserError

OPTIONS = (
    *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--criterion", "cross_entropy"),
    *("--optimizer", "adam", "--batch-size", "6", "--num-workers", "0", "--cpu", "--seed", "3"),
    *("--clip-norm", "0", "--disable-validation", "--log-format", "none", "--max-update", "7"),
    *("--save-interval-updates", "1", "--no-epoch-checkpoints"),
)


def train(data, save_dir, *options):
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", data, *OPTIONS, "--save-dir", save_dir, *options)


@pytest.mark.parametrize("precision", [(), ("--bf16",)])
def test_a_learning_rate_that_is_far_too_large_ends_in_a_line(data, tmp_path, precision):
    with pytest.raises(UserError) as refusal:
        train(data, tmp_path, "--lr", "1e30", *precision)
    message = str(refusal.value)
    found = re.search(r"diverged at update (\d+): the gradients are not finite; ", message)
    updates = int(found.group(1)) - 1
    assert updates > 0
    newest = tmp_path / f"checkpoint_1_{updates}.pt"
    names = [newest, tmp_path / "checkpoint_last.pt"]
    assert any(f"weights is {name} ({updates} updates): continue" in message for name in names)
    assert message.endswith("more --warmup-updates or a smaller --clip-norm above 0.")


def test_a_training_that_diverges_at_once_has_no_checkpoint(data, tmp_path, monkeypatch):
    clip = Trainer.clip_grad_norm
    monkeypatch.setattr(Trainer, "clip_grad_norm", lambda self, x: clip(self, x) * torch.nan)
    with pytest.raises(UserError, match=rf"update 1: .* no checkpoint in {tmp_path} has finite"):
        train(data, tmp_path, "--lr", "0.01")


def test_weights_that_are_not_finite_are_named_with_the_checkpoint_before(data, tmp_path):
    train(data, tmp_path, "--lr", "0.01", "--max-update", "2")
    path = tmp_path / "checkpoint_last.pt"
    name = next(iter(torch.load(path)["model"]))
    change_checkpoint(path, path, weights={name: lambda weight: weight.fill_(torch.nan)})
    with pytest.raises(UserError) as refusal:
        train(data, tmp_path, "--lr", "0.01")
    message = str(refusal.value)
    assert f"at update 3: 1 of the model's weights are not finite, first {name}; " in message
    assert re.search(r"is \S*/checkpoint_1_2\.pt \(2 updates\): continue", message)


@needs_float16_on_cpu
def test_the_smallest_loss_scale_ends_in_a_line(data, tmp_path):
    options = ("--fp16", "--fp16-init-scale", str(2**40), "--min-loss-scale", str(2**39))
    with pytest.raises(UserError, match=r"update 1: gradients overflow float16 at the smallest"):
        train(data, tmp_path, "--lr", "0.01", *options)


def test_gradients_that_differ_between_processes_are_no_divergence(data, tmp_path, monkeypatch):
    def differ(self, norm):
        self._grad_norm_buf = torch.tensor([1.5, 2.5])
        raise FloatingPointError("Fatal error: gradients are inconsistent between workers.")

    monkeypatch.setattr(Trainer, "_check_grad_norms", differ)
    with pytest.raises(UserError, match=r"update 1: the norms .* 1\.5, 2\.5: give --ddp-backend"):
        train(data, tmp_path, "--lr", "0.01")


def test_other_errors_of_an_update_stay_as_they_are(data, tmp_path, monkeypatch):
    def fail(self, norm):
        raise KeyError("a bug")

    monkeypatch.setattr(Trainer, "clip_grad_norm", fail)
    with pytest.raises(KeyError, match="a bug"):
        train(data, tmp_path, "--lr", "0.01")
