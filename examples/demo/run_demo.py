#!/usr/bin/env python3
"""Draws images, trains a captioning and a visual story model on them, and shows
the results.

    make demo
    python examples/demo/run_demo.py --output demo2 --seed 2

The program needs no data. It draws images of coloured shapes with captions,
trains a small image network for their features, and trains an m-RNN with
fairseq-train. Then it draws stories of five images, in which something happens
from image to image, and trains GLAC with a non-local block. Captions and stories
are made in parallel if there are two cores. Every command is shown before it
runs, and can be run again by hand. An interrupted run continues when the same
command is run again. It takes some minutes on two cores.

The exit status is 1 if fewer than 9 of 10 captions of test images are true, or
if fewer than 9 of 10 sentences of test stories say what happens in their image.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from drawings import collection
from step_runner import PACKAGE, StepRunner

from fairseq_mm import __version__
from fairseq_mm.cli.script import run_script
from fairseq_mm.data.input_files import parse_json, read_json, read_lines
from fairseq_mm.data.split_files import read_references, read_visual_ids
from fairseq_mm.data.story_text import NUM_IMAGES, split_sentences
from fairseq_mm.metrics.hypotheses import read_hypotheses

MINIMUM = 0.9  # share of right captions, and of right sentences
STEPS = 15
FRESH, GENERATED = "fresh-0001", "generated.jsonl"  # id of the fresh story, and file of its text


class Sizes(NamedTuple):
    """Numbers of drawn items, and of epochs and items a batch in training."""

    train: int
    valid: int
    test: int
    epochs: int
    batch: int

    @property
    def splits(self) -> dict[str, int]:
        return {"train": self.train, "valid": self.valid, "test": self.test}


CAPTIONS = Sizes(8000, 200, 500, epochs=3, batch=32)
STORIES = Sizes(2500, 50, 100, epochs=9, batch=16)
TRAIN_RECOGNIZER = "drawings.recognizer.train_and_save"
# images that the image network is trained on
CLOSE_UPS, WHOLE_IMAGES = 10_000, 12_000


class DemoTask(NamedTuple):
    """Settings of one of the two tasks.

    Attributes:
        task: Name of the fairseq task.
        noun: Plural of what is generated.
        draw: Function that draws.
        draw_title: Title of the step that draws.
        train_title: Title of the step that trains.
        score_title: Title of the step that scores.
        extract: Options of ``fairseq-mm extract``.
        arch: Options of the model.
        training: Other options of ``fairseq-train``.
        score: Options of ``fairseq-mm score``.
    """

    task: str
    noun: str
    draw: str
    draw_title: str
    train_title: str
    score_title: str
    extract: str
    arch: str
    training: str
    score: str


CAPTION_TASK = DemoTask(
    "multimodal_captioning",
    "captions",
    "drawings.collection.draw_images",
    "Draw images",
    "Train the captioning model",
    "Score the captions",
    "--layer layer3",
    "--arch m_rnn --dropout 0.1 --embedding-dropout 0.1 --recurrent-dropout 0 "
    "--feature-dropout 0.1",
    "--lr 3e-3 --eval-gen --best-checkpoint-metric cider --maximize-best-checkpoint-metric",
    "--metrics bleu,rouge_l,cider,novelty",
)
STORY_TASK = DemoTask(
    "visual_storytelling",
    "stories",
    "drawings.collection.draw_with_fresh_story",
    "Draw stories",
    "Train the story model",
    "Score the stories",
    "--layer layer3 --grid",
    "--arch glac_non_local --picture-dim 256 --encoder-hidden-dim 128 --glocal-dim 256 "
    "--embedding-dim 64 --hidden-dim 256 --decoder-layers 1 --encoder-dropout 0 --dropout 0.1 "
    "--embedding-dropout 0",
    "--lr 2.5e-3 --warmup-updates 50",
    "--preset vist --metrics bleu,rouge_l,cider,sentences",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo"),
        metavar="DIR",
        help="folder of all results (default: demo)",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")


def run(args: argparse.Namespace) -> int:
    start = time.monotonic()
    folder, seed = args.output, args.seed
    settings = {
        "version": __version__,
        "seed": seed,
        "sizes": [*CAPTIONS, *STORIES, CLOSE_UPS, WHOLE_IMAGES],
    }
    runner = StepRunner(folder, settings, total=STEPS)
    weights, stories = folder / "recognizer.pt", folder / "stories"
    network = {"weights": weights, "close_ups": CLOSE_UPS, "images": WHOLE_IMAGES, "seed": seed}

    runner.side_by_side(
        lambda: _draw_and_prepare(runner, CAPTION_TASK, folder, CAPTIONS, seed),
        lambda: _draw_and_prepare(runner, STORY_TASK, stories, STORIES, seed),
    )

    def learn_to_see() -> None:
        title = "Train a small image network"
        runner.call(title, TRAIN_RECOGNIZER, shown=shorten_recognition, **network)
        # the stories' images first: their training is the longer one
        _extract(runner, STORY_TASK, stories, weights)

    runner.side_by_side(learn_to_see)
    captions, sentences = runner.side_by_side(
        lambda: _caption(runner, folder, weights, seed),
        lambda: _tell(runner, stories, weights, seed),
    )

    seconds = [
        ("seconds of all steps", f"{sum(runner.seconds.values()):.0f}"),
        ("seconds of this run", f"{time.monotonic() - start:.0f}"),
    ]
    _print_scores(folder, captions, stories, sentences, seconds)
    print("\nA story generated from five fresh images:")
    generated = _fresh_sentences(stories)
    for sentence, verdict in zip(
        generated, collection.check_stories(stories / "fresh", {FRESH: generated})
    ):
        print(f"  {sentence}{'' if verdict.right else '   (wrong)'}")
    print(f"\nImages and captions: {(folder / 'page.html').resolve()}")
    print(f"Story and its images: {(stories / 'page.html').resolve()}")
    return _status(captions, sentences, folder / "logs")


def _draw_and_prepare(
    runner: StepRunner, task: DemoTask, folder: Path, sizes: Sizes, seed: int
) -> None:
    noun = task.noun
    folder.mkdir(exist_ok=True)
    runner.call(task.draw_title, task.draw, folder=folder, sizes=sizes.splits, seed=seed)
    runner.command(
        f"Prepare {noun}",
        *(f"fairseq-mm prepare {noun}", folder / f"{noun}.jsonl"),
        *("--output", folder / "data", "--overwrite"),
    )


def _extract(runner: StepRunner, task: DemoTask, folder: Path, weights: Path) -> None:
    runner.command(
        f"Extract features of the {task.noun}' images",
        *("fairseq-mm extract", folder / "images", "--model resnet18 --weights", weights),
        f"{task.extract} --resize-size 64 --size 64 --batch-size 64 --device cpu --overwrite",
        *("--output", folder / "data" / "features.h5"),
    )


def _caption(runner: StepRunner, folder: Path, weights: Path, seed: int) -> list[Any]:
    """Extract, train and generate; return the verdicts on the captions of the test images."""
    _extract(runner, CAPTION_TASK, folder, weights)
    texts = _train_and_generate(runner, CAPTION_TASK, folder, CAPTIONS, seed=seed)
    verdicts = collection.check_captions(folder, texts)
    _show_captions(runner, folder, verdicts)
    return verdicts


def _tell(runner: StepRunner, folder: Path, weights: Path, seed: int) -> list[Any]:
    """Train and generate; return the verdicts on the sentences of the test stories."""
    texts = _train_and_generate(runner, STORY_TASK, folder, STORIES, seed=seed)
    _generate_fresh_story(runner, folder, weights)
    stories = {
        collection.get_story_name(key.split("\t")): split_sentences(text)
        for key, text in texts.items()
    }
    return collection.check_stories(folder, stories)


def _train_and_generate(
    runner: StepRunner, task: DemoTask, folder: Path, sizes: Sizes, *, seed: int
) -> dict[str, str]:
    """Train, generate and score; return the generated text of each test item."""
    data, checkpoints = folder / "data", folder / "checkpoints"
    generated, noun = folder / "generate-test.txt", task.noun
    package = PACKAGE
    if Path.cwd() in package.parents:
        package = package.relative_to(Path.cwd())
    for_fairseq = (data, "--user-dir", package, f"--task {task.task} --cpu")
    texts = sizes.train * (collection.CAPTIONS_PER_IMAGE if noun == "captions" else 1)
    num_updates = sizes.epochs * -(-texts // sizes.batch)

    def validation(line: str) -> str:
        return shorten_validation(line, sizes.epochs)

    runner.command(
        task.train_title,
        *("fairseq-train", *for_fairseq, f"{task.arch} --criterion cross_entropy"),
        f"--optimizer adam --lr-scheduler polynomial_decay {task.training}",
        f"--total-num-update {num_updates} --clip-norm 5 --batch-size {sizes.batch}",
        f"--max-epoch {sizes.epochs} --seed {seed} --no-epoch-checkpoints --log-format simple",
        *("--save-dir", checkpoints),
        shown=validation,
    )
    runner.command(
        f"Generate {noun} of the test images",
        *("fairseq-generate", *for_fairseq, "--gen-subset test --beam 3"),
        *(f"--batch-size {sizes.batch} --path", checkpoints / "checkpoint_best.pt"),
        output=generated,
    )
    runner.command(
        task.score_title,
        *("fairseq-mm score", generated, "--data", data, f"--split test {task.score}"),
        *("--json", folder / "scores.json", "--per-item", folder / "scores-per-item.jsonl"),
        shown=lambda line: "",  # the figures are shown at the end
    )
    return read_hypotheses(
        str(generated),
        item_ids=list(read_references(str(data / "test.references.jsonl"))),
        visual_ids=read_visual_ids(str(data / "test.visual_ids")),
    ).texts


def shorten_recognition(line: str) -> str:
    """Return a line of the image network's training if it tells progress or accuracy, else ""."""
    return line.strip() if re.match("close-ups: |whole images: |recognises ", line) else ""


