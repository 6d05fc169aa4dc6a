"""Fixtures shared by all tests."""

import gc
import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

import fairseq_mm

# Spinning OpenMP threads of several test processes cost minutes on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nearly everything that is made until the tests are collected stays: see pytest_collection_finish.
gc.disable()
# What a forked process inherits is not its to collect: the iterator of a data loader would take the
# locks that it shares with the loader's own process, for ever if the forked one is killed then.
os.register_at_fork(after_in_child=gc.freeze)


def _use_one_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


# GNU OpenMP's threads do not survive a fork: a child that waits for them waits for ever.
os.register_at_fork(after_in_child=_use_one_thread)

# variables that recipes read, and programs that they call
RECIPE_VARIABLES = ("SIZE", "GPUS", "PAPER", "SEEDS")
RECIPE_PROGRAMS = ("fairseq-train", "fairseq-generate", "fairseq-mm")


def pytest_configure(config: pytest.Config) -> None:
    # tests look for our names in fairseq's registries; xdist's first process runs none
    if not config.getoption("numprocesses", None):
        fairseq_mm.register()
        import quick_configuration

        quick_configuration.install()


def pytest_collection_finish() -> None:
    """Spares the garbage collector the modules and thousands of tests, which all stay."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def own_settings() -> Iterator[None]:
    """Keeps the allocator of the tests' process as it is: with memory that is kept, tests of limits
    of memory would depend on the tests before them."""
    from fairseq_mm.compat import allocator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator, "keep_freed_memory", lambda: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Makes ``os.fsync`` return at once: it waits for the disk thousands of times, which matters
    to files only if the machine itself stops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of a file or folder of the real data beside the checkout; skips where it is absent."""
    root = Path(os.environ.get("FAIRSEQ_MM_DATA", Path(__file__).parents[2] / "shared" / "data"))

    def find(name: str) -> Path:
        path = root / name
        if not path.exists():
            pytest.skip(f"real data not found: {path} (set FAIRSEQ_MM_DATA to its folder)")
        return path

    return find


@pytest.fixture
def run_script(monkeypatch, capsys) -> Callable[..., tuple[Any, str, str]]:
    """Runs a file of ``scripts/`` in this process: exit status, stdout, stderr."""

    def run(name: str, *arguments: Any) -> tuple[Any, str, str]:
        path = str(Path(__file__).parents[1] / "scripts" / name)
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(path, run_name="__main__")
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


@pytest.fixture
def run_command(capsys) -> Callable[..., tuple[int, str, str]]:
    """Runs ``fairseq-mm`` in this process: exit status, stdout, stderr."""
    from fairseq_mm.cli.main import main

    def run(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()  # what was printed before is not the command's
        status = main([*map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def started_python(tmp_path_factory) -> Iterator[str]:
    """A program that runs as ``python`` does where fairseq and the package are not imported."""
    folder = tmp_path_factory.mktemp("started") / "programs"
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forked_shell.py")), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout.readline() == "ready\n"
    yield str(folder / "python")
    server.communicate()


@pytest.fixture
def run_recipe(tmp_path):
    """Runs a recipe of an example's folder; returns the arguments of each command that it called,
    or, where it is to fail, what it printed on stderr. ``prints``: program -> what it prints.
    ``run.stdout`` is what the last recipe printed."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in RECIPE_PROGRAMS:
        text = f'#!/bin/sh\nprintf \'%s\\0\' {name} "$@" >> "$RECORD"\necho >> "$RECORD"\n'
        text += f'test ! -e "$RECORD.{name}" || cat "$RECORD.{name}"\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(example, recipe, *arguments, status=0, prints=None, **variables):
        record = tmp_path / "calls"
        for program, text in (prints or {}).items():
            (tmp_path / f"calls.{program}").write_text(text)
        record.write_text("")
        done = subprocess.run(
            ["bash", str(example / f"{recipe}.sh"), *map(str, arguments)],
            cwd=tmp_path,
            env={
                **{name: x for name, x in os.environ.items() if name not in RECIPE_VARIABLES},
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "RECORD": str(record),
                **variables,
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        run.stdout = done.stdout
        calls = [line.split("\0")[:-1] for line in record.read_text().split("\n")[:-1]]
        return calls if status == 0 else done.stderr

    return run


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Takes away the handlers that a test's commands leave, which write to its closed streams, and
    lets the log speak again where `doctor` has silenced the process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)
    logging.disable(logging.NOTSET)
