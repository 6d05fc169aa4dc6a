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
import math
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from known_facts.pairs import Pair, count_values, write_splits
from known_facts.reading import (
    accuracy_with,
    count_mentions,
    perplexities,
    rank_readers,
    read_prompt,
)
from known_facts.words import KINDS

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rows
from fairseq_mm.cli.script import run_script
from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.output_file import partial_path, write_file
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bootstrap import interval, resampled

CANDIDATES = 10  # prompts that are ranked for a story, as in Fan et al. 2018
MIN_VALUES = 4
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
            "--values": (
                "Number of values of each fact that prompts name, at most 24 (default: all).",
                _NUMBER,
            ),
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
    arguments.add_actions(parser, ACTIONS)


def run(args: argparse.Namespace) -> int:
    {"write": _write, "score": _score}[args.action](args)
    return 0


def _write(args: argparse.Namespace) -> None:
    sizes = {split: getattr(args, split) for split in ORDER}
    for split, size in sizes.items():
        least = 1 if split == "train" else CANDIDATES
        if size < least:
            raise UserError(f"--{split}: must be {least} or more, but is {size}.")
    if args.values is not None and not MIN_VALUES <= args.values <= 24:
        raise UserError(f"--values: must be from {MIN_VALUES} to 24, but is {args.values}.")
    values = count_values(args.values)
    total, most = sum(sizes.values()), math.prod(values.values()) // 2
    # No two pairs have the same facts; above the limit, most lists of facts would be drawn in vain.
    if total > most:
        raise UserError(
            f"--train, --valid, --test: must be {most:,} or fewer in all for these values, but are "
            f"{total:,}."
        )
    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    folder = Path(args.output)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: must be a new or an empty folder, but has content.")
        splits = write_splits(sizes, args.seed, args.values)
        report = _describe(splits, args.seed, values)
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


def _describe(splits: dict[str, list[Pair]], seed: int, values: dict[str, int]) -> dict[str, Any]:
    """Return the content of ``dependence.json``; ``values`` is the number of values by kind."""
    held_out = ("valid", "test")
    lengths = [len(pair.story.split()) for pair in splits["train"]]
    ranking: dict[str, Any] = {
        split: {reader: figure.value for reader, figure in rank_readers(splits[split]).items()}
        for split in held_out
    }
    following = {
        "+".join(KINDS[:number]): accuracy_with([values[kind] for kind in KINDS[:number]])
        for number in range(len(KINDS) + 1)
    }
    return {
        "seed": seed,
        "pairs": {split: len(pairs) for split, pairs in splits.items()},
        "values": values,
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
            # of a model that follows the facts of these kinds alone; "" stands for no facts
            "following": following,
        },
        "perplexity": {
            split: perplexities(splits[split], math.prod(values.values())) for split in held_out
        },
    }


def _score(args: argparse.Namespace) -> None:
    stories = []
    for where, entry in read_objects(args.stories):
        prompt = str(entry.get("prompt"))
        if len(read_prompt(prompt)) < len(KINDS):
            raise UserError(
                f"{where}: the prompt must state the five facts of `prompt_following.py write`, "
                f"but is {prompt[:60]!r}."
            )
        # files of `retrieve prompts` have no tokens, and call the hypothesis `story`
        text = next((entry[x] for x in ("tokens", "hypothesis", "story") if x in entry), "")
        stories.append((prompt, text))
    result = score_stories(stories)
    if args.json:
        write_file(args.json, json.dumps(result, indent=2) + "\n")
    print(f"{len(stories)} stories; intervals: 95 %, bootstrap over stories")
    print(f"{'':8}{'taken up':24}{'right sentences':24}{'chance':10}sentences a story")
    for name, figures in result["kinds"].items():
        right, chance = _percent(figures["right"]), f"{figures['chance']:.1%}"
        if not figures["sentences"]:  # shares of nothing
            right = chance = "-"
        taken_up = _percent(figures["taken_up"])
        print(f"{name:8}{taken_up:24}{right:24}{chance:10}{figures['sentences']:.2f}")


def score_stories(stories: list[tuple[str, str]]) -> dict[str, Any]:
    """Score how stories take up the facts of their prompts, by kind and over all kinds.

    ``taken_up`` is the share of facts that at least one sentence takes up; ``right`` is the share
    of the sentences with a template of the kind whose trace fits the prompt; ``chance`` is this
    share under the prompts of the other stories; ``sentences`` is the mean number of such sentences
    in a story.
    """
    facts = [read_prompt(prompt) for prompt, _ in stories]
    counts = [count_mentions(tokens) for _, tokens in stories]
    shape = len(stories), len(KINDS)
    mentions, right, by_chance = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for column, kind in enumerate(KINDS):
        named = Counter(of_prompt[kind] for of_prompt in facts)
        for row, (of_prompt, of_story) in enumerate(zip(facts, counts)):
            values, own = of_story[kind], of_prompt[kind]
            mentions[row, column] = values.total()
            right[row, column] = values[own]
            others = sum(count * (named[x] - (x == own)) for x, count in values.items())
            by_chance[row, column] = others / max(1, len(stories) - 1)
    groups = {kind: [number] for number, kind in enumerate(KINDS)}
    groups["all"] = list(range(len(KINDS)))
    kinds = {}
    for name, columns in groups.items():
        sums = [(right > 0), right, mentions, np.ones_like(right), by_chance]
        rows = np.stack([each[:, columns].sum(axis=1) for each in sums], axis=1)
        kinds[name] = {
            "taken_up": _share(rows, 0, 3),
            "right": _share(rows, 1, 2),
            "chance": _share(rows, 4, 2)["value"],
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