def shorten_validation(line: str, epochs: int) -> str:
    """Return the figures of a validation in a line of fairseq-train's output, else ""."""
    match = re.search(r"epoch 0*(\d+) \| valid on 'valid' subset \| (.*)", line)
    if match is None:
        return ""
    figures = dict(re.findall(r"(\w+) (\S+)", match[2]))
    shown = [f"{name} {figures[name]}" for name in ("ppl", "bleu4", "cider") if name in figures]
    return f"epoch {match[1]} of {epochs}: {', '.join(shown)}"


def _show_captions(runner: StepRunner, folder: Path, captions: Iterable[Any]) -> None:
    right = folder / "right.jsonl"
    lines = [json.dumps({"id": v.key, "right": int(v.right)}) + "\n" for v in captions]
    right.write_text("".join(lines), encoding="utf-8")
    log = CAPTION_TASK.train_title.lower().replace(" ", "-")
    runner.command(
        "Show everything on a page",
        *("fairseq-mm report --data", folder / "data", "--split test --hypotheses"),
        *(folder / "generate-test.txt", "--images", folder / "images", "--scores", right),
        *("--scores", folder / "scores-per-item.jsonl", "--result", folder / "scores.json"),
        *("--training-log", folder / "logs" / f"{log}.log", "--title demo --output"),
        folder / "page.html",
    )


