"""Fixtures of the tests of repairs: all repairs are applied, and captions to train on."""

import pytest
from toy_data import make_captions_folder

from fairseq_mm import compat


@pytest.fixture(autouse=True, scope="session")
def all_repairs():
    compat.activate()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_captions_folder(tmp_path_factory.mktemp("data"))
