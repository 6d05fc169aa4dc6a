"""The captions of drawn images: a small grammar, written and read.

    caption = [there is] (only THING | THING alone | THING and nothing else)
            | [there is] THING [is] RELATION THING
    THING   = a SIZE COLOUR SHAPE

``captions_of`` writes captions that are true of a scene; ``is_true`` reads any sentence of the
grammar and decides whether it is true of a scene. A sentence outside the grammar is not true.
"""

import itertools
import random
import re
from typing import NamedTuple, Optional

from fairseq_mm.demo.scenes import COLOURS, SHAPES, Scene, relation

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
_START = "(?:there is )?"
_ONE = re.compile(f"{_START}(?:only {_THING}|{_THING} alone|{_THING} and nothing else)")
_TWO = re.compile(f"{_START}{_THING} (?:is )?({'|'.join(RELATION_WORDS)}) {_THING}")


class Claim(NamedTuple):
    """What a caption says: the relation, and the looks (size, colour, shape) it names."""

    relation: str
    looks: list[tuple[str, str, str]]


def parse(caption: str) -> Optional[Claim]:
    """What ``caption`` claims, or None if it is no sentence of the grammar."""
    text = " ".join(caption.lower().rstrip(" .").split())
    match = _ONE.fullmatch(text) or _TWO.fullmatch(text)
    if match is None:
        return None
    words = [word for word in match.groups() if word is not None]
    name = RELATION_WORDS[words.pop(3)] if len(words) > 3 else "alone"
    looks = zip(words[0::3], words[1::3], words[2::3])
    return Claim(name, [(SIZE_WORDS[size], colour, shape) for size, colour, shape in looks])


def is_true(caption: str, scene: Scene) -> bool:
    """Whether ``caption`` is a sentence of the grammar and true of ``scene``.

    It must name every thing of the scene, with its size, colour and shape, and the relation must
    hold.
    """
    claim = parse(caption)
    if claim is None or len(claim.looks) != len(scene.things):
        return False
    for things in itertools.permutations(scene.things):
        if [(thing.size, thing.colour, thing.shape) for thing in things] == claim.looks:
            return len(things) == 1 or relation(*things) == claim.relation
    return False


def captions_of(scene: Scene, rng: random.Random, count: int) -> list[str]:
    """``count`` different true captions.

    In three captions out of four, two things are named in reading order (from the top, from the
    left), as people mostly do, in the others the other way round.
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
    pair = list(zip(scene.things, names))
    (first, one), (second, other) = pair if rng.random() < 3 / 4 else pair[::-1]
    wanted = relation(first, second)
    words = rng.choice([word for word, name in RELATION_WORDS.items() if name == wanted])
    return f"{there}{one} {verb}{words} {other}"
