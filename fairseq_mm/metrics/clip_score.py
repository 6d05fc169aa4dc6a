"""Computes CLIPScore and RefCLIPScore from vectors of images and texts.

Hessel, Holtzman, Forbes, Le Bras, Choi. CLIPScore: A Reference-free Evaluation Metric for Image
Captioning. EMNLP 2021. https://arxiv.org/abs/2104.08718, section 3:

    CLIPScore(c, v) = 2.5 * max(cos(c, v), 0)
    RefCLIPScore(c, R, v) = harmonic mean of CLIPScore(c, v) and max(cos(c, r) for r in R; 0)

The text encoder reads every caption and reference after the words "A photo depicts". All vectors
have unit length, so that products are cosines.
"""

from collections.abc import Sequence

import numpy as np

WEIGHT = 2.5
PROMPT = "A photo depicts "


def clip_score(text: np.ndarray, image: np.ndarray) -> float:
    """Compute CLIPScore, 0 to 2.5, from the vectors ``[D]`` of a caption and its image."""
    return WEIGHT * max(float(text @ image), 0.0)


def ref_clip_score(score: float, text: np.ndarray, references: np.ndarray) -> float:
    """Compute RefCLIPScore.

    Args:
        score: CLIPScore of the caption.
        text: Vector ``[D]`` of the caption.
        references: Vectors ``[R, D]`` of the references.
    """
    similarity = max(float((references @ text).max()), 0.0)
    total = score + similarity
    return 2 * score * similarity / total if total else 0.0


def with_prompt(texts: Sequence[str]) -> list[str]:
    """Return captions or references as the text encoder reads them."""
    return [PROMPT + text for text in texts]
