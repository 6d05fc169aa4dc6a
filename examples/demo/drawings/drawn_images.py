"""Draws scenes as small images: antialiased shapes on shaded, noisy ground.

The same seed draws the same images. Each image has its own random stream, so that any part of a
collection can be drawn separately.
"""

import math
import random
from typing import Optional

import numpy as np
from PIL import Image, ImageDraw

from drawings.scenes import Scene, Thing

SIDE = 64
DAYS = 0.7  # share of light grounds, unless the caller chooses
_SCALE = 4  # shapes are drawn four times as large and averaged down, against jagged edges

_RGB = {
    "red": (206, 38, 44),
    "orange": (240, 136, 28),
    "yellow": (244, 224, 58),
    "green": (46, 158, 68),
    "blue": (44, 88, 206),
    "purple": (142, 58, 172),
}
_COLOUR_JITTER = 14
_TILT = 12  # degrees


def draw(
    scene: Scene, rng: random.Random, side: int = SIDE, *, night: Optional[bool] = None
) -> Image.Image:
    """Draw a scene as an RGB image of ``side`` x ``side`` pixels.

    The ground is light, or dark at night, with a gradient; colours, tilts and pixels vary at
    random. Without ``night``, three of ten grounds are dark.
    """
    full = side * _SCALE
    if night is None:
        night = rng.random() >= DAYS
    level = rng.uniform(18, 70) if night else rng.uniform(205, 248)
    ground = [level + rng.uniform(-8, 8) for _ in range(3)]
    image = Image.new("RGB", (full, full), tuple(_byte(value) for value in ground))
    pen = ImageDraw.Draw(image)
    for thing in scene.things:
        jitter = rng.uniform(-_COLOUR_JITTER, _COLOUR_JITTER)
        rgb = tuple(_byte(value + jitter + rng.uniform(-6, 6)) for value in _RGB[thing.colour])
        _draw_thing(pen, thing, rgb, tilt=rng.uniform(-_TILT, _TILT), scale=full)
    pixels = np.asarray(image.reduce(_SCALE), dtype=np.float32)  # [side, side, 3]
    ramp = np.linspace(-0.5, 0.5, side, dtype=np.float32)
    slant = rng.uniform(-24, 24) * ramp[:, None] + rng.uniform(-24, 24) * ramp[None, :]
    noise = np.random.default_rng(rng.getrandbits(64)).standard_normal(
        (side, side, 3), dtype=np.float32
    )
    pixels = pixels + slant[:, :, None] + rng.uniform(2, 8) * noise
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _byte(value: float) -> int:
    return max(0, min(255, round(value)))


def _draw_thing(
    pen: ImageDraw.ImageDraw, thing: Thing, rgb: tuple[int, ...], *, tilt: float, scale: int
) -> None:
    x, y, radius = thing.x * scale, thing.y * scale, thing.radius * scale
    if thing.shape == "circle":
        radius *= 0.92
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=rgb)
        return
    turn = math.radians(tilt)
    corners = [
        (x + radius * r * math.sin(a + turn), y - radius * r * math.cos(a + turn))
        for r, a in _corners(thing.shape)
    ]
    pen.polygon(corners, fill=rgb)


def _corners(shape: str) -> list[tuple[float, float]]:
    """Return corners as (share of the radius, angle clockwise from the top in radians)."""
    if shape == "square":
        return [(1.0, math.pi * (0.25 + 0.5 * k)) for k in range(4)]
    if shape == "triangle":
        return [(1.0, math.pi * 2 * k / 3) for k in range(3)]
    # a star with five points
    return [(1.0 if k % 2 == 0 else 0.42, math.pi * k / 5) for k in range(10)]
