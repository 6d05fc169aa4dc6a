"""Repairs of fairseq's training: gradients of ``--amp``, positions and batches of resumed data."""

import functools
import gc
import inspect
import math
import shutil
import time
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq import utils
from fairseq.data.iterators import BufferedIterator, EpochBatchIterator
from fairseq.optim import AMPOptimizer
from fairseq.trainer import Trainer
from numerics import assert_close
from toy_data import make_captions_folder, needs_float16_on_cpu, run_fairseq
from toy_processes import all_children_end
from toy_story_models import make_story_folder
from toy_training_states import assert_same_training

from fairseq_mm.compat import scope
from fairseq_mm.compat import training as compat_training
from fairseq_mm.data.multimodal_dataset import MultimodalDataset
from fairseq_mm.errors import UserError

SCALE = 128.0


class FakeScaler:
    """``torch.amp.GradScaler`` on the CPU, for PyTorch that has none: each optimizer's gradients
    are unscaled once between two updates, and a step with an infinite one is left out."""

    def __init__(self, init_scale, growth_interval=2000):
        self.scale_now, self.growth_interval, self.good_steps = init_scale, growth_interval, 0
        self.found = {}

    def scale(self, loss):
        return loss * self.scale_now

    def unscale_(self, optimizer):
        if id(optimizer) in self.found:
            raise RuntimeError("unscale_() has already been called on this optimizer")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(1 / self.scale_now)
        self.found[id(optimizer)] = not all(torch.isfinite(g).all() for g in gradients)

    def step(self, optimizer):
        if id(optimizer) not in self.found:
            self.unscale_(optimizer)
        if not self.found[id(optimizer)]:
            optimizer.step()

    def update(self):
        if any(self.found.values()):
            self.scale_now, self.good_steps = self.scale_now * self.get_backoff_factor(), 0
        else:
            self.good_steps += 1
            if self.good_steps == self.growth_interval:
                self.scale_now, self.good_steps = self.scale_now * 2, 0
        self.found = {}

    def get_scale(self):
        return self.scale_now

    def get_backoff_factor(self):
        return 0.5


@pytest.fixture(autouse=True)
def scaler_on_the_cpu(monkeypatch):
    """fairseq's own scaler does nothing without a GPU."""
    modern = getattr(torch.amp, "GradScaler", None)
    scaler = functools.partial(modern, "cpu") if modern else FakeScaler
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", scaler)


def amp_optimizer(parameter, lr=1.0):
    cfg = Namespace(
        optimizer=Namespace(optimizer="sgd", lr=[lr], momentum=0.0, weight_decay=0.0),
        common=Namespace(fp16_init_scale=SCALE, amp_scale_window=None, min_loss_scale=1e-4),
    )
    return AMPOptimizer.build_optimizer(cfg, [parameter])


@pytest.mark.parametrize("clip_norm", [0.0, 0.25])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_gradient_of_one_arrives_as_one(clip_norm, batches):
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = amp_optimizer(weight)
    for _ in range(batches):
        optimizer.backward(weight * 1.0)
    assert weight.grad == SCALE * batches
    optimizer.multiply_grads(1 / batches)
    assert optimizer.clip_grad_norm(clip_norm) == 1.0
    arrived = clip_norm or 1.0
    assert_close(weight.grad, torch.tensor(arrived))
    optimizer.step()
    assert_close(weight.detach(), torch.tensor(-arrived))
    assert optimizer.scaler.get_scale() == SCALE


def test_a_step_with_an_infinite_gradient_is_left_out_and_the_scale_halved():
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = amp_optimizer(weight)
    optimizer.backward(weight * 1e38)  # times the scale no number of float32
    assert not torch.isfinite(optimizer.clip_grad_norm(1.0))
    optimizer.step()
    assert weight == 0
    assert optimizer.scaler.get_scale() == SCALE / 2
    optimizer.zero_grad()
    optimizer.backward(weight * 1.0)
    assert optimizer.clip_grad_norm(0.0) == 1.0
    optimizer.step()
    assert weight == -1


@pytest.mark.parametrize("options", [("--clip-norm", "0"), ("--update-freq", "2")])
def test_training_with_a_scaled_loss_is_the_training(tmp_path, monkeypatch, options):
    """Plain gradient descent: Adam would hide gradients that are too small."""
    data = make_captions_folder(tmp_path / "data")
    states = []
    for precision in ((), ("--amp",)):
        save_dir = tmp_path / f"checkpoints{len(precision)}"
        arguments = (
            *(data, "--task", "multimodal_captioning", "--arch", "m_rnn_tiny", *precision),
            *("--criterion", "cross_entropy", "--optimizer", "sgd", "--lr", "0.5", "--cpu"),
            *("--clip-norm", "0.5", "--max-update", "3", "--batch-size", "6", "--seed", "3"),
            *("--num-workers", "0", "--no-epoch-checkpoints", "--disable-validation"),
            *("--log-format", "none", "--save-dir", save_dir, *options),
        )
        run_fairseq(monkeypatch, "train", *arguments)
        states.append(torch.load(save_dir / "checkpoint_last.pt")["model"])
    plain, scaled = states
    for name, weights in plain.items():
        assert_close(scaled[name], weights, msg=name)


