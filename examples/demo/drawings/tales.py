"""Prompts and the stories that they ask for, written by a small grammar.

    prompt  [WP] A TRAIT HERO looks for a COLOUR TREASURE in the PLACE.
    story   five sentences: who walks where, what is looked for, which GUARD lies on it, how the
            GUARD is overcome, and where the TREASURE goes

The story tells again what the prompt says, five times at different distances, and invents the
guard. ``describes_prompt`` is true of a story that has every fact of its prompt in its place, and
the same guard in the third and in the fourth sentence; any other text is wrong.
"""

import itertools
import random
import re
from typing import NamedTuple

from drawings.scenes import COLOURS

TRAITS = ("brave", "clever", "hungry", "lonely", "proud", "quiet", "sleepy", "young")
HEROES = ("fox", "knight", "queen", "robot", "sailor", "shepherd", "thief", "witch")
TREASURES = ("book", "crown", "drum", "key", "lamp", "mirror", "ring", "sword")
PLACES = ("castle", "cave", "desert", "forest", "harbour", "market", "mountain", "valley")
GUARDS = ("bear", "dragon", "ghost", "giant", "snake", "wolf")

_PROMPT = "[WP] A {trait} {hero} looks for {a_colour} {treasure} in the {place}."
_SENTENCES = (
    (
        "Once a {trait} {hero} walked through the {place}.",
        "In the {place} there was a {trait} {hero}.",
    ),
    (
        "The {hero} had lost {a_colour} {treasure}.",
        "The {hero} dreamt of {a_colour} {treasure}.",
    ),
    (
        "But a {guard} slept on the {treasure}.",
        "But the {treasure} belonged to a {guard}.",
    ),
    (
        "The {guard} went away when the {trait} {hero} sang.",
        "The {guard} laughed at a joke of the {trait} {hero}.",
    ),
    (
        "Then the {hero} left the {place} with the {colour} {treasure}.",
        "Since then the {colour} {treasure} is no longer in the {place}.",
    ),
)


class Quest(NamedTuple):
    """Facts of a prompt."""

    trait: str
    hero: str
    colour: str
    treasure: str
    place: str

    @property
    def prompt(self) -> str:
        return _fill(_PROMPT, self)


def compose_quest(rng: random.Random) -> Quest:
    """Compose random facts."""
    return Quest(*map(rng.choice, (TRAITS, HEROES, COLOURS, TREASURES, PLACES)))


def write_tale(quest: Quest, rng: random.Random) -> list[str]:
    """Write the five sentences of a random story for a prompt."""
    guard = rng.choice(GUARDS)
    return [_fill(rng.choice(sentences), quest, guard) for sentences in _SENTENCES]


def describes_prompt(story: str, quest: Quest) -> bool:
    """Return whether a story tells what its prompt says; case, spaces and dots are ignored."""
    words = _words(story)
    return any(
        _words(_fill(" ".join(sentences), quest, guard)) == words
        for guard in GUARDS
        for sentences in itertools.product(*_SENTENCES)
    )


def _fill(text: str, quest: Quest, guard: str = "") -> str:
    article = "an" if quest.colour == "orange" else "a"
    facts = {**quest._asdict(), "a_colour": f"{article} {quest.colour}", "guard": guard}
    return text.format(**facts)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
