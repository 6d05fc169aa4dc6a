"""Drawn stories: one change at a time, each kind of change, nothing touching, reproducible."""

import itertools
import random

import pytest
from drawings.drawn_stories import (
    CHANGES,
    NUM_MOMENTS,
    Moment,
    change_between,
    compose_story,
    possible_changes,
)
from drawings.scenes import relation


@pytest.fixture
def stories() -> list[list[Moment]]:
    rng = random.Random(6)
    return [compose_story(rng) for _ in range(150)]


def looks(moment: Moment) -> dict[str, tuple[str, str]]:
    return {thing.shape: (thing.colour, thing.size) for thing in moment.scene.things}


def differences(before: Moment, after: Moment) -> list[str]:
    """Kinds of change by comparing everything, one after the other."""
    old, new = looks(before), looks(after)
    found = []
    found += ["appear"] * len(new.keys() - old.keys())
    found += ["leave"] * len(old.keys() - new.keys())
    for shape in old.keys() & new.keys():
        found += ["colour"] * (old[shape][0] != new[shape][0])
        found += ["size"] * (old[shape][1] != new[shape][1])
    if old.keys() == new.keys() and len(old) == 2:
        relations = set()
        for moment in (before, after):
            things = sorted(moment.scene.things, key=lambda thing: thing.shape)
            relations.add(relation(*things))
        found += ["move"] * (len(relations) > 1)
    found += ["light"] * (before.night != after.night)
    return found


def test_each_image_differs_from_the_one_before_in_one_change(stories):
    for moments in stories:
        assert len(moments) == NUM_MOMENTS
        kinds = []
        for before, after in zip(moments, moments[1:]):
            kind = change_between(before, after)
            assert differences(before, after) == [kind]
            assert kind in possible_changes(before)
            kinds.append(kind)
        assert all(one != other for one, other in zip(kinds, kinds[1:]))


def test_every_kind_of_change_and_of_beginning_occurs(stories):
    kinds = {change_between(*pair) for moments in stories for pair in zip(moments, moments[1:])}
    assert kinds == set(CHANGES)
    first = {(len(moments[0].scene.things), moments[0].night) for moments in stories}
    assert first == {(1, False), (1, True), (2, False), (2, True)}


def test_things_of_a_changed_scene_lie_inside_and_do_not_touch(stories):
    for moment in itertools.chain(*stories):
        for thing in moment.scene.things:
            assert thing.radius < thing.x < 1 - thing.radius
            assert thing.radius < thing.y < 1 - thing.radius
        for one, other in itertools.combinations(moment.scene.things, 2):
            distance = ((one.x - other.x) ** 2 + (one.y - other.y) ** 2) ** 0.5
            assert distance > one.radius + other.radius
        assert len({thing.colour for thing in moment.scene.things}) == len(moment.scene.things)
        assert (moment.scene.arrangement == "alone") == (len(moment.scene.things) == 1)
