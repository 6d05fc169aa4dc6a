"""Retrieves images and sentences by their vectors or by likelihood (nearest),
draws them (plot), or retrieves stories of the training set instead of
generating them (prompts, the KNN baseline). Each kind has its own --help.

  fairseq-mm retrieve nearest "a dog on the beach" --store images.h5 \\
      --checkpoint checkpoints/vse_bow
  fairseq-mm retrieve prompts data-bin/wp --split valid --output nearest.jsonl
  fairseq-mm retrieve prompts data-bin/wp --split test --k 1,2,5,10 \\
      --output 'nearest-{k}.jsonl'
  fairseq-mm retrieve prompts data-bin/wp --prompt 'A dragon guards a book .'

For a prompt, the command finds the training prompt with the highest cosine of
TF-IDF vectors (words lower-cased, tags such as [ WP ] left out) and returns the
story of that training prompt, truncated to --words words (Fan et al. 2018,
section 5.1). With --k it returns the story of the kth nearest training prompt
(Figure 7). With --split train, training lines with the same prompt are left out
of the search. The output is JSONL in the order of the split, with the fields id
(the line counted from 0, as in fairseq-generate), hypothesis (the story), score
(the cosine), prompt, training_prompt and training_line. If the output has another
suffix than .jsonl, it has only the stories, one per line.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from fairseq_mm.cli import arguments, retrieve_nearest, retrieve_plot
from fairseq_mm.cli.arguments import Rows
from fairseq_mm.cli.records import list_first
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError

_NAMED = 5  # lines in a message


def name_kind(argv: Sequence[str]) -> list[str]:
    """Insert the default action ``nearest`` if no action or ``--help`` is first in ``argv``.

    An empty list is returned unchanged.
    """
    # argparse cannot have a default subcommand.
    if not argv or argv[0] in ("prompts", "nearest", "plot", "-h", "--help"):
        return list(argv)
    return ["nearest", *argv]


def _ranks(text: str) -> list[int]:
    ranks = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(ranks) < 1 or len(set(ranks)) < len(ranks):
        raise argparse.ArgumentTypeError(f"must be different ranks from 1 on, but is {text!r}")
    return ranks


_PROMPTS: Rows = {
    "--k": (
        "Ranks of the training prompts whose stories are written (default: 1).",
        {"type": _ranks, "default": [1], "metavar": "K[,K...]"},
    ),
    "--words": (  # section 5.1: as long as the generated stories
        "Maximum number of words of a story; <newline> counts as one (default: 150).",
        {**arguments.POSITIVE, "default": 150},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, text, module, add_kind, run_kind in (
        (
            "prompts",
            "stories of the nearest training prompts",
            __doc__,
            _add_prompt_arguments,
            _run_prompts,
        ),
        (
            "nearest",
            "images or sentences nearest to a sentence or an image",
            retrieve_nearest.__doc__,
            retrieve_nearest.add_nearest_arguments,
            retrieve_nearest.run_nearest,
        ),
        (
            "plot",
            "images and words on their principal components",
            retrieve_plot.__doc__,
            retrieve_plot.add_plot_arguments,
            retrieve_plot.run_plot,
        ),
    ):
        kind = kinds.add_parser(name, help=text, description=module)
        add_kind(kind)
        kind.set_defaults(kind_function=run_kind)


def _add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="Data folder with a training split.")
    query = parser.add_mutually_exclusive_group()
    split = {"default": "valid", "help": "Split whose prompts are the queries (default: valid)."}
    arguments.add(query, "split", split=split)
    query.add_argument(
        "--prompt", action="append", metavar="TEXT", help="Query prompt; may be given again."
    )
    arguments.add_rows(parser, _PROMPTS)
    output = {"help": "File to write, with {k} in its name for several ranks (default: stdout)."}
    arguments.add(parser, "output", output=output)


def run(args: argparse.Namespace) -> None:
    args.kind_function(args)


def _run_prompts(args: argparse.Namespace) -> None:
    if len(args.k) > 1 and "{k}" not in (args.output or "{k}"):
        raise UserError(
            f"--output {args.output}: must have {{k}} in its name, because --k has several ranks: "
            "each is a file."
        )
    arguments.check(args)
    from tqdm.auto import tqdm

    from fairseq_mm.data.records import open_split
    from fairseq_mm.data.story_text import check_encodable, tokenize_story_text
    from fairseq_mm.retrieval.nearest_prompts import NearestPrompts

    def read_prompts(split: str) -> list[str]:
        return [
            " ".join(words) for words in open_split(args.data, split).iterate_tokens("wp_source")
        ]

    training = read_prompts("train")
    if args.prompt:
        check_encodable(" ".join(args.prompt), "--prompt")
        prompts = [" ".join(tokenize_story_text(prompt)) for prompt in args.prompt]
    else:
        prompts = read_prompts(args.split)
    # A single prompt takes too little time for a progress bar.
    with tqdm(total=len(prompts), unit="prompt", disable=len(prompts) < 2 or None) as bar:
        neighbours = NearestPrompts(training).search(
            prompts,
            max(args.k),
            # The nearest neighbour of a training prompt would be the prompt itself.
            leave_out_same=not args.prompt and args.split == "train",
            progress=bar.update,
        )
    few = [i for i, near in enumerate(neighbours) if len(near) < max(args.k)]
    if few:
        what = (
            f"{len(neighbours[few[0]]) or 'no'} training prompts have a word in common with "
            f"{prompts[few[0]]!r}"
        )
        print(
            f"{len(few)} of {len(prompts)} prompts have fewer than {max(args.k)} neighbours and no "
            f"story at that rank: {list_first([str(i) for i in few], _NAMED)} ({what})",
            file=sys.stderr,
        )
    lines = {near[k - 1].line for near in neighbours for k in args.k if len(near) >= k}
    tokens = open_split(args.data, "train").iterate_tokens("wp_target")
    # a few of hundreds of thousands of stories
    stories = {line: words for line, words in enumerate(tokens) if line in lines}
    for k in args.k:
        entries = [
            {
                "id": i,
                # Paragraphs end with the word <newline>, which counts as one.
                "hypothesis": " ".join(stories[near[k - 1].line][: args.words]),
                "score": round(near[k - 1].similarity, 6),
                "prompt": prompts[i],
                "k": k,
                "training_prompt": training[near[k - 1].line],
                "training_line": near[k - 1].line + 1,
            }
            for i, near in enumerate(neighbours)
            if len(near) >= k
        ]
        _write(args, entries, len(prompts), k)


def _write(
    args: argparse.Namespace, entries: Sequence[dict[str, Any]], expected: int, k: int
) -> None:
    from fairseq_mm.data.story_text import detokenize_story

    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    if args.output is None and args.prompt:
        for entry in entries:
            story = detokenize_story(entry["hypothesis"].split())
            where = f"rank {k}, cosine {entry['score']:.3f}"
            print(f"{entry['training_prompt']}\n(line {entry['training_line']} of train, {where})")
            print(f"\n{story}\n")
    elif args.output is None:
        sys.stdout.write(text)
    else:
        path = args.output.replace("{k}", str(k))
        if not path.endswith(".jsonl"):
            # A prompt without neighbour gets an empty line: line numbers agree with the split.
            stories = {entry["id"]: entry["hypothesis"] for entry in entries}
            text = "".join(f"{stories.get(i, '')}\n" for i in range(expected))
        write_file(path, text)
        print(f"{path}: {len(entries)} stories", file=sys.stderr)
