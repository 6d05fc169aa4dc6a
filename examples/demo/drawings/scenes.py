"""Content of a drawn image: one or two things, each with size, colour, shape and place.

Some combinations of two things can be held out, so that a test image may show a green star
above a red circle although no captioned training image showed a green star above a red circle.
"""

import itertools
import math
import random
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass

SIZES = ("small", "large")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
SHAPES = ("circle", "square", "triangle", "star")
ARRANGEMENTS = ("alone", "column", "row")

_SHARES = (0.1, 0.45, 0.45)  # probabilities of the arrangements
_HELD_OUT_SHARE = 1 / 8
# Radii as shares of the image's side. The sizes are far enough apart to be distinguished by eye.
_RADII = {"small": (0.115, 0.13), "large": (0.185, 0.21)}
_GAP = 0.015

# arrangement, then colour and shape of the first and of the second thing
Combination = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Thing:
    """Coloured shape. Place and radius are shares of the image's side; y grows downwards."""

    size: str
    colour: str
    shape: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """One or two things in reading order: from the top in a column, from the left in a row."""

    arrangement: str
    things: tuple[Thing, ...]

    @property
    def combination(self) -> tuple[str, ...]:
        """Arrangement, colours and shapes; a ``Combination`` if there are two things."""
        looks = [word for thing in self.things for word in (thing.colour, thing.shape)]
        return (self.arrangement, *looks)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict) -> "Scene":
        return cls(record["arrangement"], tuple(Thing(**thing) for thing in record["things"]))


def held_out_combinations(seed: int) -> frozenset[Combination]:
    """Return an eighth of all combinations, chosen at random."""
    possible = [
        (arrangement, one, shape, other, other_shape)
        for arrangement in ("column", "row")
        for one, other in itertools.permutations(COLOURS, 2)
        for shape, other_shape in itertools.permutations(SHAPES, 2)
    ]
    rng = random.Random(f"held out {seed}")
    return frozenset(rng.sample(possible, round(_HELD_OUT_SHARE * len(possible))))


def compose_scene(
    rng: random.Random,
    *,
    excluded: Set[tuple[str, ...]] = frozenset(),
    required: Set[tuple[str, ...]] = frozenset(),
) -> Scene:
    """Compose a random scene.

    Args:
        rng: Source of all choices.
        excluded: Combinations that the scene must not have.
        required: If not empty, the scene must have one of these combinations.
    """
    while True:
        arrangement = rng.choices(ARRANGEMENTS, _SHARES)[0]
        number = 1 if arrangement == "alone" else 2
        # No two things share their colour or their shape: it is always clear which one is meant.
        sizes = rng.choices(SIZES, k=number)
        looks = list(zip(sizes, rng.sample(COLOURS, number), rng.sample(SHAPES, number)))
        scene = Scene(arrangement, place_things(looks, arrangement, rng))
        if scene.combination not in excluded and (not required or scene.combination in required):
            return scene


def place_things(
    looks: Sequence[tuple[str, str, str]], arrangement: str, rng: random.Random
) -> tuple[Thing, ...]:
    """Place things at random, none touching another or the image's edge.

    Args:
        looks: Size, colour and shape of each thing, in reading order.
        arrangement: ``alone``, ``column`` or ``row``; the axis along which two things lie.
        rng: Source of all choices.
    """
    radii = [rng.uniform(*_RADII[size]) for size, _, _ in looks]
    # the length that diameters and gaps leave free is divided at random
    free = 1 - 2 * sum(radii) - _GAP * (len(radii) + 1)
    cuts = sorted(rng.uniform(0, free) for _ in radii)
    along, edge = [], 0.0
    for cut, radius in zip(cuts, radii):
        along.append(edge + _GAP + cut + radius)
        edge += _GAP + 2 * radius
    # Sideways, two things differ by at most half of their distance along the axis: nobody would
    # call the upper one "left of" the other.
    across = [rng.uniform(radii[0] + _GAP, 1 - radii[0] - _GAP)]
    for radius in radii[1:]:
        reach = 0.5 * (along[1] - along[0])
        low = max(across[0] - reach, radius + _GAP)
        high = min(across[0] + reach, 1 - radius - _GAP)
        across.append(rng.uniform(low, high))
    return tuple(
        Thing(
            *look,
            x=round(other if arrangement == "column" else one, 4),
            y=round(one if arrangement == "column" else other, 4),
            radius=round(radius, 4),
        )
        for look, radius, one, other in zip(looks, radii, along, across)
    )


def relation(first: Thing, second: Thing) -> str:
    """Return where the first thing is, seen from the second: above, below, left or right."""
    dx, dy = first.x - second.x, first.y - second.y
    if math.fabs(dy) > math.fabs(dx):
        return "above" if dy < 0 else "below"
    return "left" if dx < 0 else "right"
