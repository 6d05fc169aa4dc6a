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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli import arguments, retrieve_nearest, retrieve_plot
from fairseq_mm.cli.records import list_first
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.retrieval.nearest_prompts import NearPrompt

KINDS = ("prompts", "nearest", "plot")
_NAMED = 5  # lines in a message


def name_kind(argv: Sequence[str]) -> list[str]:
    """Insert the default action ``nearest`` unless ``argv`` begins with an action or ``--help``.

    An empty list is returned unchanged.
    """
    # argparse cannot have a default subcommand.
    if not argv or argv[0] in (*KINDS, "-h", "--help"):
        return list(argv)
    return ["nearest", *argv]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, text, description, add_kind, run_kind in (
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
        kind = kinds.add_parser(name, help=text, description=description)
        add_kind(kind)
        kind.set_defaults(kind_function=run_kind)


def _add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="Data folder, with text/train.wp_source.")
    query = parser.add_mutually_exclusive_group()
    split = {"default": "valid", "help": "Split whose prompts are the queries (default: valid)."}
    arguments.add(query, "split", split=split)
    query.add_argument(
        "--prompt", action="append", metavar="TEXT", help="Query prompt; may be given again."
    )
    parser.add_argument(
        "--k",
        type=_ranks,
        default=[1],
        metavar="K[,K...]",
        help="Ranks of the training prompts whose stories are written (default: 1).",
    )
    parser.add_argument(
        "--words",
        type=int,
        default=150,  # section 5.1: as long as the generated stories
        metavar="N",
        help="Maximum number of words of a story, 0 for all; <newline> counts as one (default: "
        "150).",
    )
    output = {"help": "File to write, with {k} in its name for several ranks (default: stdout)."}
    arguments.add(parser, "output", output=output)


def _ranks(text: str) -> list[int]:
    ranks = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(ranks) < 1 or len(set(ranks)) < len(ranks):
        raise argparse.ArgumentTypeError(f"must be different ranks from 1 on, but is {text!r}")
    return ranks


def run(args: argparse.Namespace) -> None:
    args.kind_function(args)


def _run_prompts(args: argparse.Namespace) -> None:
    from tqdm.auto import tqdm

    from fairseq_mm.retrieval.nearest_prompts import NearestPrompts

    if args.words < 0:
        raise UserError(f"--words: must be 0 or more, but is {args.words}.")
    outputs = _name_outputs(args)
    folder = Path(args.data, "text")
    training = _read(folder / "train.wp_source")
    if args.prompt:
        prompts = [_tokenize(prompt) for prompt in args.prompt]
    else:
        prompts = _read(folder / f"{args.split}.wp_source")
    if not any(prompt.strip() for prompt in training):
        raise UserError(f"{folder / 'train.wp_source'}: must have prompts, but is empty.")
    index = NearestPrompts(training)
    # A single prompt takes too little time for a progress bar.
    with tqdm(total=len(prompts), unit="prompt", disable=len(prompts) < 2 or None) as bar:
        neighbours = index.search(
            prompts,
            max(args.k),
            # The nearest neighbour of a training prompt would be the prompt itself.
            leave_out_same=not args.prompt and args.split == "train",
            progress=bar.update,
        )
    _check_neighbours(args, prompts, neighbours)
    stories = _read(folder / "train.wp_target")
    if len(stories) != len(training):
        raise UserError(
            f"{folder / 'train.wp_target'}: has {len(stories)} lines, but train.wp_source has "
            f"{len(training)}."
        )
    for k, output in zip(args.k, outputs):
        entries = [
            {
                "id": i,
                # Paragraphs end with the word <newline>, so that split() keeps them.
                "hypothesis": " ".join(stories[near[k - 1].line].split()[: args.words or None]),
                "score": round(near[k - 1].similarity, 6),
                "prompt": prompts[i],
                "k": k,
                "training_prompt": training[near[k - 1].line],
                "training_line": near[k - 1].line + 1,
            }
            for i, near in enumerate(neighbours)
            if len(near) >= k
        ]
        _write(output, entries, len(prompts), readable=bool(args.prompt))


def _name_outputs(args: argparse.Namespace) -> list[Optional[str]]:
    if args.output is None:
        return [None] * len(args.k)
    if len(args.k) > 1 and "{k}" not in args.output:
        raise UserError(
            f"--output {args.output}: must have {{k}} in its name, because --k has several ranks: "
            "each is a file."
        )
    paths = [args.output.replace("{k}", str(k)) for k in args.k]
    arguments.check_writable("--output", paths[0])
    return paths


def _tokenize(prompt: str) -> str:
    """Tokenize a prompt like WritingPrompts, where punctuation marks are words."""
    from fairseq_mm.data.story_text import check_encodable, tokenize_story_text

    check_encodable(prompt, "--prompt")
    words = tokenize_story_text(prompt)
    if not words:
        raise UserError("--prompt: must have a word, but is empty.")
    return " ".join(words)


def _read(path: Path) -> list[str]:
    # splitlines() would also split at characters such as U+2028, which a story may contain.
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None


def _check_neighbours(
    args: argparse.Namespace, prompts: Sequence[str], neighbours: "list[list[NearPrompt]]"
) -> None:
    """Report on stderr the prompts for which fewer training prompts were found than ``--k`` needs.

    Raise UserError if this is true of all prompts. ``neighbours`` has the results of each prompt.
    """
    k = max(args.k)
    few = [i for i, near in enumerate(neighbours) if len(near) < k]
    if not few:
        return
    i = few[0]
    what = (
        f"{len(neighbours[i]) or 'no'} training prompts have a word in common with {prompts[i]!r}"
    )
    if len(few) == len(prompts):
        raise UserError(f"--k {k}: {what}.")
    named = list_first([str(i) for i in few], _NAMED)
    print(
        f"{len(few)} of {len(prompts)} prompts have fewer than {k} neighbours and no story at "
        f"that rank: {named} ({what})",
        file=sys.stderr,
    )


def _write(
    path: Optional[str], entries: Sequence[Mapping[str, Any]], expected: int, *, readable: bool
) -> None:
    from fairseq_mm.data.story_text import detokenize_story

    if path is None and readable:
        for entry in entries:
            story = detokenize_story(entry["hypothesis"].split())
            where = f"rank {entry['k']}, cosine {entry['score']:.3f}"
            print(f"{entry['training_prompt']}\n(line {entry['training_line']} of train, {where})")
            print(f"\n{story}\n")
        return
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    if path is None:
        sys.stdout.write(text)
        return
    if not path.endswith(".jsonl"):
        # A prompt without neighbour gets an empty line, so that line numbers agree with the split.
        stories = {entry["id"]: entry["hypothesis"] for entry in entries}
        text = "".join(f"{stories.get(i, '')}\n" for i in range(expected))
    write_file(path, text)
    print(f"{path}: {len(entries)} stories", file=sys.stderr)
