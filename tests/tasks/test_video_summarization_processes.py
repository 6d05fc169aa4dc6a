"""Summaries are trained alike by one process, by two, and by a run that is resumed."""

import functools

import pytest
import torch
from toy_data import make_videos_folder, run_fairseq
from toy_processes import STOCK_COPIES, needs_fork, run_two_processes

TRAINING = (
    *("--task", "video_summarization", "--arch", "vg_bart_tiny", "--dropout", "0"),
    *("--criterion", "cross_entropy", "--optimizer", "adam_parameter_groups", "--lr", "0.002"),
    *("--added-lr", "0.01", "--lr-scheduler", "epoch_decay", "--decay-epochs", "1"),
    *("--clip-norm", "1", "--batch-size", "2", "--num-workers", "0", "--cpu"),
    *("--no-epoch-checkpoints", "--log-format", "none", "--required-batch-size-multiple", "1"),
)
EVALUATION = (
    *("--eval-gen", "--eval-gen-args", '{"beam": 2, "max_len_b": 6}'),
    *("--best-checkpoint-metric", "rouge1", "--maximize-best-checkpoint-metric"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_videos_folder(tmp_path_factory.mktemp("videos") / "data")


def train(data, save_dir, *options, name="checkpoint_last.pt"):
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = (data, *TRAINING, "--save-dir", save_dir, *options)
        run_fairseq(monkeypatch, "train", *arguments)
    return torch.load(save_dir / name)


def assert_same_weights(one, other, **tolerances):
    assert one["model"].keys() == other["model"].keys()
    for name, weights in one["model"].items():
        if STOCK_COPIES.search(name):
            continue
        torch.testing.assert_close(other["model"][name], weights, msg=name, **tolerances)


@needs_fork
@pytest.mark.parametrize("sharding", [(), ("--zero-sharding", "os")])
def test_two_processes_train_and_score_as_one_does(data, tmp_path, sharding):
    if sharding:
        pytest.importorskip("fairscale")
    # Adam divides gradients by their size, so that one that is nearly zero is rounding alone
    options = (*EVALUATION, "--max-epoch", "2", "--adam-eps", "1e-3")
    backend = ("--ddp-backend", "legacy_ddp")
    run_two_processes(
        functools.partial(train, data, tmp_path / "two", *options, *backend, *sharding)
    )
    two = torch.load(tmp_path / "two" / "checkpoint_last.pt")
    # one process takes both processes' batches before each step
    one = train(data, tmp_path / "one", *options, "--update-freq", "2")
    assert_same_weights(one, two, atol=1e-5, rtol=1e-4)
    assert one["extra_state"]["val_loss"] == pytest.approx(two["extra_state"]["val_loss"])
