"""Share of a gain over a baseline that comes from the video (Yu et al. 2021, section 5.1).

A multimodal system differs from a baseline in its text backbone as well. The video's share is
(system - text-only) / (system - baseline), where text-only is the system's own backbone: 83.6 % in
the paper, on average over ROUGE-1, -2 and -L.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import interval, resampled


@dataclass(frozen=True)
class VideoGain:
    """Gains of a system by metric: over the baseline, and over the text-only backbone.

    ``shares`` are ``video_gains`` over ``gains``, None without a gain over the baseline. ``share``
    is their mean, None unless every metric has a share.
    """

    gains: tuple[float, ...]
    video_gains: tuple[float, ...]
    shares: tuple[Optional[float], ...]
    share: Optional[float]


def video_gain(
    system: Sequence[float], text_only: Sequence[float], baseline: Sequence[float]
) -> VideoGain:
    """Compute the share of a gain that comes from the video, from the scores of each metric.

    ``text_only`` is the system's backbone, trained in the same way without the video; higher scores
    are better. A share below 0 means that the video does harm; above 1 that the backbone is worse
    than the baseline. Raise ValueError if the numbers of metrics differ or are 0.
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
    """Compute the 95 % interval of the share; all systems are resampled with equal items.

    Scores are ``[items, metrics]``. If only the corpus scores ``[metrics]`` of the baseline are
    known, they count as exact. The result is None if the baseline is as good as the system in a
    resampled corpus: the share is then unbounded.
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
