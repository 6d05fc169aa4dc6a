"""Finds the softmax temperature at which a text is most likely (Fan et al. 2018, section 5.4).

"For each model, we tune a temperature parameter for the softmax at generation time"; the paper does
not say how. In this module, the log-likelihood of the text and its first and second derivative are
computed at a few temperatures, in one pass over the text. Between two neighbouring temperatures,
these values define a polynomial of degree 5, whose maximum is searched.
"""

from typing import NamedTuple

import numpy as np

GRID = tuple(3.0 ** (i / 4) for i in range(-4, 5))
_STEPS = 4000


class BestTemperature(NamedTuple):
    """Temperature with the highest log-likelihood of a text.

    Attributes:
        temperature: The temperature.
        log_likelihood: Sum of the words' log-probabilities at this temperature.
        is_inside: False if the temperature is the lowest or the highest that was tried, so that
            the maximum may lie outside.
    """

    temperature: float
    log_likelihood: float
    is_inside: bool


def best_temperature(temperatures: np.ndarray, sums: np.ndarray) -> BestTemperature:
    """Find the temperature with the highest log-likelihood.

    Raise ValueError if there are fewer than two temperatures, or the shapes do not match.

    Args:
        temperatures: ``[G]`` temperatures in ascending order.
        sums: ``[3, G]``: sum of the words' log-probabilities at each temperature, and the first and
            second derivative of this sum by 1 / temperature.
    """
    if len(temperatures) < 2 or sums.shape != (3, len(temperatures)):
        raise ValueError(
            f"`sums` must be [3, {len(temperatures)}] of two temperatures or more, but is "
            f"{list(sums.shape)} instead."
        )
    # as functions of 1 / T, which multiplies the logits, so that the derivatives are simple
    inverse = 1 / temperatures[::-1]
    values, slopes, curvatures = sums[:, ::-1]
    best = int(values.argmax())
    highest, at = float(values[best]), float(inverse[best])
    # for one model the log-likelihood is concave in 1 / T: its maximum lies next to the best point
    for i in (best - 1, best):
        if not 0 <= i < len(inverse) - 1:
            continue
        h = inverse[i + 1] - inverse[i]
        t = np.linspace(0, 1, _STEPS + 1)
        curve = _hermite(t, values[i : i + 2], h * slopes[i : i + 2], h * h * curvatures[i : i + 2])
        top = int(curve.argmax())
        if curve[top] > highest:
            highest, at = float(curve[top]), float(inverse[i] + h * t[top])
    return BestTemperature(1 / at, highest, bool(inverse[0] < at < inverse[-1]))


def _hermite(
    t: np.ndarray, value: np.ndarray, slope: np.ndarray, curvature: np.ndarray
) -> np.ndarray:
    """Evaluate a polynomial of degree 5 at each point of ``t``, which are between 0 and 1.

    The polynomial is defined by its ``value``, first derivative ``slope`` and second derivative
    ``curvature`` at 0 and at 1, ``[2]`` each.
    """
    t3, t4, t5 = t**3, t**4, t**5
    step = 10 * t3 - 15 * t4 + 6 * t5
    return (
        value[0] * (1 - step)
        + value[1] * step
        + slope[0] * (t - 6 * t3 + 8 * t4 - 3 * t5)
        + slope[1] * (-4 * t3 + 7 * t4 - 3 * t5)
        + curvature[0] * (t**2 - 3 * t3 + 3 * t4 - t5) / 2
        + curvature[1] * (t3 - 2 * t4 + t5) / 2
    )
