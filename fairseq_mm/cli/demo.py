"""Draws images, trains a captioning and a visual story model on them, and shows
the results.

  fairseq-mm demo
  fairseq-mm demo --output demo2 --seed 2

Everything is made on this machine: images of coloured shapes with captions, a
small image network that gives their features, and an m-RNN that fairseq-train
trains on them; then stories of five images, in which something happens from
image to image, and GLAC with a non-local block. Captions and stories are made
beside each other where there are two cores. Every command is shown before it
runs, and can be run again by hand. An interrupted run continues when the same
command is run again. It takes some minutes on two cores.

Exit status 1 means that fewer than 9 of 10 captions of test images are true, or
that fewer than 9 of 10 sentences of test stories say what happens in their
image.
"""

import argparse
import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from fairseq_mm import __version__
from fairseq_mm.cli import arguments
from fairseq_mm.data.input_files import parse_json, read_json, read_lines
from fairseq_mm.data.visual_story_text import NUM_IMAGES

if TYPE_CHECKING:
    from fairseq_mm.demo.step_runner import StepRunner

MINIMUM = 0.9  # share of right captions, and of right sentences
STEPS = 15
FRESH, GENERATED = "fresh-0001", "generated.jsonl"  # id and text of the fresh story


class Sizes(NamedTuple):
    """How much is drawn and learned."""

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
CLOSE_UPS, WHOLE_IMAGES = 10_000, 12_000  # that the image network is trained on


class Half(NamedTuple):
    """What differs between captions and stories.

    Attributes:
        task: of fairseq.
        noun: what is generated.
        drawn: title of the step that draws.
        train: likewise of the one that trains.
        scored: likewise of the one that scores.
        extract: options of ``fairseq-mm extract``.
        arch: options of the model.
        training: other options of ``fairseq-train``.
        score: options of ``fairseq-mm score``.
    """

    task: str
    noun: str
    drawn: str
    train: str
    scored: str
    extract: str
    arch: str
    training: str
    score: str


