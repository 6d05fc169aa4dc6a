"""Training with two processes on the CPU, started by hand as fairseq asks there."""

import contextlib
import copy
import functools
import importlib
import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq_cli.train import main
from omegaconf import open_dict

from fairseq_mm import __file__ as package

CANNOT_FORK = (
    "processes cannot be forked here" * ("fork" not in multiprocessing.get_all_start_methods())
    or "once it has trained on a GPU, a process cannot be forked (CUDA_VISIBLE_DEVICES= hides it)"
    * torch.cuda.is_available()
)
needs_fork = pytest.mark.skipif(bool(CANNOT_FORK), reason=CANNOT_FORK)
# weights of stock fairseq's layers that stand twice, and learn nothing
STOCK_COPIES = re.compile(r"layers\.\d+\.\w+_(weight|bias)$")


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _run_and_exit(run: Callable[[], Any]) -> None:
    torch.set_num_threads(1)
    run()
    os._exit(0)


def fork(runs: list[Callable[[], Any]]) -> None:
    """Calls each in a process of its own, which has fairseq imported already."""
    with contextlib.suppress(ImportError):
        # which the first step of an optimizer would import, in every process, for seconds
        importlib.import_module("torch._dynamo")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_run_and_exit, args=(run,)) for run in runs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=180)
    assert [process.exitcode for process in processes] == [0] * len(runs)


class ForkedCommand:
    """``fairseq-mm`` in a forked process, which has imported the package already.

    Args:
        arguments: Arguments of the command.
        log: New file that gets its standard error.
    """

    def __init__(self, arguments: list[Any], log: Path) -> None:
        self.log = log
        self.process = multiprocessing.get_context("fork").Process(
            target=self._run, args=([*map(str, arguments)],)
        )
        self.process.start()

    def _run(self, arguments: list[str]) -> None:
        from fairseq_mm.cli.main import main as run_main

        # a shell that started the tests in its background had them ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stream = self.log.open("w")
        os.dup2(stream.fileno(), 2)
        sys.stdout = sys.stderr = stream
        status = run_main(arguments)
        stream.flush()
        os._exit(status or 0)

    @classmethod
    def extract_slowly(cls, arguments: list[Any], log: Path) -> "ForkedCommand":
        """Extract features with a pause in each batch, in which the command can be killed."""
        from fairseq_mm.extract.extractor import Extractor

        compute = Extractor.start_batch

        def compute_slowly(*args: Any, **options: Any) -> Any:
            time.sleep(0.05)
            return compute(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Extractor, "start_batch", compute_slowly)
            return cls(["extract", *arguments], log)

    def kill_when_written(
        self, partial: Path, lines: int, kind: signal.Signals
    ) -> tuple[Optional[int], str]:
        """Send the signal when the journal has so many lines; return exit status and messages."""
        journal = partial / "journal"
        while not journal.exists() or len(journal.read_bytes().splitlines()) < lines:
            assert self.process.is_alive(), self.log.read_text()
            time.sleep(0.01)
        os.kill(self.process.pid, kind)
        self.process.join(timeout=20)
        return self.process.exitcode, self.log.read_text()


def all_children_end() -> bool:
    """Whether no process that this one has started lives longer than a few seconds."""
    deadline = time.monotonic() + 3
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not multiprocessing.active_children()


def run_two_processes(train: Callable[..., Any]) -> None:
    """Calls ``train`` with fairseq's options of each process; both must end well."""
    world = (
        *("--distributed-init-method", f"tcp://127.0.0.1:{_free_port()}"),
        *("--distributed-world-size", "2", "--distributed-no-spawn"),
        *("--distributed-backend", "gloo"),
    )
    fork([functools.partial(train, *world, "--distributed-rank", str(rank)) for rank in range(2)])


def training_configuration(*arguments: Any) -> Any:
    """What ``fairseq-train`` makes of its command line, which takes longer than a toy's training.

    Args:
        *arguments: of the command line, without ``--user-dir``.
    """
    parser = options.get_training_parser()
    arguments = (*arguments, "--user-dir", Path(package).parent)
    args = options.parse_args_and_arch(parser, input_args=[*map(str, arguments)])
    return convert_namespace_to_omegaconf(args)


def train_by(processes: int, configuration: Any, save_dir: Path, **groups: dict[str, Any]) -> Any:
    """Trains with so many forked processes; ``save_dir`` gets a file ``log``, too.

    Args:
        processes: all must end well.
        configuration: a :func:`training_configuration`.
        save_dir: for the checkpoints.
        **groups: other settings, by group: ``optimization={"max_update": 3}``.

    Returns:
        The last checkpoint.
    """
    cfg = copy.deepcopy(configuration)
    groups.setdefault("checkpoint", {})["save_dir"] = str(save_dir)
    groups.setdefault("common", {})["log_file"] = str(save_dir / "log")
    with open_dict(cfg):
        for group, settings in groups.items():
            cfg[group].update(settings)
    save_dir.mkdir(exist_ok=True)
    ranks = configure_processes(cfg, processes)
    fork([functools.partial(_train_rank, rank) for rank in ranks])
    return torch.load(save_dir / "checkpoint_last.pt", map_location="cpu")


def configure_processes(configuration: Any, processes: int) -> list[Any]:
    """The configuration of each process, which is its rank's."""
    port = _free_port()
    found = []
    for rank in range(processes):
        cfg = copy.deepcopy(configuration)
        with open_dict(cfg):
            cfg.distributed_training.update(
                distributed_world_size=processes,
                distributed_rank=rank,
                distributed_backend="gloo",
                distributed_init_method=f"tcp://127.0.0.1:{port}" if processes > 1 else None,
                distributed_no_spawn=True,
            )
        found.append(cfg)
    return found


def _train_rank(cfg: Any) -> None:
    logging.getLogger().setLevel(logging.INFO)
    # the best score of the process, by which a second training would write no checkpoint_best.pt
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    distributed_utils.call_main(cfg, main)
