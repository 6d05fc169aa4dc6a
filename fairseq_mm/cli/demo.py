"""Draws images and stories, trains a captioner and a storyteller on them, shows the results.

Everything is made on this machine: some thousand images of coloured shapes with captions, a
small network that gives their features, and an m-RNN trained on them with fairseq-train; then
stories of five images each, in which something happens from image to image, and GLAC with a
non-local block trained on them. Every command is shown before it runs, and can be run again by
hand. It takes some minutes on two cores. An interrupted run continues when the same command is run
again.

Exit status 1 means that fewer than 9 of 10 captions of test images are true, or that fewer than 9
of 10 sentences of test stories tell what happens in their image.
"""

import argparse
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairseq_mm import __version__
from fairseq_mm.cli import demo_stories
from fairseq_mm.data.visual_story_text import NUM_IMAGES

if TYPE_CHECKING:
    from fairseq_mm.cli.demo_stories import StoryResults
    from fairseq_mm.demo.collection import Verdict
    from fairseq_mm.demo.step_runner import StepRunner

MINIMUM = 0.9  # share of right captions, and of right sentences


class Sizes(NamedTuple):
    """How much is drawn and learned."""

    train: int = 8000
    valid: int = 200
    test: int = 500
    close_ups: int = 10_000
    whole_images: int = 13_000
    epochs: int = 3


SIZES = Sizes()
BATCH = 32
STEPS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, default=Path("demo"), metavar="DIR", help="(default: demo)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything (default: 1)")


class CaptionResults(NamedTuple):
    """Verdicts on the test captions, and what was written."""

    verdicts: "list[Verdict]"
    figures: Path
    page: Path


def run(args: argparse.Namespace) -> int:
    from fairseq_mm.demo.step_runner import StepRunner

    folder, seed = args.output, args.seed
    settings = {
        "version": __version__,
        "seed": seed,
        "sizes": SIZES._asdict(),
        "story sizes": demo_stories.SIZES._asdict(),
    }
    runner = StepRunner(folder, settings, total=STEPS + demo_stories.STEPS)
    package = Path(__file__).resolve().parents[1]
    if Path.cwd() in package.parents:
        package = package.relative_to(Path.cwd())
    weights = folder / "recognizer.pt"
    captions = _run_caption_steps(runner, folder, weights=weights, package=package, seed=seed)
    stories = demo_stories.run_story_steps(
        runner, folder / "stories", weights=weights, package=package, seed=seed
    )
    return _conclude(captions, stories, folder / "logs", sum(runner.seconds.values()))


def _run_caption_steps(
    runner: "StepRunner", folder: Path, *, weights: Path, package: Path, seed: int
) -> CaptionResults:
    from fairseq_mm.demo.collection import CAPTIONS_PER_IMAGE, check_captions, draw_collection

    images, data, checkpoints = folder / "images", folder / "data", folder / "checkpoints"
    generated, page = folder / "generate-test.txt", folder / "page.html"
    per_item, figures = folder / "scores-per-item.jsonl", folder / "scores.json"
    for_fairseq = (data, "--user-dir", package, "--task multimodal_captioning --cpu")
    num_updates = SIZES.epochs * -(-SIZES.train * CAPTIONS_PER_IMAGE // BATCH)

    splits = {split: getattr(SIZES, split) for split in ("train", "valid", "test")}
    runner.call("Draw images", lambda: draw_collection(folder, splits, seed=seed))
    captions = folder / "captions.jsonl"
    runner.command(
        "Prepare captions",
        *("fairseq-mm prepare captions", captions, "--output", data, "--overwrite"),
    )
    runner.call("Train a small network to see", lambda: _train_recognizer(weights, seed))
    runner.command(
        "Extract features",
        *("fairseq-mm extract", images, "--model resnet18 --weights", weights),
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
        "Caption the test images",
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
        *(images, "--scores", right, "--scores", per_item, "--result", figures),
        *("--training-log", folder / "logs" / "train-the-captioner.log"),
        *("--title demo --output", page),
    )
    return CaptionResults(verdicts, figures, page)


def _train_recognizer(weights: Path, seed: int) -> str:
    import torch

    from fairseq_mm.demo.recognizer import train_recognizer

    network, accuracy = train_recognizer(
        close_ups=SIZES.close_ups,
        images=SIZES.whole_images,
        seed=seed,
    )
    partial = weights.with_name(f"{weights.name}.partial")
    torch.save(network.state_dict(), partial)
    os.replace(partial, weights)
    return f"recognises everything in {accuracy:.0%} of new images"


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


def _conclude(captions: CaptionResults, stories: "StoryResults", logs: Path, seconds: float) -> int:
    """Prints the results; the exit status."""
    from fairseq_mm.demo.story_collection import KINDS

    sentences = stories.verdicts
    rows = [
        ("captions that are true of their image", _share(v.right for v in captions.verdicts)),
        (
            "  in combinations that training showed",
            _share(v.right for v in captions.verdicts if not v.unseen),
        ),
        (
            "  in combinations that it did not",
            _share(v.right for v in captions.verdicts if v.unseen),
        ),
        *_scores(captions.figures),
        ("sentences that tell their image", _share(v.right for v in sentences)),
        *(
            (f"  {what}", _share(v.right for v in sentences if v.kind == kind))
            for kind, what in KINDS.items()
        ),
        *_scores(stories.figures),
        ("seconds", f"{seconds:.0f}"),
    ]
    print()
    for name, value in rows:
        print(f"{name:<44}{value}")
    print("\nA story told of five fresh images:")
    for sentence, verdict in zip(stories.sentences, stories.fresh):
        print(f"  {sentence}{'' if verdict.right else '   (wrong)'}")
    print(f"\nImages and captions: {captions.page.resolve()}")
    print(f"Story and its images: {stories.page.resolve()}")
    status = 0
    for what, right, total in (
        ("captions", [v.right for v in captions.verdicts], SIZES.test),
        ("sentences", [v.right for v in sentences], NUM_IMAGES * demo_stories.SIZES.test),
    ):
        if len(right) != total or sum(right) < MINIMUM * total:
            print(
                f"failed: {sum(right)} of {total} {what} are right, fewer than {MINIMUM:.0%} "
                f"(compare another --seed; the logs are in {logs})."
            )
            status = 1
    return status


def _share(rights: Iterable[bool]) -> str:
    right = list(rights)
    return f"{sum(right):4} of {len(right):3}  {sum(right) / max(len(right), 1):6.1%}"


def _scores(figures: Path) -> list[tuple[str, str]]:
    scores = json.loads(figures.read_text(encoding="utf-8"))["scores"]
    return [(row["metric"], f"{row['value']:.3f}") for row in scores if row["value"] is not None]
