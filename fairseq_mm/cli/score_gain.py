"""Computes which share of a system's gain over a baseline comes from the video.

``fairseq-mm score --text-only --baseline`` reports this share: the mean over ROUGE-1, -2 and -L of
(system - text-only) / (system - baseline), where text-only is the system's text model without the
video. Yu et al. 2021 (section 5.1) report 83.6 %.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.cli.arguments import Rows
from fairseq_mm.data.input_files import read_objects
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bootstrap import interval, resampled

SAMPLES = 1000
METRICS = ("rouge1", "rouge2", "rouge_l")
_FILE = {"metavar": "FILE"}
OPTIONS: Rows = {
    "--system": ("The system's --per-item file, or R1,R2,RL in percent.", _FILE),
    "--text-only": ("The same of its backbone without the video.", _FILE),
    "--baseline": ("The same of the baseline, for the video's share.", _FILE),
}


class VideoGain(NamedTuple):
    """Gains of a multimodal system in each metric, and the video's share of each gain."""

    gains: list[float]  # score of the system minus score of the baseline
    # score of the system minus score of its text model without the video
    video_gains: list[float]
    # ``video_gains`` over ``gains``; None for a metric in which the system is not better than the
    # baseline
    shares: list[Optional[float]]
    share: Optional[float]  # mean of ``shares``; None if a share is None


def video_gain(
    system: Sequence[float], text_only: Sequence[float], baseline: Sequence[float]
) -> VideoGain:
    """Compute the video's share of a system's gain over a baseline (Yu et al. 2021, section 5.1).

    A share below 0 means that the video does harm. A share above 1 means that the system's text
    model, which was trained in the same way without the video, is worse than the baseline.
    """
    gains = [float(a - c) for a, c in zip(system, baseline)]
    video_gains = [float(a - b) for a, b in zip(system, text_only)]
    # without a gain there is nothing to share: the ratio would have the wrong sign
    shares = [video / gain if gain > 0 else None for video, gain in zip(video_gains, gains)]
    known = [share for share in shares if share is not None]
    # a mean over the other metrics could not be compared with the paper's over all three
    mean = sum(known) / len(known) if len(known) == len(shares) else None
    return VideoGain(gains, video_gains, shares, mean)


