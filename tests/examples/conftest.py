"""Fixtures shared by the tests of recipes."""

import functools

import pytest


@pytest.fixture
def calls_of(run_recipe, request):
    """Runs a recipe of the module's ``EXAMPLE``; returns the arguments of each command that it
    called.
    """
    return functools.partial(run_recipe, request.module.EXAMPLE)
