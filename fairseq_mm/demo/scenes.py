"""What stands in a drawn picture: one to three things, each with size, colour, shape and place.

Every thing has a *role* in its scene (above, below, left, right, alone, between, beside). An eighth
of the combinations of colour, shape and role can be held out, so that a test picture may show a
green star above something although no green star was ever above anything in training.
"""

import math
import random
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Optional

SIZES = ("small", "large")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
SHAPES = ("circle", "square", "triangle", "star")
ROLES = ("above", "below", "left", "right", "alone", "between", "beside")

# The roles of the things of a scene, in reading order (from the top or from the left), and the
# share of the pictures with that arrangement.
ARRANGEMENTS = {
    "alone": (("alone",), 0.1),
    "column of two": (("above", "below"), 0.425),
    "row of two": (("left", "right"), 0.425),
    "column of three": (("beside", "between", "beside"), 0.025),
    "row of three": (("beside", "between", "beside"), 0.025),
}

# Radii as shares of the picture's side. The sizes are far enough apart to be told by eye.
_RADII = {"small": (0.115, 0.13), "large": (0.185, 0.21)}
_LARGE_IN_THREE = (0.165, 0.17)
_GAP = 0.015

Combination = tuple[str, str, str]  # colour, shape, role


@dataclass(frozen=True)
class Thing:
    """Place and radius are shares of the picture's side; y grows downwards."""

    size: str
    colour: str
    shape: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """``things`` stand in reading order: from the top, or from the left."""

    arrangement: str
    things: tuple[Thing, ...]

    @property
    def combinations(self) -> set[Combination]:
        roles = ARRANGEMENTS[self.arrangement][0]
        return {(t.colour, t.shape, role) for t, role in zip(self.things, roles)}

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict) -> "Scene":
        return cls(record["arrangement"], tuple(Thing(**thing) for thing in record["things"]))


def held_out_combinations(seed: int) -> frozenset[Combination]:
    """Three combinations of colour and shape for each role: an eighth of all.

    The three differ in colour and in shape, so that every colour and every shape is still seen
    in every role.
    """
    rng = random.Random(f"held out {seed}")
    chosen = set()
    for role in ROLES:
        pairs = zip(rng.sample(COLOURS, 3), rng.sample(SHAPES, 3))
        chosen.update((colour, shape, role) for colour, shape in pairs)
    return frozenset(chosen)


def compose_scene(
    rng: random.Random,
    *,
    shares: Optional[Mapping[str, float]] = None,
    excluded: Collection[Combination] = (),
    required: Collection[Combination] = (),
) -> Scene:
    """A random scene.

    Args:
        rng: source of all choices.
        shares: of the arrangements, relative to each other; those of ``ARRANGEMENTS`` by default.
        excluded: combinations that must not occur in it.
        required: at least one of these must occur, if any are given.
    """
    if shares is None:
        shares = {name: share for name, (_, share) in ARRANGEMENTS.items()}
    arrangement = rng.choices(list(shares), list(shares.values()))[0]
    roles = ARRANGEMENTS[arrangement][0]
    while True:
        # No two things share their colour or their shape: it is always clear which one is meant.
        number = len(roles)
        pairs = list(zip(rng.sample(COLOURS, number), rng.sample(SHAPES, number)))
        combinations = {(*pair, role) for pair, role in zip(pairs, roles)}
        if combinations & set(excluded) or (required and not combinations & set(required)):
            continue
        sizes = [rng.choice(SIZES) for _ in roles]
        if sizes.count("large") == 3:  # they would not fit
            continue
        looks = [(size, *pair) for size, pair in zip(sizes, pairs)]
        return Scene(arrangement, _place(looks, arrangement, rng))


def _place(
    looks: list[tuple[str, str, str]], arrangement: str, rng: random.Random
) -> tuple[Thing, ...]:
    """Random places along the arrangement's axis, nothing touching, nothing cut off."""
    radii = []
    for size, _, _ in looks:
        in_three = len(looks) == 3 and size == "large"
        radii.append(rng.uniform(*(_LARGE_IN_THREE if in_three else _RADII[size])))
    if len(looks) == 1:
        radius = radii[0]
        x, y = (rng.uniform(radius + _GAP, 1 - radius - _GAP) for _ in range(2))
        return (Thing(*looks[0], x=round(x, 4), y=round(y, 4), radius=round(radius, 4)),)

    # what the diameters and the gaps leave free is shared out at random
    free = 1 - 2 * sum(radii) - _GAP * (len(radii) + 1)
    cuts = sorted(rng.uniform(0, free) for _ in radii)
    along, edge = [], 0.0
    for number, radius in enumerate(radii):
        along.append(edge + _GAP + cuts[number] + radius)
        edge += _GAP + 2 * radius
    # Sideways, neighbours differ by at most half of their distance along the axis: nobody would
    # call the upper one "left of" the other.
    across = [rng.uniform(radii[0] + _GAP, 1 - radii[0] - _GAP)]
    for number in range(1, len(radii)):
        reach = 0.5 * (along[number] - along[number - 1])
        low = max(across[-1] - reach, radii[number] + _GAP)
        high = min(across[-1] + reach, 1 - radii[number] - _GAP)
        across.append(rng.uniform(low, high) if low < high else min(max(across[-1], low), high))
    things = []
    for look, radius, one, other in zip(looks, radii, along, across):
        x, y = (other, one) if arrangement.startswith("column") else (one, other)
        things.append(Thing(*look, x=round(x, 4), y=round(y, 4), radius=round(radius, 4)))
    return tuple(things)


def relation(first: Thing, second: Thing) -> str:
    """above, below, left or right: where ``first`` is, seen from ``second``."""
    dx, dy = first.x - second.x, first.y - second.y
    if math.fabs(dy) > math.fabs(dx):
        return "above" if dy < 0 else "below"
    return "left" if dx < 0 else "right"
