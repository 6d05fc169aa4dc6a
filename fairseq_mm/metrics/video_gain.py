"""Computes the video's share of a system's gain over a baseline (Yu et al. 2021, section 5.1).

The gain, system score - baseline score, has two causes: the video and a better text model. The
video's share is (system - text-only) / (system - baseline), where text-only is the score of the
system's text model without the video. The paper reports 83.6 %, the mean over ROUGE-1, -2, -L.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import interval, resampled


@dataclass(frozen=True)
class VideoGain:
    """Gains of a multimodal system in each metric, and the video's share of each gain.

    Args:
        gains: Score of the system minus score of the baseline.
        video_gains: Score of the system minus score of its text model without the video.
        shares: ``video_gains`` over ``gains``; None for a metric in which the system is not better
            than the baseline.
        share: Mean of ``shares``; None if a share is None.
    """

    gains: tuple[float, ...]
    video_gains: tuple[float, ...]
    shares: tuple[Optional[float], ...]
    share: Optional[float]


def video_gain(
    system: Sequence[float], text_only: Sequence[float], baseline: Sequence[float]
) -> VideoGain:
    """Compute the video's share of a system's gain over a baseline.

    A share below 0 means that the video does harm. A share above 1 means that the system's text
    model is worse than the baseline. Raise ValueError if the numbers of metrics differ or are 0.

    Args:
        system: Scores of the multimodal system, one per metric; higher is better.
        text_only: Scores of the system's text model, trained in the same way without the video.
        baseline: Scores of the baseline.
    """
    if not len(system) == len(text_only) == len(baseline) or not len(system):
        raise ValueError(
            "the systems must have figures of the same measures, but have "
            f"{len(system)}, {len(text_only)} and {len(baseline)}."
        )
    gains = tuple(float(a - c) for a, c in zip(system, baseline))
    video_gains = tuple(float(a - b) for a, b in zip(system, text_only))
    # without a gain there is nothing to share: the ratio would have the wrong sign
    shares = tuple(video / gain if gain > 0 else None for video, gain in zip(video_gains, gains))
    known = [share for share in shares if share is not None]
    # a mean over the other metrics could not be compared with the paper's over all three
    mean = sum(known) / len(known) if len(known) == len(shares) else None
    return VideoGain(gains, video_gains, shares, mean)


def share_interval(
    system: np.ndarray, text_only: np.ndarray, baseline: np.ndarray, *, samples: int, seed: int
) -> Optional[tuple[float, float]]:
    """Compute the 95 % bootstrap interval of the video's share, see :func:`video_gain`.

    The result is None if the share is not defined, because the system is not better than the
    baseline in one of the sampled corpora.

    Args:
        system: ``[items, metrics]`` scores of the system for each summary.
        text_only: ``[items, metrics]`` scores of the system's text model.
        baseline: ``[items, metrics]`` scores of the baseline, or ``[metrics]`` if only its corpus
            scores are known, which then count as exact.
        samples: Number of sampled corpora; each has the same summaries for all systems.
        seed: Seed of the random numbers.
    """
    num_items, measures = system.shape
    # side by side, so that one resampling selects the same items for all three
    columns = [system, text_only, np.broadcast_to(baseline, system.shape)]

    def statistic(sums: np.ndarray) -> float:
        means = sums.reshape(3, measures) / num_items
        share = video_gain(*means.tolist()).share
        return float("nan") if share is None else share

    figures = resampled(np.concatenate(columns, axis=1), statistic, samples=samples, seed=seed)
    return None if np.isnan(figures).any() else interval(figures)
