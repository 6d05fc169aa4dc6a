"""How much of a system's gain over a baseline comes from the video.

fairseq-mm gain --system vg.json --text-only bart.json --baseline mffg.json
fairseq-mm gain --system 68.0,51.4,63.3 --text-only 64.0,46.4,58.9 --baseline 62.3,46.1,58.2
fairseq-mm gain --system vg.jsonl --text-only bart.jsonl --baseline 62.3,46.1,58.2 --json gain.json

Each is what `fairseq-mm score --preset how2` writes with --json or --per-item, or ROUGE-1, -2 and
-L as three figures, in percent. Of the gain over the baseline the video brings what the system
gains over its own backbone without video: the mean over ROUGE-1, -2 and -L of
(system - text-only) / (system - baseline), 83.6 % in Yu et al. 2021, whose figures are the second
example.

Where both the system and its backbone are files of --per-item, the figures are over the items that
all files have, and the share has a 95 % interval by resampling these; a baseline of which only
figures are known counts as exact.
"""

import argparse
import json
from typing import TYPE_CHECKING, Optional

from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.cli.gain_inputs import System
    from fairseq_mm.metrics.video_gain import VideoGain

SAMPLES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for option, what in (
        ("--system", "reads transcript and video"),
        ("--text-only", "its backbone, without the video"),
        ("--baseline", "what the system is compared with"),
    ):
        parser.add_argument(option, required=True, metavar="FILE|R1,R2,RL", help=what)
    parser.add_argument(
        "--bootstrap",
        type=int,
        metavar="N",
        help=f"resamples for the interval, 0 for none (default: {SAMPLES}, where there are scores "
        "by item)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the resampling (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="write figures, gains and shares as JSON")


def run(args: argparse.Namespace) -> None:
    import numpy as np

    from fairseq_mm.cli.gain_inputs import on_common_items, read_system
    from fairseq_mm.cli.score_output import write_file
    from fairseq_mm.metrics.video_gain import share_interval, video_gain

    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    if args.bootstrap is not None and args.bootstrap < 0:
        raise UserError(f"--bootstrap: must be 0 or more, but is {args.bootstrap}.")
    systems = [
        read_system(option, value)
        for option, value in (
            ("--system", args.system),
            ("--text-only", args.text_only),
            ("--baseline", args.baseline),
        )
    ]
    systems, num_items = on_common_items(systems)
    multimodal, text_only, baseline = systems
    is_resampled = multimodal.by_item is not None and text_only.by_item is not None
    if args.bootstrap and not is_resampled:
        raise UserError(
            "--bootstrap: needs the files of fairseq-mm score --per-item for --system and "
            "--text-only."
        )
    found = video_gain(multimodal.figures, text_only.figures, baseline.figures)
    samples = SAMPLES if args.bootstrap is None else args.bootstrap
    result = _result(systems, found, num_items)
    if found.share is not None and is_resampled and samples:
        bounds = share_interval(
            multimodal.matrix(),
            text_only.matrix(),
            np.array(baseline.figures) if baseline.by_item is None else baseline.matrix(),
            samples=samples,
            seed=args.seed,
        )
        result["interval"] = bounds
        result["bootstrap"] = {
            "samples": samples,
            "seed": args.seed,
            "baseline": "exact" if baseline.by_item is None else "resampled",
        }
    _print(systems, found, result)
    if args.json:
        write_file(args.json, json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def _result(
    systems: "list[System]", found: "VideoGain", num_items: Optional[int]
) -> dict[str, object]:
    from fairseq_mm.cli.gain_inputs import METRICS

    result: dict[str, object] = {
        "systems": {
            system.option.lstrip("-"): {
                "source": system.source,
                **dict(zip(METRICS, system.figures)),
            }
            for system in systems
        },
        "gain": dict(zip(METRICS, found.gains)),
        "gain_from_video": dict(zip(METRICS, found.video_gains)),
        "shares": dict(zip(METRICS, found.shares)),
        "share": found.share,
        "message": _message(found),
    }
    if num_items is not None:
        result["items"] = num_items
    counts = sorted({system.num_items for system in systems if system.num_items is not None})
    if len(counts) > 1:
        result["note"] = (
            "The systems' figures are over different numbers of items: "
            f"{', '.join(f'{count:,}' for count in counts)}."
        )
    return result


def _message(found: "VideoGain") -> str:
    from fairseq_mm.cli.gain_inputs import METRICS

    if found.share is None:
        named = [name for name, share in zip(METRICS, found.shares) if share is None]
        return (
            f"The system is no better than the baseline in {', '.join(named)}: there is no gain of "
            "which the video could have a share."
        )
    share = f"{100 * found.share:.1f} %"
    if found.share < 0:
        return (
            "The system is worse than its own backbone without video: the video takes away "
            f"{share.lstrip('-')} of the gain over the baseline."
        )
    if found.share > 1:
        return (
            f"The video brings {share} of the gain over the baseline, more than all of it: the "
            "backbone without video is worse than the baseline."
        )
    return f"The video brings {share} of the gain over the baseline."


def _print(systems: "list[System]", found: "VideoGain", result: dict[str, object]) -> None:
    from fairseq_mm.cli.gain_inputs import METRICS

    rows = [(system.option.lstrip("-"), system.figures) for system in systems]
    rows += [("gain over baseline", found.gains), ("gain from video", found.video_gains)]
    print(f"{'':<20}" + "".join(f"{name:>9}" for name in METRICS))
    for name, figures in rows:
        print(f"{name:<20}" + "".join(f"{100 * figure:>9.2f}" for figure in figures))
    shares = ["-" if share is None else f"{100 * share:.1f} %" for share in found.shares]
    print(f"{'share of video':<20}" + "".join(f"{share:>9}" for share in shares))
    print(f"\n{result['message']}")
    if "items" in result:
        print(f"Items that all files have: {result['items']:,}.")
    if "note" in result:
        print(result["note"])
    if "bootstrap" not in result:
        return
    bounds, settings = result["interval"], result["bootstrap"]
    assert isinstance(settings, dict)
    how = f"{settings['samples']} resamples, seed {settings['seed']}"
    if settings["baseline"] == "exact":
        how += ", the baseline's figures taken as exact"
    if bounds is None:
        print(f"No interval: in some of {how}, the baseline is as good as the system.")
    else:
        assert isinstance(bounds, tuple)
        low, high = bounds
        print(f"95% interval: {100 * low:.1f} to {100 * high:.1f} % ({how}).")
