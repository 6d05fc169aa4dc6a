"""Draws images that stand for photographs."""

import numpy as np
from PIL import Image


def draw_photograph(seed: int, width: int = 500, height: int = 375) -> Image.Image:
    """Return a PIL image whose JPEG file is as large as a photograph's."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = generator.normal(0, 12, image.shape)
    return Image.fromarray((image + noise).clip(0, 255).astype(np.uint8))
