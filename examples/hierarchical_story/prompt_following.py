#!/usr/bin/env python3
"""Writes prompts and stories with a known dependence, and scores generated stories.

  python examples/hierarchical_story/prompt_following.py write pairs
  python examples/hierarchical_story/prompt_following.py score generated.jsonl

Each prompt states five facts: protagonist, place, object, goal and tone. Its
story takes up every fact in two sentences, one in the beginning and one in the
end, in words that are not the prompt's. Fillers, names and the order of the
sentences do not depend on the prompt; some fillers name the words of random
facts. No two pairs have the same facts.

`write` makes a folder in the layout of the WritingPrompts release, with
<split>.facts.jsonl (facts of each pair; the kind of each sentence, "" for a
filler) and dependence.json: sizes, the chance and the ceiling of prompt
ranking, what partial readers reach, and the lowest possible perplexities. Equal
options give equal files.

`score` reads stories of fairseq-mm tell or retrieve (JSONL with id, prompt and
hypothesis) and prints how many facts of the prompts they take up.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from known_facts.pairs import COMBINATIONS, Pair, write_splits
from known_facts.reading import (
    accuracy_with,
    count_right,
    perplexities,
    rank_readers,
    read_prompt,
)
from known_facts.words import KINDS, VALUES

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rows
from fairseq_mm.cli.script import run_script
from fairseq_mm.data.output_file import partial_path, write_file
from fairseq_mm.data.story_file import Story, read_stories
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bootstrap import interval, resampled

CANDIDATES = 10  # prompts that are ranked for a story, as in Fan et al. 2018
MAX_PAIRS = COMBINATIONS // 10  # above, most lists of facts would be drawn in vain
ORDER = ("valid", "test", "train")  # held-out pairs do not depend on the size of train

_NUMBER: dict[str, Any] = {"metavar": "N", "type": int}
# action -> summary and arguments
ACTIONS: dict[str, tuple[str, Rows]] = {
    "write": (
        "Write prompts and stories.",
        {
            "output": ("Folder to make.", {"metavar": "FOLDER"}),
            "--train": ("Pairs of train (default: 20000).", {**_NUMBER, "default": 20_000}),
            "--valid": ("Pairs of valid (default: 500).", {**_NUMBER, "default": 500}),
            "--test": ("Pairs of test (default: 500).", {**_NUMBER, "default": 500}),
            "--seed": ("Seed of all random choices (default: 1).", {**_NUMBER, "default": 1}),
        },
    ),
    "score": (
        "Score how generated stories take up the facts of their prompts.",
        {
            "stories": ("Stories, JSONL.", {"metavar": "STORIES"}),
            "--json": ("Write the figures as JSON to this file.", {"metavar": "FILE"}),
        },
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (summary, rows) in ACTIONS.items():
        arguments.add_rows(
            actions.add_parser(name, help=summary.rstrip("."), description=summary), rows
        )


def run(args: argparse.Namespace) -> int:
    {"write": _write, "score": _score}[args.action](args)
    return 0


def _write(args: argparse.Namespace) -> None:
    sizes = {split: getattr(args, split) for split in ORDER}
    for split, size in sizes.items():
        least = 1 if split == "train" else CANDIDATES
        if not least <= size <= MAX_PAIRS:
            raise UserError(f"--{split}: must be from {least} to {MAX_PAIRS:,}, but is {size}.")
    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    folder = Path(args.output)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: must be a new or an empty folder, but has content.")
        splits = write_splits(sizes, args.seed)
        report = _describe(splits, args.seed)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The folder appears when it is complete.
        with partial_path(str(folder)) as partial:
            os.mkdir(partial)
            for split, pairs in splits.items():
                _write_split(Path(partial), split, pairs)
            write_file(Path(partial) / "dependence.json", json.dumps(report, indent=2) + "\n")
            os.replace(partial, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}).") from None
    ranking, lowest = report["ranking"], report["perplexity"]["valid"]
    print(
        f"{folder}: {sizes['train']:,} + {sizes['valid']:,} + {sizes['test']:,} pairs, "
        f"{report['types']['prompts']:,} types of prompts, {report['types']['stories']:,} of "
        f"stories\nprompt ranking on valid: chance {ranking['chance']:.1%}, ceiling "
        f"{ranking['valid']['oracle']:.1%}; words of all sentences "
        f"{ranking['valid']['words']:.1%}, of fillers {ranking['valid']['fillers']:.1%}\n"
        f"lowest perplexity on valid: {lowest['with_prompt']:.2f}, without the prompt "
        f"{lowest['without_prompt']:.2f}"
    )


def _write_split(folder: Path, split: str, pairs: list[Pair]) -> None:
    """Write the two files of the release's layout, and the facts."""
    facts = [{"facts": pair.facts, "kinds": pair.kinds} for pair in pairs]
    for name, lines in (
        ("wp_source", [pair.prompt for pair in pairs]),
        ("wp_target", [pair.story for pair in pairs]),
        ("facts.jsonl", [json.dumps(entry) for entry in facts]),
    ):
        write_file(folder / f"{split}.{name}", "".join(f"{line}\n" for line in lines))


