"""Options of generation: defaults that depend on other options, and ranges."""

from types import SimpleNamespace

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import GenerationConfig

TASK = SimpleNamespace(generation_defaults={"min_len": 4, "max_len_b": 20, "beam": 3})


def lengths(**options):
    config = GenerationConfig.of_task(TASK, **options)
    return config.min_len, config.max_len_b


def test_the_default_of_one_length_does_not_contradict_the_other():
    assert lengths() == (4, 20)
    assert lengths(max_len_b=2) == (2, 2)
    assert lengths(max_len_b=9) == (4, 9)
    assert lengths(min_len=30) == (30, 30)
    assert lengths(min_len=5) == (5, 20)
    # both given: nothing is changed
    assert lengths(min_len=3, max_len_b=2) == (3, 2)


def test_a_seed_has_64_bits():
    for seed in (-(2**63), 0, 2**64 - 1):
        assert GenerationConfig.of_task(TASK, seed=seed).seed == seed
    for seed in (-(2**63) - 1, 2**64):
        with pytest.raises(UserError, match="`seed` must be an integer of 64 bits"):
            GenerationConfig.of_task(TASK, seed=seed)


def test_an_unknown_preset_is_told_with_the_known_ones():
    task = SimpleNamespace(**vars(TASK), generation_presets={"plain": {"beam": 1}, "varied": {}})
    assert GenerationConfig.of_task(task, "plain").beam == 1
    with pytest.raises(UserError, match="`preset` must be one of plain, varied, but is 'none'"):
        GenerationConfig.of_task(task, "none")
    with pytest.raises(UserError, match="`preset` must be left out, but is 'plain'"):
        GenerationConfig.of_task(TASK, "plain")
