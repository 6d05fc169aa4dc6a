"""Runs fairseq's commands and ``fairseq-mm`` in this process and keeps what they print."""

import contextlib
import io
import logging
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from toy_data import run_fairseq


class Printed(NamedTuple):
    """What a command leaves: its exit status, and the lines of stdout and stderr."""

    status: int
    out: list[str]
    err: list[str]


def generate(*arguments: Any) -> list[str]:
    """Lines of ``fairseq-generate``'s output."""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        _run_fairseq("generate", *arguments, "--results-path", folder)
        (path,) = Path(folder).glob("generate-*.txt")
        return path.read_text(encoding="utf-8").splitlines()


def validate(*arguments: Any) -> dict[str, float]:
    """What ``fairseq-validate`` prints, by name."""
    found: dict[str, Any] = {}
    from fairseq.logging import progress_bar

    def keep(self: Any, stats: Any, tag: Any = None, step: Any = None) -> None:
        found.update(self._format_stats(stats))

    with pytest.MonkeyPatch.context() as monkeypatch, _quiet():
        monkeypatch.setattr(progress_bar.SimpleProgressBar, "print", keep)
        _run_fairseq("validate", *arguments, "--log-format", "simple")
    for speed in ("wps", "wpb", "bsz"):
        found.pop(speed, None)
    return {name: float(value) for name, value in found.items()}


def train(*arguments: Any) -> None:
    with _quiet():
        _run_fairseq("train", *arguments)


def fairseq_mm(*arguments: Any) -> Printed:
    """``fairseq-mm``, its streams kept."""
    from fairseq_mm.cli.main import main

    _seed()
    with _quiet() as (out, err):
        status = main([*map(str, arguments)]) or 0
    return Printed(status, out.getvalue().splitlines(), err.getvalue().splitlines())


def script(path: Path, *arguments: Any) -> Printed:
    """One of ``scripts/``, its streams kept."""
    import runpy
    import sys

    status = 0
    with pytest.MonkeyPatch.context() as monkeypatch, _quiet() as (out, err):
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as exit_:
            status = int(exit_.code or 0)
    return Printed(status, out.getvalue().splitlines(), err.getvalue().splitlines())


def _run_fairseq(command: str, *arguments: Any) -> None:
    _seed()
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, command, *arguments)


def _seed() -> None:
    """Of whatever draws without a seed of its own, so that no output depends on those before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@contextlib.contextmanager
def _quiet() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Keeps both streams, and leaves logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logging.disable(logging.CRITICAL)
    out, err = io.StringIO(), io.StringIO()
    previous = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield out, err
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(logging.NOTSET)
        os.environ.pop("COLUMNS")
        if previous is not None:
            os.environ["COLUMNS"] = previous