@needs_float16_on_cpu
def test_gradients_that_overflow_are_left_out_without_a_gpu(tmp_path, monkeypatch):
    data = make_captions_folder(tmp_path / "data")
    arguments = (
        *(data, "--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--cpu", "--fp16"),
        *("--criterion", "cross_entropy", "--optimizer", "adam", "--lr", "0.01", "--seed", "3"),
        *("--fp16-init-scale", 2**20, "--max-update", "2", "--batch-size", "6"),
        *("--num-workers", "0", "--no-epoch-checkpoints", "--disable-validation"),
        *("--log-format", "none", "--save-dir", tmp_path / "checkpoints"),
    )
    run_fairseq(monkeypatch, "train", *arguments)
    state = torch.load(tmp_path / "checkpoints" / "checkpoint_last.pt")
    assert state["last_optimizer_state"]["loss_scale"] < 2**20
    assert all(weights.isfinite().all() for weights in state["model"].values())


def test_a_training_without_an_optimizer_is_refused_before_it_reads_data(tmp_path, monkeypatch):
    data = tmp_path / "not there"
    options = ("--arch", "m_rnn_tiny", "--cpu", "--batch-size", "6", "--num-workers", "0")
    with pytest.raises(UserError, match=r"^--optimizer must be given, such as adam with --lr"):
        run_fairseq(monkeypatch, "train", data, "--task", "multimodal_captioning", *options)


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


@pytest.mark.skipif(
    "persistent_workers" not in inspect.signature(EpochBatchIterator).parameters,
    reason="stock fairseq 0.12.2 leaves workers to the garbage collector",
)
def test_workers_end_without_a_buffer():
    iterator = epoch_iterator(1, 0, num_workers=1, buffer_size=0, **REUSING)
    gc.disable()  # it would end them one day
    try:
        for _ in range(2):
            assert len(list(iterator.next_epoch_itr())) == 10
        assert all_children_end()
    finally:
        gc.enable()


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


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_updates_on_a_cpu_seed_the_cpu_alone(monkeypatch, on_a_gpu):
    class OnlySeeding(Trainer):
        def __init__(self):
            self.cfg = Namespace(common=Namespace(seed=3))
            self.tpu, self.cuda = False, on_a_gpu

        def get_num_updates(self):
            return 4

    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(scope, "uses_ours", lambda trainer: True)
    OnlySeeding()._set_seed()
    found = torch.rand(5)
    assert seeds == ([7] if on_a_gpu else [])
    assert torch.equal(found, torch.rand(5, generator=torch.Generator().manual_seed(7)))


class SlowLoader:
    """Batches from workers that take a while to end; what happens is noted in ``events``."""

    def __init__(self, name, events, length=2):
        self.name, self.events, self.length = name, events, length

    def __len__(self):
        return self.length

    def __iter__(self):
        return SlowIterator(self)


class SlowIterator:
    def __init__(self, loader):
        self.loader, self.batches = loader, iter(range(1, loader.length + 1))
        loader.events.append(f"{loader.name} begins")

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)

    def __del__(self):
        time.sleep(0.2)
        self.loader.events.append(f"{self.loader.name} has ended")


def test_workers_begin_when_those_of_the_epoch_before_have_ended():
    events = []
    first, second = (BufferedIterator(5, SlowLoader(name, events)) for name in ("first", "second"))
    assert [next(first), next(first), next(second)] == [1, 2, 1]
    assert events == ["first begins", "first has ended", "second begins"]


def test_workers_of_an_epoch_that_is_given_up_end_before_the_next_begin():
    events = []
    first = BufferedIterator(1, SlowLoader("first", events, 9))
    assert next(first) == 1
    while not first._queue.full():
        time.sleep(0.01)
    thread = first._consumer
    del first
    assert next(BufferedIterator(5, SlowLoader("second", events))) == 1
    assert events == ["first begins", "first has ended", "second begins"]
    thread.join(timeout=3)
    assert not thread.is_alive()


def test_a_worker_that_is_killed_is_named_in_one_line():
    class Loader(SlowLoader):
        def __iter__(self):
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    with pytest.raises(UserError, match=r"\(pid 7\) is killed.*--num-workers"):
        next(BufferedIterator(1, Loader("killed", [])))


@pytest.mark.parametrize("length", [4, 3])  # the last batch is to be read, or waits to be taken
def test_workers_of_a_validation_do_not_wait_for_those_of_its_training(length):
    events = []
    training = BufferedIterator(1, SlowLoader("training", events, length))
    assert next(training) == 1
    while not training._queue.full():
        time.sleep(0.01)
    time.sleep(0.1)  # the next batch is read, and waits
    begun = time.monotonic()
    validation = BufferedIterator(5, SlowLoader("validation", events))
    assert [next(validation), next(training)] == [1, 2]
    assert time.monotonic() - begun < compat_training._MOST_SECONDS_OF_ENDING
    assert events[:2] == ["training begins", "validation begins"]
    list(training)
