"""The sentences of drawn stories: some by hand, and no word of them can be changed."""

import random
from dataclasses import replace

import pytest
from drawings.drawn_stories import Moment, compose_story
from drawings.scenes import COLOURS, SHAPES, Scene, Thing
from drawings.story_sentences import describes, sentences_describing

CIRCLE = Thing("small", "red", "circle", 0.4, 0.2, 0.12)
STAR = Thing("large", "blue", "star", 0.5, 0.7, 0.2)
BOTH = Moment(Scene("column", (CIRCLE, STAR)), night=False)
ALONE = Moment(Scene("alone", (CIRCLE,)), night=False)
GREEN = Moment(Scene("alone", (replace(CIRCLE, colour="green"),)), night=False)
LARGE = Moment(Scene("alone", (replace(CIRCLE, size="large"),)), night=False)
MOVED = Moment(
    Scene("row", (replace(STAR, x=0.2, y=0.5), replace(CIRCLE, x=0.8, y=0.5))), night=False
)
NIGHT = replace(BOTH, night=True)


@pytest.mark.parametrize(
    ("before", "after", "sentences"),
    [
        (None, ALONE, ["one day there is only a small red circle"]),
        (
            None,
            NIGHT,
            [
                "one night a small red circle is above a large blue star",
                "one night a large blue star is below a small red circle",
            ],
        ),
        (
            ALONE,
            BOTH,
            [
                "a large blue star joins the red circle",
                "a large blue star comes to the red circle",
            ],
        ),
        (
            BOTH,
            ALONE,
            [
                "the blue star leaves and the red circle stays",
                "the blue star goes away and the red circle stays",
            ],
        ),
        (ALONE, GREEN, ["the red circle turns green", "the red circle becomes green"]),
        (GREEN, ALONE, ["the green circle turns red", "the green circle becomes red"]),
        (ALONE, LARGE, ["the red circle grows", "the red circle gets large"]),
        (LARGE, ALONE, ["the red circle shrinks", "the red circle gets small"]),
        (
            BOTH,
            MOVED,
            [
                "now the blue star is left of the red circle",
                "both move until the blue star is left of the red circle",
                "now the red circle is right of the blue star",
                "both move until the red circle is right of the blue star",
            ],
        ),
        (
            BOTH,
            NIGHT,
            [
                "night falls over the red circle and the blue star",
                "it gets dark around the red circle and the blue star",
                "night falls over the blue star and the red circle",
                "it gets dark around the blue star and the red circle",
            ],
        ),
        (
            replace(ALONE, night=True),
            ALONE,
            ["day breaks over the red circle", "it gets light around the red circle"],
        ),
    ],
)
def test_these_sentences_and_no_others_describe_the_image(before, after, sentences):
    assert sentences_describing(before, after) == sentences


def test_a_sentence_that_forgets_or_changes_a_word_is_wrong():
    rng = random.Random(3)
    for _ in range(60):
        moments = compose_story(rng)
        for before, after in zip([None, *moments], moments):
            right = sentences_describing(before, after)
            for sentence in right:
                words = sentence.split()
                for place, word in enumerate(words):
                    others = [*words[:place], *words[place + 1 :]]
                    assert not describes(" ".join(others), before, after)
                    for change in (*COLOURS, *SHAPES, "day", "night", "small", "large"):
                        if change != word:
                            changed = [*words[:place], change, *words[place + 1 :]]
                            assert not describes(" ".join(changed), before, after)