def _describe(splits: dict[str, list[Pair]], seed: int) -> dict[str, Any]:
    """Return the content of ``dependence.json``."""
    held_out = ("valid", "test")
    lengths = [len(pair.story.split()) for pair in splits["train"]]
    ranking: dict[str, Any] = {
        split: {reader: figure.value for reader, figure in rank_readers(splits[split]).items()}
        for split in held_out
    }
    following = {"+".join(KINDS[:number]): KINDS[:number] for number in range(len(KINDS) + 1)}
    return {
        "seed": seed,
        "pairs": {split: len(pairs) for split, pairs in splits.items()},
        "values": {kind: len(VALUES[kind]) for kind in KINDS},
        "types": {
            "prompts": len({word for pair in splits["train"] for word in pair.prompt.split()}),
            "stories": len({word for pair in splits["train"] for word in pair.story.split()}),
        },
        "story_words": {
            "least": min(lengths),
            "mean": float(np.mean(lengths)),
            "most": max(lengths),
        },
        "ranking": {
            "candidates": CANDIDATES,
            "chance": 1 / CANDIDATES,
            **ranking,
            # of a model that follows the facts of these kinds alone; "" is of none
            "following": {name: accuracy_with(kinds) for name, kinds in following.items()},
        },
        "perplexity": {split: perplexities(splits[split]) for split in held_out},
    }


def _score(args: argparse.Namespace) -> None:
    stories = read_stories(args.stories)
    for story in stories:
        if len(read_prompt(story.prompt)) < len(KINDS):
            raise UserError(
                f"{args.stories}: the prompt of {story.id!r} must state the five facts of "
                f"`prompt_following.py write`, but is {story.prompt[:60]!r}."
            )
    result = score_stories(stories)
    if args.json:
        write_file(args.json, json.dumps(result, indent=2) + "\n")
    print(f"{len(stories)} stories; intervals: 95 %, bootstrap over stories")
    print(f"{'':8}{'taken up':24}{'right sentences':24}{'chance':10}sentences a story")
    for name, figures in result["kinds"].items():
        cells = "".join(f"{_percent(figures[key]):24}" for key in ("taken_up", "right"))
        print(f"{name:8}{cells}{figures['chance']:<10.1%}{figures['sentences']:.2f}")


def score_stories(stories: list[Story]) -> dict[str, Any]:
    """Score how stories take up the facts of their prompts, by kind and over all kinds.

    ``taken_up`` is the share of facts that at least one sentence takes up; ``right`` is the share
    of the sentences with a template of the kind whose trace fits the prompt, which a model that
    does not read the prompt has by chance; ``sentences`` is the mean number of such sentences.
    """
    counts = [count_right(story.prompt, story.story) for story in stories]
    mentions = np.array([[count.mentions[kind] for kind in KINDS] for count in counts], float)
    right = np.array([[count.right[kind] for kind in KINDS] for count in counts], float)
    groups = {kind: [number] for number, kind in enumerate(KINDS)}
    groups["all"] = list(range(len(KINDS)))
    kinds = {}
    for name, columns in groups.items():
        sums = [(right > 0), right, mentions, np.ones_like(right)]
        rows = np.stack([each[:, columns].sum(axis=1) for each in sums], axis=1)
        kinds[name] = {
            "taken_up": _share(rows, 0, 3),
            "right": _share(rows, 1, 2),
            "chance": float(np.mean([1 / len(VALUES[KINDS[column]]) for column in columns])),
            "sentences": float(rows[:, 2].mean()),
        }
    return {"stories": len(stories), "kinds": kinds}


def _share(rows: np.ndarray, part: int, whole: int) -> dict[str, Any]:
    """Return the ratio of two summed columns with its 95 % interval."""

    def ratio(sums: np.ndarray) -> float:
        return float(sums[part] / sums[whole]) if sums[whole] else 0.0

    samples = resampled(rows, ratio, samples=1000, seed=1)
    return {"value": ratio(rows.sum(axis=0)), "interval": interval(samples)}


def _percent(share: dict[str, Any]) -> str:
    low, high = share["interval"]
    return f"{share['value']:6.1%} [{low:.1%}, {high:.1%}]"


if __name__ == "__main__":
    sys.exit(run_script(__doc__, [add_arguments], run))
