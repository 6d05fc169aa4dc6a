"""The captions of drawn pictures: a small grammar, written and read.

    caption = [there is] ALONE | [there is] THING [is] RELATION THING
            | [there is] THING [is] between THING and THING
    THING   = a SIZE COLOUR SHAPE

``captions_of`` writes captions that are true of a scene; ``is_true`` reads any sentence of the
grammar and decides whether it is true of a scene. A sentence outside the grammar is not true.
"""

import itertools
import random
import re
from typing import NamedTuple, Optional

from fairseq_mm.demo.scenes import COLOURS, SHAPES, Scene, Thing, relation

SIZE_WORDS = {"small": "small", "little": "small", "large": "large", "big": "large"}
RELATION_WORDS = {
    "above": "above",
    "over": "above",
    "below": "below",
    "under": "below",
    "to the left of": "left",
    "left of": "left",
    "to the right of": "right",
    "right of": "right",
}
_ALONE = ("{0} alone", "only {0}", "{0} and nothing else")

_THING = rf"an? ({'|'.join(SIZE_WORDS)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
_WORDINGS = [
    (f"only {_THING}|{_THING} alone|{_THING} and nothing else", "alone"),
    (f"{_THING} (?:is )?({'|'.join(RELATION_WORDS)}) {_THING}", None),
    (f"{_THING} (?:is )?between {_THING} and {_THING}", "between"),
]
_PATTERNS = [
    (re.compile(f"(?:there is )?(?:{text})"), relation_name) for text, relation_name in _WORDINGS
]


class Claim(NamedTuple):
    """What a caption says: the relation, and the looks (size, colour, shape) it names."""

    relation: str
    looks: list[tuple[str, str, str]]


def parse(caption: str) -> Optional[Claim]:
    """What ``caption`` claims, or None if it is no sentence of the grammar."""
    text = " ".join(caption.lower().rstrip(" .").split())
    for pattern, name in _PATTERNS:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        words = [word for word in match.groups() if word is not None]
        if name is None:
            name = RELATION_WORDS[words.pop(3)]
        looks = [
            (SIZE_WORDS[size], colour, shape)
            for size, colour, shape in zip(words[0::3], words[1::3], words[2::3])
        ]
        return Claim(name, looks)
    return None


def is_true(caption: str, scene: Scene) -> bool:
    """Whether ``caption`` is a sentence of the grammar and true of ``scene``.

    Every thing that it names must be in the scene, with that size, colour and shape, and the
    relation must hold between just these things. A thing that it does not name is no mistake,
    unless it says "only" or "alone".
    """
    claim = parse(caption)
    if claim is None:
        return False
    for things in itertools.permutations(scene.things, len(claim.looks)):
        if all(_look(t) == look for t, look in zip(things, claim.looks)) and _holds(
            claim.relation, things, scene
        ):
            return True
    return False


def _look(thing: Thing) -> tuple[str, str, str]:
    return thing.size, thing.colour, thing.shape


def _holds(name: str, things: tuple[Thing, ...], scene: Scene) -> bool:
    if name == "alone":
        return len(scene.things) == 1
    if name == "between":
        middle, one, other = things
        return {relation(one, middle), relation(other, middle)} in (
            {"above", "below"},
            {"left", "right"},
        )
    return relation(*things) == name


def captions_of(scene: Scene, rng: random.Random, count: int) -> list[str]:
    """``count`` different true captions.

    Two things out of three captions are named in reading order (from the top, from the left), as
    people mostly do, the others the other way round.
    """
    captions: list[str] = []
    while len(captions) < count:
        caption = _write(scene, rng)
        if caption not in captions:
            captions.append(caption)
    return captions


def _write(scene: Scene, rng: random.Random) -> str:
    names = []
    for thing in scene.things:
        size = rng.choice([word for word, size in SIZE_WORDS.items() if size == thing.size])
        names.append(f"a {size} {thing.colour} {thing.shape}")
    there = rng.choice(["", "there is "])
    if len(names) == 1:
        return there + rng.choice(_ALONE).format(names[0])
    verb = "" if there else rng.choice(["", "is "])
    forwards = rng.random() < 3 / 4
    if len(names) == 3:
        outer = names[0], names[2]
        one, other = outer if forwards else outer[::-1]
        return f"{there}{names[1]} {verb}between {one} and {other}"
    pair = list(zip(scene.things, names))
    (first, one), (second, other) = pair if forwards else pair[::-1]
    wanted = relation(first, second)
    words = rng.choice([word for word, name in RELATION_WORDS.items() if name == wanted])
    return f"{there}{one} {verb}{words} {other}"