OF_CAPTIONS = Half(
    "multimodal_captioning",
    "captions",
    "Draw images",
    "Train the captioning model",
    "Score the captions",
    "--layer layer3",
    "--arch m_rnn --dropout 0.1 --embedding-dropout 0.1 --recurrent-dropout 0 "
    "--feature-dropout 0.1",
    "--lr 3e-3 --eval-gen --best-checkpoint-metric cider --maximize-best-checkpoint-metric",
    "--metrics bleu,rouge_l,cider,novelty",
)
OF_STORIES = Half(
    "visual_storytelling",
    "stories",
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
    arguments.add(
        parser,
        *("output", "seed"),
        output={
            "type": Path,
            "default": Path("demo"),
            "metavar": "DIR",
            "help": "Folder of all results (default: demo).",
        },
        seed={"default": 1, "help": "Seed of everything that is drawn (default: 1)."},
    )


def run(args: argparse.Namespace) -> int:
    from fairseq_mm.demo import collection
    from fairseq_mm.demo.step_runner import StepRunner

    start = time.monotonic()
    folder, seed = args.output, args.seed
    settings = {
        "version": __version__,
        "seed": seed,
        "sizes": [*CAPTIONS, *STORIES, CLOSE_UPS, WHOLE_IMAGES],
    }
    runner = StepRunner(folder, settings, total=STEPS)
    weights, stories, fresh = folder / "recognizer.pt", folder / "stories", folder / "stories/fresh"
    drawn = {"runner": runner, "seed": seed}
    network = {"weights": weights, "close_ups": CLOSE_UPS, "images": WHOLE_IMAGES, "seed": seed}

    runner.side_by_side(
        lambda: _draw_and_prepare(OF_CAPTIONS, folder, CAPTIONS, collection.draw_images, **drawn),
        lambda: _draw_and_prepare(OF_STORIES, stories, STORIES, _draw_stories, **drawn),
    )

    def learn_to_see() -> None:
        title = "Train a small image network"
        runner.call(title, _train_recognizer, shown=recognition_of, **network)
        _extract(runner, OF_STORIES, stories, weights)  # theirs is the longer way from here

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
    for sentence, verdict in zip(generated, collection.check_stories(fresh, {FRESH: generated})):
        print(f"  {sentence}{'' if verdict.right else '   (wrong)'}")
    print(f"\nImages and captions: {(folder / 'page.html').resolve()}")
    print(f"Story and its images: {(stories / 'page.html').resolve()}")
    return _status(captions, sentences, folder / "logs")


def _draw_and_prepare(
    half: Half,
    folder: Path,
    sizes: Sizes,
    draw: Callable[..., None],
    *,
    runner: "StepRunner",
    seed: int,
) -> None:
    noun = half.noun
    folder.mkdir(exist_ok=True)
    runner.call(half.drawn, draw, folder=folder, sizes=sizes.splits, seed=seed)
    runner.command(
        f"Prepare {noun}",
        *(f"fairseq-mm prepare {noun}", folder / f"{noun}.jsonl"),
        *("--output", folder / "data", "--overwrite"),
    )


def _extract(runner: "StepRunner", half: Half, folder: Path, weights: Path) -> None:
    runner.command(
        f"Extract features of the {half.noun}' images",
        *("fairseq-mm extract", folder / "images", "--model resnet18 --weights", weights),
        f"{half.extract} --resize-size 64 --size 64 --batch-size 64 --device cpu --overwrite",
        *("--output", folder / "data" / "features.h5"),
    )


def _draw_stories(folder: Path, sizes: dict[str, int], seed: int) -> None:
    from fairseq_mm.demo.collection import draw_stories

    (folder / "fresh").mkdir(exist_ok=True)
    draw_stories(folder / "fresh", {"fresh": 1}, seed=seed)
    draw_stories(folder, sizes, seed=seed)


def _caption(runner: "StepRunner", folder: Path, weights: Path, seed: int) -> list[Any]:
    """Extracts, trains and generates; what the captions of the test images are worth."""
    from fairseq_mm.demo.collection import check_captions

    _extract(runner, OF_CAPTIONS, folder, weights)
    texts = _train_and_generate(runner, OF_CAPTIONS, folder, CAPTIONS, seed=seed)
    verdicts = check_captions(folder, texts)
    _show_captions(runner, folder, verdicts)
    return verdicts


def _tell(runner: "StepRunner", folder: Path, weights: Path, seed: int) -> list[Any]:
    """Trains and generates; what the sentences of the test stories are worth."""
    from fairseq_mm.data.visual_story_text import split_sentences
    from fairseq_mm.demo.collection import check_stories, story_of

    texts = _train_and_generate(runner, OF_STORIES, folder, STORIES, seed=seed)
    _generate_fresh_story(runner, folder, weights)
    stories = {story_of(key.split("\t")): split_sentences(text) for key, text in texts.items()}
    return check_stories(folder, stories)


def _train_and_generate(
    runner: "StepRunner", half: Half, folder: Path, sizes: Sizes, *, seed: int
) -> dict[str, str]:
    """Trains, generates and scores; the generated text of each test item."""
    from fairseq_mm.data.split_files import read_references, read_visual_ids
    from fairseq_mm.demo.collection import CAPTIONS_PER_IMAGE
    from fairseq_mm.metrics.hypotheses import read_hypotheses

    data, checkpoints = folder / "data", folder / "checkpoints"
    generated, noun = folder / "generate-test.txt", half.noun
    package = Path(__file__).resolve().parents[1]
    if Path.cwd() in package.parents:
        package = package.relative_to(Path.cwd())
    for_fairseq = (data, "--user-dir", package, f"--task {half.task} --cpu")
    texts = sizes.train * (CAPTIONS_PER_IMAGE if noun == "captions" else 1)
    num_updates = sizes.epochs * -(-texts // sizes.batch)

    def validation(line: str) -> str:
        return validation_of(line, sizes.epochs)

    runner.command(
        half.train,
        *("fairseq-train", *for_fairseq, f"{half.arch} --criterion cross_entropy"),
        f"--optimizer adam --lr-scheduler polynomial_decay {half.training}",
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
        half.scored,
        *("fairseq-mm score", generated, "--data", data, f"--split test {half.score}"),
        *("--json", folder / "scores.json", "--per-item", folder / "scores-per-item.jsonl"),
        shown=lambda line: "",  # the figures are shown at the end
    )
    return read_hypotheses(
        str(generated),
        item_ids=list(read_references(str(data / "test.references.jsonl"))),
        visual_ids=read_visual_ids(str(data / "test.visual_ids")),
    ).texts


def _train_recognizer(weights: Path, close_ups: int, images: int, seed: int) -> str:
    import torch

    from fairseq_mm.demo.recognizer import train_recognizer

    network, accuracy = train_recognizer(
        close_ups=close_ups, images=images, seed=seed, show=lambda line: print(line, flush=True)
    )
    partial = weights.with_name(f"{weights.name}.partial")
    torch.save(network.state_dict(), partial)
    os.replace(partial, weights)
    return f"recognises everything in {accuracy:.0%} of new images"


def recognition_of(line: str) -> str:
    """Of the image network's training the lines that say how far it is, and how good."""
    return line.strip() if re.match("close-ups: |whole images: |recognises ", line) else ""


def validation_of(line: str, epochs: int) -> str:
    """Of fairseq-train's output the lines that end a validation, in short."""
    match = re.search(r"epoch 0*(\d+) \| valid on 'valid' subset \| (.*)", line)
    if match is None:
        return ""
    figures = dict(re.findall(r"(\w+) (\S+)", match[2]))
    shown = [f"{name} {figures[name]}" for name in ("ppl", "bleu4", "cider") if name in figures]
    return f"epoch {match[1]} of {epochs}: {', '.join(shown)}"


def _show_captions(runner: "StepRunner", folder: Path, captions: Iterable[Any]) -> None:
    right = folder / "right.jsonl"
    lines = [json.dumps({"id": v.key, "right": int(v.right)}) + "\n" for v in captions]
    right.write_text("".join(lines), encoding="utf-8")
    log = OF_CAPTIONS.train.lower().replace(" ", "-")
    runner.command(
        "Show everything on a page",
        *("fairseq-mm report --data", folder / "data", "--split test --hypotheses"),
        *(folder / "generate-test.txt", "--images", folder / "images", "--scores", right),
        *("--scores", folder / "scores-per-item.jsonl", "--result", folder / "scores.json"),
        *("--training-log", folder / "logs" / f"{log}.log", "--title demo --output"),
        folder / "page.html",
    )


def _generate_fresh_story(runner: "StepRunner", folder: Path, weights: Path) -> None:
    from fairseq_mm.demo.collection import image_names

    images = [folder / "fresh" / "images" / name for name in image_names(FRESH)]
    runner.command(
        "Generate a story of five fresh images",
        *("fairseq-mm tell", *images, "--checkpoint", folder / "checkpoints", "--weights"),
        *(weights, "--html", folder / "page.html", "--jsonl"),
        output=folder / GENERATED,
    )


def _fresh_sentences(folder: Path) -> list[str]:
    from fairseq_mm.data.visual_story_text import split_sentences

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
    from fairseq_mm.demo.collection import KINDS

    rows = [
        ("captions that are true of their image", captions),
        ("  in combinations that training showed", [v for v in captions if not v.unseen]),
        ("  in combinations that it did not", [v for v in captions if v.unseen]),
        *_scores(folder),
        ("sentences that say what their image shows", sentences),
        *((f"  {what}", [v for v in sentences if v.kind == kind]) for kind, what in KINDS.items()),
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
