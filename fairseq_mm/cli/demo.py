"""Draws pictures, trains a captioner on them, scores it and shows the result.

Everything is made on this machine: some thousand pictures of coloured shapes with captions, a
small network that gives their features, and an m-RNN trained on them with fairseq-train. Every
command is shown before it runs, and can be run again by hand. It takes a few minutes on two
cores. An interrupted run continues when the same command is run again.

Exit status 1 means that fewer than 9 of 10 captions of test pictures are true.
"""

import argparse
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairseq_mm import __version__

if TYPE_CHECKING:
    from fairseq_mm.demo.collection import Verdict

MINIMUM = 0.9  # share of right captions


class Sizes(NamedTuple):
    """How much is drawn and learned."""

    train: int = 8000
    valid: int = 200
    test: int = 500
    close_ups: int = 10_000
    whole_pictures: int = 13_000
    epochs: int = 3


SIZES = Sizes()
BATCH = 32
STEPS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, default=Path("demo"), metavar="DIR", help="(default: demo)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything (default: 1)")


def run(args: argparse.Namespace) -> int:
    from fairseq_mm.demo.collection import CAPTIONS_PER_PICTURE, check_captions, draw_collection
    from fairseq_mm.demo.step_runner import StepRunner

    folder, seed = args.output, args.seed
    settings = {"version": __version__, "seed": seed, "sizes": SIZES._asdict()}
    runner = StepRunner(folder, settings, total=STEPS)
    pictures, data, checkpoints = folder / "pictures", folder / "data", folder / "checkpoints"
    weights, generated = folder / "recognizer.pt", folder / "generate-test.txt"
    per_item, figures = folder / "scores-per-item.jsonl", folder / "scores.json"
    page = folder / "page.html"
    package = Path(__file__).resolve().parents[1]
    if Path.cwd() in package.parents:
        package = package.relative_to(Path.cwd())
    for_fairseq = (data, "--user-dir", package, "--task multimodal_captioning --cpu")
    num_updates = SIZES.epochs * -(-SIZES.train * CAPTIONS_PER_PICTURE // BATCH)

    splits = {split: getattr(SIZES, split) for split in ("train", "valid", "test")}
    runner.call("Draw pictures", lambda: draw_collection(folder, splits, seed=seed))
    captions = folder / "captions.jsonl"
    runner.command(
        "Prepare captions",
        *("fairseq-mm prepare captions", captions, "--output", data, "--overwrite"),
    )
    runner.call("Train a small network to see", lambda: _train_recognizer(weights, seed))
    runner.command(
        "Extract features",
        *("fairseq-mm extract", pictures, "--model resnet18 --weights", weights),
        "--resize-size 64 --size 64 --batch-size 64 --device cpu --overwrite",
        *("--output", data / "features.h5"),
    )
    runner.command(
        "Train the captioner",
        *("fairseq-train", *for_fairseq, "--arch m_rnn --dropout 0.1 --embedding-dropout 0.1"),
        "--recurrent-dropout 0 --feature-dropout 0.1 --criterion cross_entropy --optimizer adam",
        f"--lr 3e-3 --lr-scheduler polynomial_decay --total-num-update {num_updates}",
        f"--clip-norm 5 --batch-size {BATCH} --max-epoch {SIZES.epochs} --seed {seed}",
        "--eval-gen --best-checkpoint-metric cider --maximize-best-checkpoint-metric",
        *("--no-epoch-checkpoints --log-format simple --save-dir", checkpoints),
        shown=_validation,
    )
    runner.command(
        "Caption the test pictures",
        *("fairseq-generate", *for_fairseq, f"--gen-subset test --beam 3 --batch-size {BATCH}"),
        *("--path", checkpoints / "checkpoint_best.pt"),
        output=generated,
    )
    runner.command(
        "Score the captions",
        *("fairseq-mm score", generated, "--data", data, "--split test"),
        *("--metrics bleu,rouge_l,cider,novelty --json", figures, "--per-item", per_item),
        shown=lambda line: "",  # the figures are shown at the end
    )
    verdicts = check_captions(folder, _captions(data, generated))
    right = folder / "right.jsonl"
    lines = [json.dumps({"id": v.key, "right": int(v.right)}) + "\n" for v in verdicts]
    right.write_text("".join(lines), encoding="utf-8")
    runner.command(
        "Show everything on a page",
        *("fairseq-mm report --data", data, "--split test --hypotheses", generated, "--images"),
        *(pictures, "--scores", right, "--scores", per_item, "--result", figures),
        *("--training-log", folder / "logs" / "train-the-captioner.log"),
        *("--title demo --output", page),
    )
    return _conclude(verdicts, figures, page, sum(runner.seconds.values()))


def _train_recognizer(weights: Path, seed: int) -> str:
    import torch

    from fairseq_mm.demo.recognizer import train_recognizer

    network, accuracy = train_recognizer(
        close_ups=SIZES.close_ups,
        pictures=SIZES.whole_pictures,
        seed=seed,
    )
    partial = weights.with_name(f"{weights.name}.partial")
    torch.save(network.state_dict(), partial)
    os.replace(partial, weights)
    return f"recognises everything in {accuracy:.0%} of new pictures"


def _validation(line: str) -> str:
    """Of fairseq-train's output the lines that end a validation, in short."""
    match = re.search(r"epoch 0*(\d+) \| valid on 'valid' subset \| (.*)", line)
    if match is None:
        return ""
    figures = dict(re.findall(r"(\w+) (\S+)", match[2]))
    shown = [f"{name} {figures[name]}" for name in ("ppl", "bleu4", "cider") if name in figures]
    return f"epoch {match[1]} of {SIZES.epochs}: {', '.join(shown)}"


def _captions(data: Path, generated: Path) -> dict[str, str]:
    from fairseq_mm.data.references import read_references
    from fairseq_mm.data.visual_ids import read_visual_ids
    from fairseq_mm.metrics.hypotheses import read_hypotheses

    return read_hypotheses(
        str(generated),
        item_ids=list(read_references(str(data / "test.references.jsonl"))),
        visual_ids=read_visual_ids(str(data / "test.visual_ids")),
    ).texts


def _conclude(verdicts: "list[Verdict]", figures: Path, page: Path, seconds: float) -> int:
    """Prints the result; the exit status."""

    def counted(unseen: "tuple[bool, ...]") -> str:
        right = [verdict.right for verdict in verdicts if verdict.unseen in unseen]
        return f"{sum(right):4} of {len(right)}  {sum(right) / max(len(right), 1):6.1%}"

    scores = json.loads(figures.read_text(encoding="utf-8"))["scores"]
    rows = [
        ("captions that are true of their picture", counted((False, True))),
        ("  in combinations that training showed", counted((False,))),
        ("  in combinations that it did not", counted((True,))),
        *[(row["metric"], f"{row['value']:.3f}") for row in scores if row["value"] is not None],
        ("seconds", f"{seconds:.0f}"),
    ]
    print()
    for name, value in rows:
        print(f"{name:<44}{value}")
    print(f"\nPictures and captions: {page.resolve()}")
    right = sum(verdict.right for verdict in verdicts)
    if len(verdicts) == SIZES.test and right >= MINIMUM * SIZES.test:
        return 0
    print(
        f"failed: {right} of {SIZES.test} captions are right, fewer than {MINIMUM:.0%} (compare "
        f"another --seed; the logs are in {page.parent / 'logs'})."
    )
    return 1
