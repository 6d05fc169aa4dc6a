"""Some updates of every system in fairseq's trainer, on small data: what the tables of precision,
processes and GPUs are made from."""

import argparse
import contextlib
import copy
import functools
import json
import logging
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "golden")]

import sharding_stand_ins
import torch
from _markdown import print_row
from fairseq import tasks
from fairseq.data import iterators
from fairseq.distributed import FullyShardedDataParallel, fsdp_enable_wrap, fsdp_wrap
from fairseq.distributed import utils as distributed
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from golden_files import DATA, unpack
from omegaconf import open_dict
from systems import SYSTEMS, System, training_options
from torch import Tensor
from toy_processes import configure_processes, fork, training_configuration

from fairseq_mm.cli.arguments import positive

ALWAYS = (
    *("--batch-size", "3", "--required-batch-size-multiple", "1", "--num-workers", "0"),
    *("--seed", "1", "--clip-norm", "1", "--log-format", "none", "--no-save"),
)
ADAM = ("--optimizer", "adam", "--lr", "3e-3", "--adam-eps", "1e-6")


class Trained(NamedTuple):
    """
    Attributes:
        losses: of each update, as fairseq logs them (to base 2; for a ranking, for each pair).
        start: the weights before the first update, float32 on the CPU.
        weights: those after the last.
        batches: of each update, of this process.
        tokens_per_second: of the updates but for the first three.
        peak_memory: of the GPU, in bytes; 0 on a CPU.
        num_fixed: parameters that are not trained.
    """

    losses: list[float]
    batches: list[int]
    start: dict[str, Tensor]
    weights: dict[str, Tensor]
    tokens_per_second: float
    peak_memory: int
    num_fixed: int


def unpack_data(root: Path) -> None:
    """The data folders of all systems, and the checkpoints that some begin from."""
    for name in (DATA, "prompts"):
        unpack(name, root)


def configuration(root: Path, system: System, *options: str) -> Any:
    """What ``fairseq-train`` makes of a system's options, without dropout.

    Args:
        root: with the unpacked data.
        system: one of ``SYSTEMS``.
        *options: further ones of ``fairseq-train``.
    """
    cfg = training_configuration(*training_options(root, system), *ALWAYS, *options)
    for name in list(vars(cfg.model) if isinstance(cfg.model, Namespace) else cfg.model):
        if "dropout" in name and isinstance(getattr(cfg.model, name), float):
            setattr(cfg.model, name, 0.0)
    return cfg


def train(cfg: Any, updates: int) -> Trained:
    """Trains in this process, one of as many as the configuration says; see :func:`train_by`."""
    torch.manual_seed(cfg.common.seed)
    metrics.reset()
    task = tasks.setup_task(cfg.task)
    if cfg.distributed_training.ddp_backend == "fully_sharded":
        with fsdp_enable_wrap(cfg.distributed_training):
            model = fsdp_wrap(task.build_model(cfg.model))
    else:
        model = task.build_model(cfg.model)
    criterion = task.build_criterion(cfg.criterion)
    trainer = Trainer(cfg, task, model, criterion)
    start = _weights(model)
    on_gpu = trainer.cuda
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses: list[float] = []
    batches: list[int] = []
    tokens, began = 0.0, 0.0
    for number, samples in enumerate(_batches(trainer, cfg.optimization.update_freq[0])):
        if number == updates:
            break
        if number == 3:
            _wait(on_gpu)
            tokens, began = 0.0, time.perf_counter()
        found = None
        while found is None:  # float16 repeats an update whose gradients overflow
            found = trainer.train_step(samples)
        losses.append(float(found["loss"]))
        batches.append(len(samples))
        tokens += sum(float(sample["ntokens"]) for sample in samples if sample)
    _wait(on_gpu)
    speed = tokens / (time.perf_counter() - began) if began else 0.0
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    num_fixed = sum(not parameter.requires_grad for parameter in model.parameters())
    return Trained(losses, batches, start, _weights(model), speed, peak, num_fixed)


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def _weights(model: Any) -> dict[str, Tensor]:
    """Of a sharded model, whole ones."""
    is_sharded = isinstance(model, FullyShardedDataParallel)
    with model.summon_full_params() if is_sharded else contextlib.nullcontext():
        return {
            name: values.detach().float().cpu().clone()
            for name, values in model.named_parameters()
            if values.requires_grad
        }


def _batches(trainer: Any, update_freq: int) -> Iterator[list[Any]]:
    """Those of each update, epoch after epoch."""
    epoch = 1
    while True:
        epoch_itr = trainer.get_train_iterator(epoch=epoch, load_dataset=epoch == 1)
        trainer.begin_epoch(epoch)
        itr = epoch_itr.next_epoch_itr(shuffle=True)
        yield from iterators.GroupedIterator(itr, update_freq)
        epoch = epoch_itr.next_epoch_idx


def train_by(processes: int, cfg: Any, updates: int, *, on_gpu: bool = False) -> Trained:
    """Trains with so many processes: forked ones on the CPU, fairseq's own where there are GPUs.

    Raises:
        AssertionError: if a process fails.
    """
    if processes == 1:
        found: list[Trained] = []
        # through fairseq's entry, which prepares a configuration for the device at hand
        distributed.call_main(copy.deepcopy(cfg), lambda cfg: found.append(train(cfg, updates)))
        return found[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trained.pt"
        cfg = copy.deepcopy(cfg)
        run = functools.partial(_train_rank, updates=updates, path=str(path))
        if on_gpu:
            with open_dict(cfg):
                cfg.distributed_training.distributed_world_size = processes
            distributed.call_main(cfg, run)
        else:
            ranks = configure_processes(cfg, processes)
            fork([functools.partial(sharding_stand_ins.call_main, rank, run) for rank in ranks])
        return Trained(*torch.load(path))


def _train_rank(cfg: Any, updates: int, path: str) -> None:
    trained = train(cfg, updates)
    if distributed.get_global_rank() == 0:
        torch.save(tuple(trained), path)


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor], start: Any) -> float:
    """How far apart two trainings end, in the length of the way that the first went."""
    apart = sum(float((other[name] - values).double().norm() ** 2) for name, values in one.items())
    way = sum(float((values - start[name]).double().norm() ** 2) for name, values in one.items())
    return (apart / max(way, 1e-30)) ** 0.5


def chosen_systems(names: Optional[list[str]]) -> list[System]:
    """All systems, or those that are named."""
    return [SYSTEMS[name] for name in names] if names else list(SYSTEMS.values())


def print_table(
    description: Optional[str],
    updates: int,
    columns: Sequence[str],
    measure: Callable[[Path, System, int], tuple[dict[str, Any], list[str]]],
) -> None:
    """The program of a table in Markdown with a row a system, printed as it is measured.

    Args:
        description: of the program.
        updates: unless ``--updates`` says otherwise.
        columns: their heads, after the system's.
        measure: of the folder with the data, a system and the number of updates: the figures for
            ``--json``, and the cells.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="default: all")
    parser.add_argument("--updates", type=positive, default=updates)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    print_row(["system", *columns])
    print_row(["---"] * (len(columns) + 1))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        unpack_data(root)
        for system in chosen_systems(args.systems):
            results[system.name], cells = measure(root, system, args.updates)
            print_row([system.name, *cells])
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def try_all(runs: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What each run finds, or as ``failed`` why it does not; the others run all the same."""
    found: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        try:
            found[name] = run()
        except Exception as error:
            found[name] = {"failed": f"{type(error).__name__}: {first_line(error)}"}
    return found


def first_line(error: Exception) -> str:
    """Of its message."""
    return (str(error).strip().splitlines() or [""])[0]
