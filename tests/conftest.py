"""Fixtures shared by all tests."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

import fairseq_mm

# Spinning OpenMP threads of several test processes cost minutes on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# tests look for our names in fairseq's registries
fairseq_mm.register()


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
