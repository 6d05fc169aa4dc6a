"""How much of a gain over a baseline comes from the video (Yu et al. 2021, section 5.1).

A multimodal system differs from a baseline in its text backbone, too. Of the gain over the baseline
the video brings what the system gains over its own text-only backbone: 83.6 % in the paper, on
average over ROUGE-1, -2 and -L.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import interval, resampled


@dataclass(frozen=True)
class VideoGain:
    """Gains of a system by measure, and the video's share in them.

    Args:
        gains: over the baseline.
        video_gains: over the text-only backbone.
        shares: the latter over the former; None where there is no gain over the baseline.
        share: the mean of the shares; None unless there is one for every measure.
    """

    gains: tuple[float, ...]
    video_gains: tuple[float, ...]
    shares: tuple[Optional[float], ...]
    share: Optional[float]


def video_gain(
    system: Sequence[float], text_only: Sequence[float], baseline: Sequence[float]
) -> VideoGain:
    """The share of a gain that comes from the video: mean of
    (system - text-only) / (system - baseline).

    Below 0 the video costs; above 1 the text-only backbone is worse than the baseline.

    Args:
        system: figures of the multimodal system, one a measure; the higher, the better.
        text_only: those of its backbone, trained alike without the video.
        baseline: those of the system that it is compared with.

    Raises:
        ValueError: if they are not of the same number of measures, or of none.
    """
    if not len(system) == len(text_only) == len(baseline) or not len(system):
        raise ValueError(
            "the systems must have figures of the same measures, but have "
            f"{len(system)}, {len(text_only)} and {len(baseline)}."
        )
    gains = tuple(float(a - c) for a, c in zip(system, baseline))
    video_gains = tuple(float(a - b) for a, b in zip(system, text_only))
    shares = tuple(video / gain if gain > 0 else None for video, gain in zip(video_gains, gains))
    known = [share for share in shares if share is not None]
    mean = sum(known) / len(known) if len(known) == len(shares) else None
    return VideoGain(gains, video_gains, shares, mean)


def share_interval(
    system: np.ndarray, text_only: np.ndarray, baseline: np.ndarray, *, samples: int, seed: int
) -> Optional[tuple[float, float]]:
    """95 % interval of the share over resampled items, the same ones for all three systems.

    Args:
        system: ``[items, measures]`` figures by item, whose means are the system's.
        text_only: the same of its backbone.
        baseline: the same, or ``[measures]`` where only its figures are known, which then count as
            exact.
        samples: number of resampled corpora.
        seed: of the resampling.

    Returns:
        None if in a resampled corpus the baseline is as good as the system: the share has no finite
        interval then.
    """
    num_items, measures = system.shape
    columns = [system, text_only, np.broadcast_to(baseline, system.shape)]

    def statistic(sums: np.ndarray) -> float:
        means = sums.reshape(3, measures) / num_items
        share = video_gain(*means.tolist()).share
        return float("nan") if share is None else share

    figures = resampled(np.concatenate(columns, axis=1), statistic, samples=samples, seed=seed)
    return None if np.isnan(figures).any() else interval(figures)
