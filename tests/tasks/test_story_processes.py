"""Fusion training by two processes equals that by one, with the frozen part in place."""

import functools

import pytest
import torch
from numerics import assert_close
from toy_data import run_fairseq
from toy_processes import needs_fork, run_two_processes
from toy_story_models import FUSION, make_story_folder

TRAINING = (
    *("--task", "hierarchical_story", "--max-source-positions", "40"),
    *("--max-target-positions", "44", "--criterion", "chunked_cross_entropy", "--cpu"),
    *("--optimizer", "adam", "--lr", "0.01", "--num-workers", "0", "--log-format", "none"),
    *("--no-epoch-checkpoints", "--disable-validation", "--seed", "3", "--dropout", "0"),
)


def train(data, save_dir, *options):
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = (data, *TRAINING, "--save-dir", save_dir, "--max-update", "2", *options)
        run_fairseq(monkeypatch, "train", *arguments)
    return torch.load(save_dir / "checkpoint_last.pt")["model"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    make_story_folder(folder / "data", train=7)
    train(folder / "data", folder / "pretrained", "--arch", "conv_story_tiny", "--batch-size", "2")
    return folder


@needs_fork
def test_two_processes_train_fusion_as_one_does(folder, tmp_path):
    """Seven stories in batches of two: in the last step, one process has none or fewer."""
    pretrained = folder / "pretrained" / "checkpoint_last.pt"
    options = (
        *("--arch", "conv_story_fusion", *FUSION.split(), "--decoder-out-embed-dim", "10"),
        *("--pretrained-checkpoint", pretrained, "--batch-size", "2"),
    )
    ranks = (*options, "--ddp-backend", "pytorch_ddp")
    run_two_processes(functools.partial(train, folder / "data", tmp_path / "two", *ranks))
    two = torch.load(tmp_path / "two" / "checkpoint_last.pt")["model"]
    # one process takes both processes' batches before each step
    one = train(folder / "data", tmp_path / "one", *options, "--update-freq", "2")
    frozen = torch.load(pretrained)["model"]
    assert one.keys() == two.keys()
    for name, weights in one.items():
        # a key's bias has no gradient but roundings, which Adam makes as large as any other
        if not name.endswith("key_proj.bias"):
            assert_close(two[name], weights, msg=name)
        if name.startswith("decoder.frozen."):
            origin = name.replace("decoder.frozen.", "decoder.trunk.")
            assert torch.equal(two[name], frozen[origin]), name
