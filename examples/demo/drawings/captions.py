"""Captions of drawn images, written by a small grammar.

    caption = [there is] (only THING | THING alone | THING and nothing else)
            | [there is] THING [is] RELATION THING
    THING   = a SIZE COLOUR SHAPE

A caption is true of a scene if it names every thing with size, colour and shape, and the relation
of two things. ``true_captions`` lists all such captions; any other text is wrong.
"""

import random
from collections.abc import Iterator
from itertools import permutations, product

from drawings.scenes import Scene, Thing, relation

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


def true_captions(scene: Scene) -> Iterator[str]:
    """Yield all captions that are true of a scene."""
    for things in permutations(scene.things):
        for names in product(*map(_names, things)):
            if len(names) == 1:
                texts = [text.format(*names) for text in _ALONE]
            else:
                texts = [
                    f"{names[0]} {verb}{words} {names[1]}"
                    for verb, words in product(("", "is "), _relation_words(*things))
                ]
            yield from (start + text for start in ("", "there is ") for text in texts)


def is_true(caption: str, scene: Scene) -> bool:
    """Return whether a caption is true of a scene, ignoring case and a full stop at the end."""
    return " ".join(caption.lower().rstrip(" .").split()) in true_captions(scene)


def write_captions(scene: Scene, rng: random.Random, count: int) -> list[str]:
    """Write different captions that are true of a scene.

    Three captions of four name two things in reading order (from the top, from the left), as people
    mostly do; the others reverse it.
    """
    captions: list[str] = []
    while len(captions) < count:
        caption = _write(scene, rng)
        if caption not in captions:
            captions.append(caption)
    return captions


def _write(scene: Scene, rng: random.Random) -> str:
    names = [rng.choice(_names(thing)) for thing in scene.things]
    there = rng.choice(["", "there is "])
    if len(names) == 1:
        return there + rng.choice(_ALONE).format(names[0])
    verb = "" if there else rng.choice(["", "is "])
    pair = list(zip(scene.things, names))
    (first, one), (second, other) = pair if rng.random() < 3 / 4 else pair[::-1]
    return f"{there}{one} {verb}{rng.choice(_relation_words(first, second))} {other}"


def _names(thing: Thing) -> list[str]:
    sizes = [word for word, size in SIZE_WORDS.items() if size == thing.size]
    return [f"a {size} {thing.colour} {thing.shape}" for size in sizes]


def _relation_words(first: Thing, second: Thing) -> list[str]:
    wanted = relation(first, second)
    return [words for words, name in RELATION_WORDS.items() if name == wanted]
