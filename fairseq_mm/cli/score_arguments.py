"""Options of ``fairseq-mm score``, and which of them go together."""

import argparse
import os
from pathlib import Path
from typing import Optional

from fairseq_mm.cli.score_protocols import METRICS, PRESETS, REFERENCES_OF, TOKENIZERS
from fairseq_mm.cli.score_summaries import transcripts_path
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.meteor import TASKS

COMPARE_SAMPLES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hypotheses", nargs="?", metavar="HYPOTHESES", help="generated texts")
    parser.add_argument("--data", metavar="DIR", help="the data folder")
    parser.add_argument("--split", default="valid", help="split of it (default: valid)")
    parser.add_argument(
        "--references",
        metavar="FILE",
        help="references.jsonl, a COCO annotation .json, or a text file, one reference a line",
    )
    parser.add_argument(
        "--references-of",
        choices=REFERENCES_OF,
        default="item",
        help="album: all stories of the album, from DATA/SPLIT.album_references.jsonl "
        "(default: item)",
    )
    parser.add_argument("--preset", choices=PRESETS, default="coco", help="(default: coco)")
    parser.add_argument(
        "--metrics", metavar="NAMES", help=f"instead of the preset's: {','.join(METRICS)}"
    )
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help="instead of the preset's; wp: as WritingPrompts is split; none: words are what spaces "
        "separate",
    )
    parser.add_argument(
        "--training-text",
        metavar="FILE",
        help="one text a line, for novelty (default: DATA/text/train.txt) and copying (default: "
        "DATA/text/train.wp_target)",
    )
    parser.add_argument(
        "--reference-scores",
        metavar="FILE",
        help="output of fairseq-generate --score-reference, for perplexity",
    )
    parser.add_argument(
        "--meteor-task", choices=TASKS, default="rank", help="the jar's -t (default: rank)"
    )
    parser.add_argument(
        "--no-meteor-norm", action="store_true", help="run the jar without its -norm"
    )
    parser.add_argument("--compare", metavar="FILE", help="another system's texts, paired by item")
    parser.add_argument(
        "--bootstrap",
        type=int,
        metavar="N",
        help=f"resamples for 95%% intervals (default: 0; with --compare {COMPARE_SAMPLES})",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the resampling (default: 1)")
    parser.add_argument("--per-item", metavar="FILE", help="write items' scores as JSONL, by id")
    parser.add_argument(
        "--submission", metavar="FILE", help="write stories as the VIST challenge takes them"
    )
    parser.add_argument("--json", metavar="FILE", help="write figures and card as JSON")
    parser.add_argument(
        "--card",
        nargs="?",
        const="",
        metavar="FILE",
        help="write the card: command, hashes, decode settings, versions "
        "(default name: HYPOTHESES.card.json)",
    )


def metrics_of(args: argparse.Namespace) -> list[str]:
    metrics = list(PRESETS[args.preset].metrics)
    if args.metrics is not None:
        metrics = [name.strip() for name in args.metrics.split(",") if name.strip()]
        for name in metrics:
            if name not in METRICS:
                raise UserError(f"--metrics: must be of {', '.join(METRICS)}, but has {name!r}.")
        if not metrics:
            raise UserError("--metrics: must name a metric, but is empty.")
    if args.preset == "wp":
        from fairseq_mm.cli.score_stories import check_arguments

        check_arguments(args, metrics)
    elif "copying" in metrics:
        raise UserError("--metrics copying: needs --preset wp.")
    elif args.metrics is None and transcripts_path(args.data, args.split) is None:
        metrics = [name for name in metrics if name != "novel_ngrams"]
    if {"rouge", "rouge_l"} <= {*metrics}:
        raise UserError(
            "--metrics: has rouge and rouge_l, which both make a row rouge_l: the former's has "
            "beta 1, the latter's is coco-caption's with beta 1.2."
        )
    is_item = args.references_of == "item"
    if not is_item and (args.references or args.data is None or args.preset == "wp"):
        raise UserError(
            f"--references-of {args.references_of}: needs --data, no --references, and a preset "
            "with references."
        )
    if args.submission and (args.preset != "vist" or args.data is None):
        raise UserError("--submission: needs --preset vist and --data.")
    if args.hypotheses is None:
        if args.reference_scores is None:
            raise UserError("give HYPOTHESES, or --reference-scores for perplexity alone.")
        for option in ("compare", "per_item", "bootstrap", "submission"):
            if getattr(args, option) is not None:
                raise UserError(f"--{option.replace('_', '-')}: needs HYPOTHESES.")
        return ["perplexity"]
    if args.reference_scores is not None and "perplexity" not in metrics:
        metrics.append("perplexity")
    return metrics


def samples_of(args: argparse.Namespace) -> int:
    samples = args.bootstrap
    if samples is None:
        samples = COMPARE_SAMPLES if args.compare else 0
    if samples < 0 or (args.compare and samples == 0):
        raise UserError(f"--bootstrap: must be a number of resamples above 0, but is {samples}.")
    return samples


def check_paths(args: argparse.Namespace, card_path: Optional[str]) -> None:
    samples_of(args)
    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    inputs = [args.hypotheses, args.compare, args.references, args.reference_scores]
    read = {os.path.realpath(path) for path in [*inputs, args.training_text] if path}
    written: set[str] = set()
    outputs = ("json", "per_item", "submission")
    for option, path in ((name, getattr(args, name)) for name in outputs):
        if path and os.path.realpath(path) in read:
            option = option.replace("_", "-")
            raise UserError(f"--{option} {path}: would overwrite a file that is read.")
    for path in filter(None, (*(getattr(args, name) for name in outputs), card_path)):
        if os.path.realpath(path) in written:
            raise UserError(
                f"{path}: --json, --per-item, --submission and --card must be different files."
            )
        written.add(os.path.realpath(path))
        if not Path(path).absolute().parent.is_dir():
            raise UserError(f"{path}: its folder does not exist.")