def share_interval(
    system: np.ndarray, text_only: np.ndarray, baseline: np.ndarray, *, samples: int, seed: int
) -> Optional[tuple[float, float]]:
    """Compute the 95 % bootstrap interval of the video's share, see :func:`video_gain`; None if the
    system is not better than the baseline in one of the sampled corpora.

    The scores of each summary are ``[items, metrics]``; the baseline's may be ``[metrics]``, corpus
    scores that count as exact. Each sampled corpus has the same summaries for all systems.
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


class SystemScores(NamedTuple):
    """ROUGE scores of one system."""

    source: str  # path of the file with the scores, or the three scores as on the command line
    # scores between 0 and 1: [items, 3], or [3] without scores by item
    figures: np.ndarray
    ids: Optional[list[str]] = None  # id of each item; None if unknown

    @property
    def means(self) -> list[float]:
        figures = self.figures if self.ids is None else self.figures.mean(0)
        return figures.tolist()


def compute_gain(system: Optional[SystemScores], args: argparse.Namespace) -> dict[str, Any]:
    """Return the gain of a system (default: ``--system``) over ``--baseline`` and the share of the
    video, as a JSON object."""
    systems = {
        "system": system or _read_system("system", args.system),
        "text-only": _read_system("text-only", args.text_only),
        "baseline": _read_system("baseline", args.baseline),
    }
    ids = [x.ids for x in systems.values() if x.ids is not None]
    # a share over different items would compare the systems on different videos
    common = [key for key in ids[0] if all(key in x for x in map(set, ids))] if ids else []
    if ids and not common:
        named = " and ".join(x.source for x in systems.values() if x.ids is not None)
        raise UserError(f"{named}: have no item in common.")
    for name, one in systems.items():
        if one.ids is not None:
            place = {key: i for i, key in enumerate(one.ids)}
            rows = one.figures[[place[key] for key in common]]
            systems[name] = SystemScores(one.source, rows, common)
    first, second, baseline = systems.values()
    gain = video_gain(first.means, second.means, baseline.means)
    result: dict[str, Any] = {
        "systems": {
            name: {"source": one.source, **dict(zip(METRICS, one.means))}
            for name, one in systems.items()
        },
        "gain": dict(zip(METRICS, gain.gains)),
        "gain_from_video": dict(zip(METRICS, gain.video_gains)),
        "shares": dict(zip(METRICS, gain.shares)),
        "share": gain.share,
        "message": _write_message(gain),
    }
    if ids:
        result["items"] = len(common)
    samples = SAMPLES if args.bootstrap is None else args.bootstrap
    # the baseline's figures are often a paper's, without scores by item: they count as exact
    if gain.share is not None and first.ids and second.ids and samples:
        result["interval"] = share_interval(
            *(one.figures for one in (first, second, baseline)), samples=samples, seed=args.seed
        )
        result["bootstrap"] = {
            "samples": samples,
            "seed": args.seed,
            "baseline": "exact" if baseline.ids is None else "resampled",
        }
    return result


def _read_system(name: str, value: str) -> SystemScores:
    """Read the ROUGE-1, -2 and -L of a system from a file that ``--per-item`` wrote, or from three
    numbers, separated by commas: fractions if none is above 1, else percentages."""
    try:
        typed = np.array([float(part) for part in value.split(",")])
    except ValueError:
        typed = None
    if typed is None:
        try:
            entries = [entry for _, entry in read_objects(value)]
            ids = [str(entry["id"]) for entry in entries]
            figures = np.array([[float(entry[metric]) for metric in METRICS] for entry in entries])
        except (TypeError, KeyError):
            ids, figures = [], np.empty(0)
        # NaN would make every mean NaN; of two joined files, the share would depend on their order
        if not ids or len(set(ids)) < len(ids) or not np.isfinite(figures).all():
            raise UserError(
                f"--{name} {value}: must be what fairseq-mm score --preset how2 writes with "
                "--per-item, each item once."
            )
        return SystemScores(value, figures, ids)
    if len(typed) != len(METRICS) or not all(0 <= figure <= 100 for figure in typed):
        raise UserError(
            f"--{name}: must have {len(METRICS)} figures of 0 to 100, {', '.join(METRICS)}, or be "
            f"a file, but is {value!r}."
        )
    # papers print per cent, --json holds shares; no ROUGE of interest is below one per cent
    return SystemScores(value, typed if typed.max() <= 1 else typed / 100)


def _write_message(gain: VideoGain) -> str:
    if gain.share is None:
        # a mean over the other metrics would hide a metric in which the system is worse
        named = [name for name, share in zip(METRICS, gain.shares) if share is None]
        return (
            f"The system is no better than the baseline in {', '.join(named)}: there is no gain of "
            "which the video could have a share."
        )
    share = f"{100 * gain.share:.1f} %"
    if gain.share < 0:
        return (
            "The system is worse than its own backbone without video: the video takes away "
            f"{share.lstrip('-')} of the gain over the baseline."
        )
    if gain.share > 1:
        return (
            f"The video brings {share} of the gain over the baseline, more than all of it: the "
            "backbone without video is worse than the baseline."
        )
    return f"The video brings {share} of the gain over the baseline."


def print_gain(result: Mapping[str, Any]) -> None:
    """Print a table of scores and gains, and a sentence about the share of the video."""
    rows = {**result["systems"], "gain over baseline": result["gain"]}
    rows["gain from video"] = result["gain_from_video"]
    print(f"{'':<20}" + "".join(f"{name:>9}" for name in METRICS))
    for name, figures in rows.items():
        print(f"{name:<20}" + "".join(f"{100 * figures[metric]:>9.2f}" for metric in METRICS))
    shares = ["-" if x is None else f"{100 * x:.1f} %" for x in result["shares"].values()]
    print(f"{'share of video':<20}" + "".join(f"{share:>9}" for share in shares))
    print(f"\n{result['message']}")
    if "items" in result:
        print(f"Items that all files have: {result['items']:,}.")
    if "bootstrap" not in result:
        return
    bounds, settings = result["interval"], result["bootstrap"]
    how = f"{settings['samples']} resamples, seed {settings['seed']}"
    if settings["baseline"] == "exact":
        how += ", the baseline's figures taken as exact"
    if bounds is None:
        print(f"No interval: in some of {how}, the baseline is as good as the system.")
    else:
        low, high = bounds
        print(f"95% interval: {100 * low:.1f} to {100 * high:.1f} % ({how}).")
