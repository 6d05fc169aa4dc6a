"""Repairs that act where something of the package is used are applied for all tests of them."""

import pytest

from fairseq_mm import compat


@pytest.fixture(autouse=True, scope="session")
def all_repairs():
    compat.activate()
