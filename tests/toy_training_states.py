"""Trainings that are resumed, and whether two of them are the same to the last bit."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_data import run_fairseq
from toy_processes import STOCK_COPIES

OPTIONS = (
    *("--optimizer", "adam", "--lr", "0.01", "--batch-size", "6", "--num-workers", "0", "--cpu"),
    *("--log-format", "none", "--seed", "3", "--no-epoch-checkpoints", "--disable-validation"),
    *("--max-epoch", "0", "--criterion", "cross_entropy"),
)
# logged, and neither time nor what follows from it
TIMES = re.compile("wps|ups|wall")


def train_until(data: Path, save_dir: Path, max_update: int, *options: object) -> Any:
    """Train, or continue from ``checkpoint_last.pt`` of the folder, and return the checkpoint."""
    arguments = (data, *OPTIONS, "--save-dir", save_dir, "--max-update", max_update, *options)
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *arguments)
    return torch.load(save_dir / "checkpoint_last.pt")


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal to the last bit, in containers too."""
    assert type(one) is type(other), where
    if torch.is_tensor(one):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, pair in enumerate(zip(one, other)):
            assert_same(*pair, f"{where}[{index}]")
    else:
        assert one == other, where


def assert_same_training(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare two checkpoints: weights, optimizer, position in the data, scores and patience."""
    weights = [
        {name: x for name, x in state["model"].items() if not STOCK_COPIES.search(name)}
        for state in (one, other)
    ]
    assert_same(*weights, "model")
    for key in ("criterion", "last_optimizer_state", "task_state"):
        assert_same(one[key], other[key], key)
    assert_same(one["optimizer_history"][-1], other["optimizer_history"][-1], "optimizer_history")
    for key in ("train_iterator", "val_loss", "best", "stopping"):  # not all without validation
        assert_same(one["extra_state"].get(key), other["extra_state"].get(key), key)


def logged(path: Path) -> list[dict[str, Any]]:
    """What a file of ``--log-format json`` has of updates, validations and epochs, but for times.

    Args:
        path: the training's ``--log-file``.
    """
    lines = path.read_text().splitlines()
    # fairseq logs to the file twice from the second epoch on
    lines = list(dict.fromkeys(line for line in lines if line.startswith('{"')))
    return [{k: v for k, v in json.loads(line).items() if not TIMES.search(k)} for line in lines]
