"""``--ddp-backend fully_sharded`` by two processes on the CPU: see ``sharding_stand_ins.py``."""

import os

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import FullyShardedDataParallel
from numerics import assert_close
from toy_data import make_captions_folder
from toy_processes import needs_fork, train_by, training_configuration
from toy_story_models import make_story_folder

from fairseq_mm.errors import UserError

pytest.importorskip("fairscale", reason="the extra `sharding` is not installed")

TRAINING = (
    *("--optimizer", "adam", "--lr", "0.01", "--batch-size", "3", "--cpu", "--seed", "3"),
    *("--num-workers", "0", "--required-batch-size-multiple", "1", "--log-format", "none"),
)
MODELS = {
    "m_rnn_tiny": ("--task", "multimodal_captioning", "--criterion", "cross_entropy"),
    "conv_story_tiny": ("--task", "hierarchical_story", "--criterion", "chunked_cross_entropy"),
}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@needs_fork
@pytest.mark.parametrize("arch", MODELS)
def test_a_sharded_training_is_resumed_and_its_checkpoints_are_anybodys(tmp_path, arch):
    make_folder = make_captions_folder if arch.startswith("m_rnn") else make_story_folder
    data = make_folder(tmp_path / "data")

    def train(processes, name, max_epoch, backend="fully_sharded"):
        options = (*MODELS[arch], "--arch", arch, "--ddp-backend", backend)
        cfg = training_configuration(data, *options, *TRAINING)
        return train_by(processes, cfg, tmp_path / name, optimization={"max_epoch": max_epoch})

    whole = train(2, "whole", 2)
    expected = train(2, "plain", 2, "legacy_ddp")
    for name, weights in expected["model"].items():
        assert_close(whole["model"][name], weights)
    train(2, "parts", 1)
    resumed = train(2, "parts", 2)
    assert same(resumed["model"], whole["model"])
    for number, state in whole["last_optimizer_state"]["state"].items():
        found = resumed["last_optimizer_state"]["state"][number]
        assert all(torch.equal(found[x], state[x]) for x in ("exp_avg", "exp_avg_sq"))
    path = str(tmp_path / "parts" / "checkpoint_last.pt")
    models, *_ = checkpoint_utils.load_model_ensemble_and_task([path])
    assert same(models[0].state_dict(), whole["model"])
    # without shards, from where the sharded training ended
    alone = train(1, "parts", 3, "legacy_ddp")
    assert alone["extra_state"]["train_iterator"]["epoch"] == 4
    assert not same(alone["model"], whole["model"])


@needs_fork
def test_shards_are_merged(tmp_path):
    data = make_captions_folder(tmp_path / "data")
    options = (*MODELS["m_rnn_tiny"], "--arch", "m_rnn_tiny", "--ddp-backend", "fully_sharded")
    cfg = training_configuration(data, *options, *TRAINING)
    whole = train_by(2, cfg, tmp_path, optimization={"max_epoch": 1})
    sharded = {"use_sharded_state": True}
    train_by(2, cfg, tmp_path, optimization={"max_epoch": 1}, distributed_training=sharded)
    path = str(tmp_path / "checkpoint_last.pt")
    os.remove(path)
    models, *_ = checkpoint_utils.load_model_ensemble_and_task([path], strict=False, num_shards=2)
    assert same(models[0].state_dict(), whole["model"])
    shard = str(tmp_path / "checkpoint_last-shard0.pt")
    with pytest.raises(UserError, match=r"shard0\.pt: is a shard.* --checkpoint-shard-count"):
        checkpoint_utils.load_model_ensemble_and_task([shard])


def test_fixed_parameters_are_refused_in_one_line():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    with pytest.raises(UserError, match=r"1 of 4 parameters of Sequential are fixed.* --zero-"):
        FullyShardedDataParallel(model)
