#!/usr/bin/env python3
"""Draws images, stories and clips, trains a model for each of five tasks on them,
and shows on one page what the models write and find.

    make demo
    python examples/demo/run_demo.py --output demo2 --seed 2

The program needs no data. It draws images of coloured shapes and trains a small
image network for their features. Then it trains five models with fairseq-train:
captions of images, visual stories of five images, images found by a sentence,
stories of prompts, and summaries of clips with transcripts. Every command is
shown before it runs, and can be run again by hand; as many run in parallel as
there are cores. An interrupted run continues when the same command is run again.
It takes some minutes on two cores.

At the end, it checks what the models make of new items, beside an answer that is
always the most common one. The exit status is 1 if fewer than 9 of 10 items of a
task are right.
"""

import argparse
import json
import os
import re
import resource
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import demo_task
from demo_page import write_demo_page
from demo_results import Result, judge
from demo_task import SEE, DemoTask
from demo_tasks import Captions, Search, Summaries, Tales, VisualStories
from step_runner import StepRunner

from fairseq_mm import __version__
from fairseq_mm.cli.script import run_script

TRAIN_RECOGNIZER = "drawings.recognizer.train_and_save"
MINIMUM = 0.9  # share of right items of each task


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
    folder, seed, sizes = args.output, args.seed, demo_task.SIZES
    settings = {"version": __version__, "seed": seed, "sizes": json.loads(json.dumps(sizes))}
    classes = (Captions, VisualStories, Search, Tales, Summaries)
    runner = StepRunner(folder, settings, total=1 + sum(task.steps for task in classes))
    tasks = [task(runner, folder, sizes, seed) for task in classes]
    _run_steps(runner, *tasks)

    results = [judge(task) for task in tasks]
    _print_results(results)
    _print_row("seconds of all steps", f"{sum(runner.seconds.values()):.0f}")
    _print_row("seconds of this run", f"{time.monotonic() - start:.0f}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    _print_row("CPU seconds of this run", f"{used.ru_utime + used.ru_stime:.0f}")
    page = folder / "page.html"
    write_demo_page(page, results, activation())
    print(f"\nEverything on a page: {page.resolve()}")
    _print_next_steps(folder)
    return _status(results, folder / "logs")


def _run_steps(
    runner: StepRunner,
    captions: DemoTask,
    stories: DemoTask,
    search: DemoTask,
    tales: DemoTask,
    summaries: DemoTask,
) -> None:
    sizes = captions.sizes

    def learn_to_see() -> None:
        network = {"close_ups": sizes.close_ups, "images": sizes.whole_images}
        runner.call(
            SEE,
            TRAIN_RECOGNIZER,
            shown=shorten_recognition,
            weights=captions.weights,
            seed=captions.seed,
            **network,
        )

    def draw() -> None:
        for task in (stories, captions, search, summaries, tales):
            task.draw()
        tales.learn()  # needs no images

    # The longest begin first: on two cores, both then end at about the same time.
    runner.side_by_side(
        learn_to_see, draw, stories.learn, captions.learn, summaries.learn, search.learn
    )


def shorten_recognition(line: str) -> str:
    """Return a line of the image network's training if it tells progress or accuracy, else ""."""
    return line.strip() if re.match("close-ups: |whole images: |recognises ", line) else ""


def _print_results(results: Sequence[Result]) -> None:
    print()
    _print_row("right of the test items", "", "most common answer")
    for result in results:
        baseline = f"{result.baseline_share:18.1%}"
        _print_row(result.task.items, _share(result.right, len(result.verdicts)), baseline)
        for what, right, total in result.parts:
            _print_row(f"  {what}", _share(right, total))
    print()


def _share(right: int, total: int) -> str:
    return f"{right:4} of {total:3}  {right / max(total, 1):6.1%}"


def _print_row(name: str, *values: str) -> None:
    print("  ".join([f"{name:<54}", *values]).rstrip())


def next_commands(folder: Path) -> list[list[str]]:
    """Return the words of commands to try after the demo."""
    weights, photos = str(folder / "recognizer.pt"), folder / Search.name / "images"
    checkpoints = {name: str(folder / name / "checkpoints") for name in (Captions.name, Tales.name)}
    return [
        ["fairseq-mm", "search", str(photos), "a small red star above a large blue circle"],
        [
            *("fairseq-mm", "caption", str(photos / "photo-0001.jpg")),
            *("--checkpoint", checkpoints[Captions.name], "--weights", weights),
        ],
        [
            *(
                "fairseq-mm",
                "tell",
                "--prompt",
                "[WP] A brave fox looks for a red key in the cave.",
            ),
            *("--checkpoint", checkpoints[Tales.name], "--min-len", "1"),
        ],
    ]


def activation() -> str:
    """Return the shell command that activates the environment of this run, or "" if the shell that
    began the run already finds the environment's programs, or there is no virtual environment.
    """
    programs = Path(sys.prefix) / "bin"
    script = programs / "activate"
    if not script.exists() or str(programs) in os.environ.get("PATH", "").split(os.pathsep):
        return ""
    here = Path.cwd()
    shown = script.relative_to(here) if script.is_relative_to(here) else script
    return f"source {shlex.quote(str(shown))}"


def _print_next_steps(folder: Path) -> None:
    print("\nTry next:")
    if command := activation():
        print(f"  {command}  # once in each shell")
    for words in next_commands(folder):
        print(f"  {shlex.join(words)}")
    print("Your own data: docs/your_data.md. Another demo: examples/demo/README.md")


def _status(results: Sequence[Result], logs: Path) -> int:
    status = 0
    for result in results:
        if result.share < MINIMUM:
            print(
                f"failed: {result.right} of {len(result.verdicts)} {result.task.items} are right, "
                f"fewer than {MINIMUM:.0%} (compare another --seed; the logs are in {logs})."
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(run_script(__doc__, [add_arguments], run))
