"""Images: reproducible, and their pixels show what the scene says."""

import random
from dataclasses import replace

import numpy as np
import pytest
from drawings.drawn_images import SIDE, draw
from drawings.scenes import COLOURS, SHAPES, Scene, Thing, compose_scene

THING = Thing("large", "red", "circle", x=0.3, y=0.6, radius=0.2)


def pixels(thing: Thing, seed: int = 3) -> np.ndarray:
    """``[side, side, 3]`` float."""
    return np.asarray(draw(Scene("alone", (thing,)), random.Random(seed)), dtype=float)


def shape_of(thing: Thing) -> np.ndarray:
    """``[side, side]`` bool: True where the thing changes the image."""
    aside = replace(thing, x=9.0)
    return np.abs(pixels(thing) - pixels(aside)).max(-1) > 30


def test_the_same_seed_draws_the_same_image():
    scene = compose_scene(random.Random(1))
    one, same, other = (np.asarray(draw(scene, random.Random(seed))) for seed in (7, 7, 8))
    assert one.shape == (SIDE, SIDE, 3)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_thing_lies_where_the_scene_says():
    rows, columns = np.nonzero(shape_of(THING))
    assert abs(rows.mean() + 0.5 - 0.6 * SIDE) < 0.5
    assert abs(columns.mean() + 0.5 - 0.3 * SIDE) < 0.5
    assert abs(len(rows) - np.pi * (0.92 * 0.2 * SIDE) ** 2) < 0.1 * len(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thing_stays_within_its_radius(shape):
    rows, columns = np.nonzero(shape_of(replace(THING, shape=shape)))
    distance = np.hypot(rows + 0.5 - 0.6 * SIDE, columns + 0.5 - 0.3 * SIDE)
    assert distance.max() < 0.2 * SIDE + 1
    assert distance.max() > 0.15 * SIDE


def test_colours_can_be_told_apart_whatever_the_jitter():
    row, column = round(0.6 * SIDE), round(0.3 * SIDE)
    around = slice(row - 3, row + 3), slice(column - 3, column + 3)
    means = {
        colour: np.stack(
            [pixels(replace(THING, colour=colour), seed)[around].mean((0, 1)) for seed in range(20)]
        )
        for colour in COLOURS
    }  # each [20, 3]
    for one in COLOURS:
        for other in COLOURS:
            if one != other:
                between = np.linalg.norm(means[one].mean(0) - means[other].mean(0))
                within = np.linalg.norm(means[one] - means[one].mean(0), axis=1).max()
                assert between > 2 * within
