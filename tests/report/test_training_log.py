"""Both of fairseq's log formats give the same curves."""

import json
from pathlib import Path

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.report.training_curves import read_training_log

STAMP = "2026-01-02 03:04:05 | INFO |"
JSON_LINES = [
    f"{STAMP} fairseq_cli.train | training on 1 devices (GPUs/TPUs)",
    f"{STAMP} train_inner | "
    + json.dumps({"epoch": 1, "update": 0.5, "loss": "9", "num_updates": "5"}),
    f"{STAMP} train | "
    + json.dumps({"epoch": 1, "train_loss": "4", "train_ppl": "16", "train_num_updates": "10"}),
    f"{STAMP} valid | "
    + json.dumps(
        {"epoch": 1, "valid_loss": "3", "valid_cider": 0.25, "valid_num_updates": "10"}
        | {"valid_best_loss": "3"}
    ),
    f"{STAMP} train | "
    + json.dumps({"epoch": 2, "train_loss": "2.5", "train_ppl": "inf", "train_num_updates": "20"}),
]
SIMPLE_LINES = [
    "epoch 001 | loss 4 | ppl 16 | wps 300.1 | num_updates 10 | lr 0.001 | train_wall 3",
    f"{STAMP} valid | epoch 001 | valid on 'valid' subset | loss 3 | cider 0.25 | num_updates 10 "
    "| best_loss 3",
    f"{STAMP} train_inner | epoch 002:      5 / 10 loss=9, ppl=512",
    f"{STAMP} train | epoch 002 | loss 2.5 | ppl inf | num_updates 20 | lr 0.002",
]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_json_lines_at_ends_of_epochs_are_read(tmp_path):
    assert read_training_log(write(tmp_path / "log", JSON_LINES)) == {
        "loss": {"train": {10: 4, 20: 2.5}, "valid": {10: 3}},
        "ppl": {"train": {10: 16}},
        "cider": {"valid": {10: 0.25}},
    }


def test_simple_lines_are_read_with_and_without_time_stamps(tmp_path):
    assert read_training_log(write(tmp_path / "log", SIMPLE_LINES)) == {
        "loss": {"train": {10: 4, 20: 2.5}, "valid": {10: 3}},
        "ppl": {"train": {10: 16}},
        "cider": {"valid": {10: 0.25}},
        "lr": {"train": {10: 0.001, 20: 0.002}},
    }


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    lines = [*SIMPLE_LINES, "epoch 002 | loss 2.25 | num_updates 20"]
    curves = read_training_log(write(tmp_path / "log", lines))
    assert curves["loss"]["train"] == {10: 4, 20: 2.25}


def test_other_validation_sets_have_their_own_curve(tmp_path):
    lines = ["epoch 001 | valid1 on 'valid1' subset | loss 3.5 | num_updates 10"]
    curves = read_training_log(write(tmp_path / "log", lines))
    assert curves == {"loss": {"valid1": {10: 3.5}}}


def test_a_log_without_epochs_is_refused(tmp_path):
    path = write(tmp_path / "log", ["nothing", '{"epoch": 1, broken'])
    with pytest.raises(UserError, match="log: has no line of fairseq-train that ends an epoch"):
        read_training_log(path)
    with pytest.raises(UserError, match="missing: cannot be read: No such file"):
        read_training_log(tmp_path / "missing")
