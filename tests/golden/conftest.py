"""The unpacked archives, which several files of tests read."""

from pathlib import Path

import pytest
from golden_files import DATA, unpack
from systems import FAMILIES


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    """Folder with the data folders and all checkpoints."""
    folder = tmp_path_factory.mktemp("golden").resolve()
    for name in (DATA, *FAMILIES):
        unpack(name, folder)
    return folder
