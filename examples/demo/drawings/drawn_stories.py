"""Drawn stories: a scene that changes from image to image, one change at a time.

Each image differs from its predecessor in exactly one of these changes, so that the two images
together show what happens:

    appear   a second thing comes
    leave    one of two things goes
    colour   a single thing gets another colour
    size     a single thing grows or shrinks
    move     two things get another relation
    light    day becomes night, or night day
"""

import random
from dataclasses import asdict, dataclass, replace

from drawings.scenes import (
    ARRANGEMENTS,
    COLOURS,
    SHAPES,
    SIZES,
    Scene,
    Thing,
    compose_scene,
    place_things,
)
from fairseq_mm.data.story_text import NUM_IMAGES

NUM_MOMENTS = NUM_IMAGES
CHANGES = ("appear", "leave", "colour", "size", "move", "light")

_NIGHTS = 0.4  # share of the stories that begin at night
_PLACINGS = 40  # random placings to try; the one that moves things least is used


@dataclass(frozen=True)
class Moment:
    """Scene and light of one image of a story."""

    scene: Scene
    night: bool

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict) -> "Moment":
        return cls(Scene.from_json(record["scene"]), record["night"])


def compose_story(rng: random.Random) -> list[Moment]:
    """Compose a random story in which no kind of change happens twice in a row."""
    scene = compose_scene(rng)
    if rng.random() < 0.5:  # half of the stories begin with one thing
        scene = keep_one(scene, rng)
    moments = [Moment(scene, rng.random() < _NIGHTS)]
    kind = ""
    while len(moments) < NUM_MOMENTS:
        kind = rng.choice([other for other in possible_changes(moments[-1]) if other != kind])
        moments.append(change(moments[-1], kind, rng))
    return moments


def keep_one(scene: Scene, rng: random.Random) -> Scene:
    """Return a scene with one of the things, at another place."""
    look = _get_look(rng.choice(scene.things))
    return Scene("alone", place_things([look], "alone", rng))


def possible_changes(moment: Moment) -> list[str]:
    """Return the kinds of change that are possible next."""
    if len(moment.scene.things) == 1:
        return ["appear", "colour", "size", "light"]
    return ["leave", "move", "light"]


def change_between(before: Moment, after: Moment) -> str:
    """Return the kind of the change from one moment to the next."""
    if before.night != after.night:
        return "light"
    old, new = before.scene.things, after.scene.things
    if len(old) != len(new):
        return "appear" if len(old) < len(new) else "leave"
    by_shape = {thing.shape: thing for thing in old}
    if any(by_shape[thing.shape].colour != thing.colour for thing in new):
        return "colour"
    if any(by_shape[thing.shape].size != thing.size for thing in new):
        return "size"
    return "move"


def change(moment: Moment, kind: str, rng: random.Random) -> Moment:
    """Return the next moment, after a random change of a kind that is possible."""
    things = moment.scene.things
    if kind == "light":
        return replace(moment, night=not moment.night)
    if kind == "leave":
        return replace(moment, scene=Scene("alone", (rng.choice(things),)))
    looks = [_get_look(thing) for thing in things]
    arrangement = moment.scene.arrangement
    if kind == "move":
        orders = [
            (other, order)
            for other in ARRANGEMENTS[1:]
            for order in (looks, looks[::-1])
            if (other, order) != (arrangement, looks)
        ]
        arrangement, looks = rng.choice(orders)
    else:
        ((size, colour, shape),) = looks
        other_colour = rng.choice([name for name in COLOURS if name != colour])
        if kind == "colour":
            changed = replace(things[0], colour=other_colour)
            return replace(moment, scene=Scene(arrangement, (changed,)))
        if kind == "size":
            looks = [(SIZES[1 - SIZES.index(size)], colour, shape)]
        else:
            other_shape = rng.choice([name for name in SHAPES if name != shape])
            new = (rng.choice(SIZES), other_colour, other_shape)
            looks = rng.choice([[*looks, new], [new, *looks]])
            arrangement = rng.choice(ARRANGEMENTS[1:])
    placings = [place_things(looks, arrangement, rng) for _ in range(_PLACINGS)]
    after = min(placings, key=lambda placing: _distance(things, placing))
    return replace(moment, scene=Scene(arrangement, after))


def _get_look(thing: Thing) -> tuple[str, str, str]:
    return thing.size, thing.colour, thing.shape


def _distance(old: tuple[Thing, ...], new: tuple[Thing, ...]) -> float:
    """Return how far the things of both scenes moved; a shape identifies a thing."""
    places = {thing.shape: thing for thing in old}
    both = [(places[thing.shape], thing) for thing in new if thing.shape in places]
    return sum(abs(one.x - other.x) + abs(one.y - other.y) for one, other in both)