def _generate_fresh_story(runner: StepRunner, folder: Path, weights: Path) -> None:
    images = [folder / "fresh" / "images" / name for name in collection.image_names(FRESH)]
    runner.command(
        "Generate a story of five fresh images",
        *("fairseq-mm tell", *images, "--checkpoint", folder / "checkpoints", "--weights"),
        *(weights, "--html", folder / "page.html", "--jsonl"),
        output=folder / GENERATED,
    )


def _fresh_sentences(folder: Path) -> list[str]:
    lines = (line for _, line in read_lines(folder / GENERATED))
    (record,) = (parse_json(line) for line in lines if line.startswith("{"))  # not warnings
    return split_sentences(record["hypothesis"])


def _print_scores(
    folder: Path,
    captions: list[Any],
    stories: Path,
    sentences: list[Any],
    seconds: list[tuple[str, str]],
) -> None:
    rows = [
        ("captions that are true of their image", captions),
        ("  in combinations that training showed", [v for v in captions if not v.unseen]),
        ("  in combinations that it did not", [v for v in captions if v.unseen]),
        *_scores(folder),
        ("sentences that say what their image shows", sentences),
        *(
            (f"  {what}", [v for v in sentences if v.kind == kind])
            for kind, what in collection.KINDS.items()
        ),
        *_scores(stories),
        *seconds,
    ]
    print()
    for name, value in rows:
        if not isinstance(value, str):
            right = sum(verdict.right for verdict in value)
            value = f"{right:4} of {len(value):3}  {right / max(len(value), 1):6.1%}"
        print(f"{name:<44}{value}")


def _scores(folder: Path) -> list[tuple[str, Any]]:
    scores = read_json(folder / "scores.json")["scores"]
    return [(row["metric"], f"{row['value']:.3f}") for row in scores if row["value"] is not None]


def _status(captions: list[Any], sentences: list[Any], logs: Path) -> int:
    status = 0
    for what, verdicts, total in (
        ("captions", captions, CAPTIONS.test),
        ("sentences", sentences, NUM_IMAGES * STORIES.test),
    ):
        right = sum(verdict.right for verdict in verdicts)
        if len(verdicts) != total or right < MINIMUM * total:
            print(
                f"failed: {right} of {total} {what} are right, fewer than {MINIMUM:.0%} "
                f"(compare another --seed; the logs are in {logs})."
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(run_script(__doc__, [add_arguments], run))
