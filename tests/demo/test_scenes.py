"""Scenes: everything fits, relations are unmistakable, held-out combinations stay out."""

import itertools
import random

import pytest
from drawings.scenes import (
    Scene,
    compose_scene,
    held_out_combinations,
    relation,
)


@pytest.fixture
def scenes() -> list[Scene]:
    rng = random.Random(5)
    return [compose_scene(rng) for _ in range(500)]


def test_things_lie_inside_and_do_not_touch(scenes):
    for scene in scenes:
        for thing in scene.things:
            assert thing.radius < thing.x < 1 - thing.radius
            assert thing.radius < thing.y < 1 - thing.radius
        for one, other in itertools.combinations(scene.things, 2):
            distance = ((one.x - other.x) ** 2 + (one.y - other.y) ** 2) ** 0.5
            assert distance > one.radius + other.radius


def test_nobody_could_mistake_above_for_left(scenes):
    for scene in scenes:
        for one, other in itertools.combinations(scene.things, 2):
            dx, dy = abs(one.x - other.x), abs(one.y - other.y)
            assert max(dx, dy) > 1.9 * min(dx, dy)


def test_things_stand_in_reading_order(scenes):
    expected = {"column": "above", "row": "left"}
    for scene in scenes:
        assert len(scene.things) == (1 if scene.arrangement == "alone" else 2)
        if scene.arrangement != "alone":
            assert relation(*scene.things) == expected[scene.arrangement]


def test_an_eighth_of_the_combinations_is_held_out():
    # 2 arrangements, 6 * 5 pairs of colours, 4 * 3 pairs of shapes
    held_out = held_out_combinations(1)
    assert len(held_out) == 2 * 30 * 12 / 8
    assert held_out == held_out_combinations(1)
    assert held_out != held_out_combinations(2)
    assert {combination[0] for combination in held_out} == {"column", "row"}


def test_excluded_combinations_never_occur_and_required_ones_always():
    held_out = held_out_combinations(1)
    rng = random.Random(2)
    for _ in range(300):
        assert compose_scene(rng, excluded=held_out).combination not in held_out
        assert compose_scene(rng, required=held_out).combination in held_out
