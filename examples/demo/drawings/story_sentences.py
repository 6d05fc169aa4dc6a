"""Sentences of drawn stories, written by a small grammar for each kind of change.

    first   one (day | night) there is only THING
          | one (day | night) THING is RELATION THING
    appear  THING (joins | comes to) NAME
    leave   NAME (leaves | goes away) and NAME stays
    colour  NAME (turns | becomes) COLOUR
    size    NAME (grows | gets large | shrinks | gets small)
    move    now NAME is RELATION NAME | both move until NAME is RELATION NAME
    light   (night falls | day breaks) over NAME [and NAME]
          | it gets (dark | light) around NAME [and NAME]

    THING = a SIZE COLOUR SHAPE
    NAME  = the COLOUR SHAPE

Only the earlier images show which thing leaves and which colour a thing had. A sentence describes
its image if it names the change and all things that take part in it. ``sentences_describing`` lists
all such sentences; any other one is wrong.
"""

import random
from collections.abc import Sequence
from itertools import permutations
from typing import Optional

from drawings.drawn_stories import Moment, change_between
from drawings.scenes import SHAPES, Scene, Thing, relation

_RELATIONS = {"above": "above", "below": "below", "left": "left of", "right": "right of"}


def sentences_describing(before: Optional[Moment], after: Moment) -> list[str]:
    """Return all sentences that describe an image, words separated by spaces.

    Args:
        before: Previous moment; None for the first image.
        after: Moment of the image, which differs from the previous one by one change.
    """
    if before is None:
        return _first(after)
    kind = change_between(before, after)
    old, new = before.scene, after.scene
    if kind == "appear":
        return _appear(old, new)
    if kind == "leave":
        return _leave(old, new)
    if kind == "move":
        return _move(new)
    if kind == "light":
        return _light(after)
    (former,), (thing,) = old.things, new.things
    if kind == "colour":
        return [f"{_name(former)} {verb} {thing.colour}" for verb in ("turns", "becomes")]
    verbs = ("grows", "gets large") if thing.size == "large" else ("shrinks", "gets small")
    return [f"{_name(thing)} {verb}" for verb in verbs]


def describes(sentence: str, before: Optional[Moment], after: Moment) -> bool:
    """Return whether a sentence describes an image, ignoring case and a full stop at the end."""
    words = " ".join(sentence.lower().rstrip(" .").split())
    return words in sentences_describing(before, after)


def write_story(moments: Sequence[Moment], rng: random.Random) -> list[str]:
    """Write a random sentence for each moment, with two things in reading order if possible."""
    return [
        rng.choice(_in_reading_order(sentences_describing(before, after), after.scene))
        for before, after in zip([None, *moments], moments)
    ]


def _in_reading_order(sentences: list[str], scene: Scene) -> list[str]:
    """Return the sentences that name the scene's first thing first, or all if none does."""
    shape = scene.things[0].shape
    chosen = [
        sentence
        for sentence in sentences
        if next(word for word in sentence.split() if word in SHAPES) == shape
    ]
    return chosen or sentences


def _name(thing: Thing) -> str:
    return f"the {thing.colour} {thing.shape}"


def _described(thing: Thing) -> str:
    return f"a {thing.size} {thing.colour} {thing.shape}"


def _related(one: Thing, other: Thing) -> str:
    return _RELATIONS[relation(one, other)]


def _first(moment: Moment) -> list[str]:
    start = "one night" if moment.night else "one day"
    things = moment.scene.things
    if len(things) == 1:
        return [f"{start} there is only {_described(things[0])}"]
    return [
        f"{start} {_described(one)} is {_related(one, other)} {_described(other)}"
        for one, other in permutations(things)
    ]


def _appear(old: Scene, new: Scene) -> list[str]:
    (there,) = old.things
    one, other = sorted(new.things, key=lambda thing: thing.shape == there.shape)
    return [f"{_described(one)} {verb} {_name(other)}" for verb in ("joins", "comes to")]


def _leave(old: Scene, new: Scene) -> list[str]:
    (left,) = new.things
    (gone,) = (thing for thing in old.things if thing.shape != left.shape)
    return [f"{_name(gone)} {verb} and {_name(left)} stays" for verb in ("leaves", "goes away")]


def _move(new: Scene) -> list[str]:
    return [
        f"{start} {_name(one)} is {_related(one, other)} {_name(other)}"
        for one, other in permutations(new.things)
        for start in ("now", "both move until")
    ]


def _light(moment: Moment) -> list[str]:
    starts = ("night falls over", "it gets dark around")
    if not moment.night:
        starts = ("day breaks over", "it gets light around")
    return [
        f"{start} {' and '.join(_name(thing) for thing in things)}"
        for things in permutations(moment.scene.things)
        for start in starts
    ]
