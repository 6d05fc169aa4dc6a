"""Training with two processes on the CPU, started by hand as fairseq asks there."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here"
)


def _run_rank(rank: int, port: int, train: Callable[..., Any]) -> None:
    torch.set_num_threads(1)
    train(
        *("--distributed-init-method", f"tcp://127.0.0.1:{port}", "--distributed-world-size", "2"),
        *("--distributed-rank", str(rank), "--distributed-no-spawn"),
        *("--distributed-backend", "gloo"),
    )
    os._exit(0)


def run_two_processes(train: Callable[..., Any]) -> None:
    """Calls ``train`` with fairseq's options of each process; both must end well."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    # forked processes have fairseq imported already
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_run_rank, args=(rank, port, train)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=180)
    assert [rank.exitcode for rank in ranks] == [0, 0]
