"""Repairs of fairseq's training: gradients on a CPU, positions and batches of resumed data."""

import inspect
import math
import shutil

import numpy as np
import pytest
import torch
from fairseq import utils
from fairseq.data.iterators import EpochBatchIterator
from toy_data import run_fairseq
from toy_story_models import make_story_folder
from toy_training_states import assert_same_training

from fairseq_mm.data.multimodal_dataset import MultimodalDataset


class Numbers(MultimodalDataset):
    """Data of this package: repairs of iterators leave other data sets alone."""

    def __init__(self):
        pass

    def __getitem__(self, index):
        return index

    def __len__(self):
        return 10


def epoch_iterator(num_shards, shard_id, batch_size=1, examples=10, **options):
    batches = np.array_split(np.arange(examples), math.ceil(examples / batch_size))
    batches = [batch.tolist() for batch in batches]
    return EpochBatchIterator(
        Numbers(), list, batches, num_shards=num_shards, shard_id=shard_id, **options
    )


REUSING = {
    name: True
    for name in ("reuse_dataloader", "persistent_workers")
    if name in inspect.signature(EpochBatchIterator).parameters
}


def test_batches_are_shuffled_where_the_curriculum_ends():
    iterator = epoch_iterator(1, 0, **REUSING)
    orders = [list(iterator.next_epoch_itr(shuffle=shuffle)) for shuffle in (False, True)]
    assert orders[0] == sorted(orders[1]) != orders[1]


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("now", [1, 2, 3, 4])
def test_other_processes_go_on_where_the_data_was_left(before, now):
    """Nothing is left out, and less than one update's batches are read again."""
    for steps in range(1, -(-10 // before)):
        read, position = [], {}
        for shard in range(before):
            iterator = epoch_iterator(before, shard)
            iterator.next_epoch_itr().skip(steps)
            position = {**iterator.state_dict(), "num_shards": before}
        order = epoch_iterator(1, 0).next_epoch_itr()
        order = [batch[0] for batch in order]
        for shard in range(now):
            iterator = epoch_iterator(now, shard)
            iterator.load_state_dict(position)
            read += [batch[0] for batch in iterator.next_epoch_itr() if batch]
        expected = set(order[steps * before :])
        assert expected <= set(read)
        assert len(read) - len(expected) < now
        if before == now or steps * before % now == 0:
            assert len(read) == len(expected)


@pytest.mark.parametrize("before", [1, 2, 4])
@pytest.mark.parametrize("now", [1, 2, 4])
@pytest.mark.parametrize("examples", [64, 61])
def test_processes_that_share_a_batch_go_on_after_as_many_updates(before, now, examples):
    """As the recipes' do, whose batches of all processes together have 8 examples."""
    for updates in range(1, 8):
        iterator = epoch_iterator(before, 0, 8 // before, examples)
        iterator.next_epoch_itr().skip(updates)
        position = {**iterator.state_dict(), "num_shards": before}
        iterator = epoch_iterator(now, 0, 8 // now, examples)
        iterator.load_state_dict(position)
        found = iterator.iterations_in_epoch
        assert found == updates if examples == 64 else 0 <= updates - found <= 1


def test_larger_batches_continue_an_epoch_that_had_only_its_last_one_left():
    iterator = epoch_iterator(1, 0)
    iterator.next_epoch_itr().skip(9)
    position = iterator.state_dict()
    iterator = epoch_iterator(1, 0, 5)
    iterator.load_state_dict(position)
    assert iterator.iterations_in_epoch == 1


@pytest.mark.parametrize("options", [(), ("--update-ordered-indices-seed",)])
def test_a_training_resumed_in_a_later_epoch_has_the_batches_of_the_first(
    tmp_path, monkeypatch, options
):
    """The order of prompts of one length is drawn at random."""
    data = make_story_folder(tmp_path / "data", train=12) / "prompts"

    def train(save_dir):
        arguments = (
            *(data, "--task", "language_modeling", "--arch", "gcnn_lm_tiny", "--cpu", *options),
            *("--criterion", "cross_entropy", "--optimizer", "adam", "--lr", "0.01", "--seed", "3"),
            *("--sample-break-mode", "eos", "--tokens-per-sample", "44", "--batch-size", "3"),
            *("--required-batch-size-multiple", "1", "--max-epoch", "3", "--num-workers", "0"),
            *("--save-interval-updates", "3", "--log-format", "none"),
            *("--save-dir", tmp_path / save_dir),
        )
        run_fairseq(monkeypatch, "train", *arguments)
        return torch.load(tmp_path / save_dir / "checkpoint_last.pt")

    whole = train("whole")
    for stopped in ("checkpoint1.pt", "checkpoint_2_6.pt", "checkpoint2.pt"):
        save_dir = tmp_path / f"resumed at {stopped}"
        save_dir.mkdir()
        shutil.copy(tmp_path / "whole" / stopped, save_dir / "checkpoint_last.pt")
        assert_same_training(whole, train(save_dir))


def test_gradients_on_the_cpu_are_clipped_there_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("meta"))
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.tensor([3.0, 0.0])
    norm = utils.clip_grad_norm_(iter(weights), 1.0)
    assert norm.device.type == "cpu"
    assert float(norm) == pytest.approx(18**0.5)
    assert float(weights[0].grad[0]) == pytest.approx(3 / 18**0.5, rel=1e-5)
    assert torch.cuda.is_available()
