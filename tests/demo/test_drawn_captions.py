"""The grammar: what is written is true, what is changed is false."""

import random

import pytest
from drawings.captions import is_true, write_captions
from drawings.scenes import COLOURS, SHAPES, Scene, Thing, compose_scene

COLUMN = Scene(
    "column",
    (
        Thing("small", "red", "circle", 0.4, 0.2, 0.12),
        Thing("large", "blue", "star", 0.5, 0.7, 0.2),
    ),
)
ROW = Scene(
    "row",
    (
        Thing("small", "green", "square", 0.2, 0.5, 0.12),
        Thing("large", "red", "star", 0.7, 0.45, 0.2),
    ),
)
ALONE = Scene("alone", (Thing("large", "purple", "triangle", 0.5, 0.5, 0.2),))


@pytest.mark.parametrize(
    ("scene", "caption", "expected"),
    [
        (COLUMN, "a small red circle above a large blue star", True),
        (COLUMN, "There is a little red circle over a big blue star.", True),
        (COLUMN, "a large blue star is below a small red circle", True),
        (ROW, "there is a little green square left of a big red star", True),
        (ROW, "a large red star is to the right of a small green square", True),
        (ALONE, "there is a big purple triangle alone", True),
        (ALONE, "a large purple triangle and nothing else", True),
        (COLUMN, "a small red circle left of a large blue star", False),
        (COLUMN, "a small red star above a large blue circle", False),  # properties swapped
        (COLUMN, "a small red circle above a small red circle", False),  # one thing twice
        (COLUMN, "only a small red circle", False),
        (COLUMN, "a small red circle above a large blue star above a large blue star", False),
        (COLUMN, "a small red circle", False),  # no sentence of the grammar
        (COLUMN, "a red circle above a blue star", False),
        (COLUMN, "", False),
        (ALONE, "a large purple triangle above a large purple triangle", False),
    ],
)
def test_captions_by_hand(scene, caption, expected):
    assert is_true(caption, scene) is expected


def test_changing_any_word_that_means_something_makes_a_caption_false():
    rng = random.Random(12)
    opposites = {"above": "below", "over": "under", "left": "right", "small": "large"}
    opposites.update({"little": "big", **{b: a for a, b in list(opposites.items())}})
    opposites.update({"large": "small", "big": "small"})
    for _ in range(100):
        scene = compose_scene(rng)
        caption = write_captions(scene, rng, 1)[0]
        words = caption.split()
        for place, word in enumerate(words):
            if word in COLOURS:
                changes = [colour for colour in COLOURS if colour != word]
            elif word in SHAPES:
                changes = [shape for shape in SHAPES if shape != word]
            else:
                changes = [opposites[word]] if word in opposites else []
            for change in changes:
                other = " ".join([*words[:place], change, *words[place + 1 :]])
                assert not is_true(other, scene)
