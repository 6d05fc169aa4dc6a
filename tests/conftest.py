"""Fixtures shared by all tests."""

import os
from pathlib import Path
from typing import Callable

import pytest

# Spinning OpenMP threads of several test processes cost minutes on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


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
