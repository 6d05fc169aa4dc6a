"""Retrieves images and sentences by their vectors (nearest, plot), or stories of the training set
instead of generating them (prompts, the KNN baseline). Each kind has its own --help.

fairseq-mm retrieve "a dog on the beach" --checkpoint checkpoints/vse_bow --store images.h5
fairseq-mm retrieve prompts data-bin/wp --split valid --output nearest.jsonl
fairseq-mm retrieve prompts data-bin/wp --split test --k 1,2,5,10 --output 'nearest-{k}.jsonl'
fairseq-mm retrieve prompts data-bin/wp --prompt 'A dragon guards the last library .'

Of prompts: the story of the training prompt with the highest cosine of TF-IDF vectors (words
lower-cased, tags such as [ WP ] left out), cut to its first words (Fan et al. 2018, section 5.1).
With --k it is that of the kth nearest line of the training set (Figure 7). Prompts of train itself
do not find lines with the same prompt. Output is JSONL in the order of the split, the id being the
line counted from 0 as in fairseq-generate, or for another suffix than .jsonl the stories alone, one
a line.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli import retrieve_nearest, retrieve_plot
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.retrieval.nearest_prompts import NearPrompt

KINDS = ("prompts", "nearest", "plot")
NAMED = 5  # lines in a message


def name_kind(argv: Sequence[str]) -> list[str]:
    """Arguments that begin with no kind are those of ``nearest``."""
    if not argv or argv[0] in (*KINDS, "-h", "--help"):
        return list(argv)
    return ["nearest", *argv]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    prompts = kinds.add_parser(
        "prompts",
        help="stories of the nearest training prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prompts.add_argument("data", metavar="DATA", help="data folder, with text/train.wp_source")
    asked = prompts.add_mutually_exclusive_group()
    asked.add_argument("--split", default="valid", help="whose prompts are asked (default: valid)")
    asked.add_argument(
        "--prompt", action="append", metavar="TEXT", help="ask this one; may be given repeatedly"
    )
    prompts.add_argument(
        "--k", type=_ranks, default=[1], metavar="K[,K...]", help="the kth nearest (default: 1)"
    )
    prompts.add_argument(
        "--words",
        type=int,
        default=150,
        metavar="N",
        help="words of a story, 0 for all; <newline> counts as one (default: 150)",
    )
    prompts.add_argument(
        "--output", metavar="FILE", help="with {k} in it for several ranks (default: stdout)"
    )
    prompts.set_defaults(kind_function=_run_prompts)
    nearest = kinds.add_parser(
        "nearest",
        help="images or sentences nearest to a sentence or an image",
        description=retrieve_nearest.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    retrieve_nearest.add_nearest_arguments(nearest)
    nearest.set_defaults(kind_function=retrieve_nearest.run_nearest)
    plot = kinds.add_parser(
        "plot",
        help="images and words on their principal components",
        description=retrieve_plot.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    retrieve_plot.add_plot_arguments(plot)
    plot.set_defaults(kind_function=retrieve_plot.run_plot)


def _ranks(text: str) -> list[int]:
    ranks = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(ranks) < 1 or len(set(ranks)) < len(ranks):
        raise argparse.ArgumentTypeError(f"must be different ranks from 1 on, but is {text!r}")
    return ranks


def run(args: argparse.Namespace) -> None:
    args.kind_function(args)


def _run_prompts(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from fairseq_mm.retrieval.nearest_prompts import NearestPrompts

    if args.words < 0:
        raise UserError(f"--words: must be 0 or more, but is {args.words}.")
    outputs = _outputs(args)
    folder = Path(args.data, "text")
    training = _read_lines(folder / "train.wp_source")
    if args.prompt:
        prompts = [_tokenized(prompt) for prompt in args.prompt]
    else:
        prompts = _read_lines(folder / f"{args.split}.wp_source")
    try:
        index = NearestPrompts(training)
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{folder / 'train.wp_source'}: must have prompts, but is empty.") from None
    with tqdm(total=len(prompts), unit="prompt", disable=len(prompts) < 2 or None) as bar:
        found = index.search(
            prompts,
            max(args.k),
            leave_out_same=not args.prompt and args.split == "train",
            progress=bar.update,
        )
    _check_found(args, prompts, found)
    lines = {near[k - 1].line for near in found for k in args.k if len(near) >= k}
    stories = _read_stories(folder / "train.wp_target", lines, len(training), args.words)
    for k, output in zip(args.k, outputs):
        entries = [
            _entry(i, prompts[i], near[k - 1], k, training, stories)
            for i, near in enumerate(found)
            if len(near) >= k
        ]
        _write(output, entries, len(prompts), readable=bool(args.prompt))


def _outputs(args: argparse.Namespace) -> list[Optional[str]]:
    if args.output is None:
        return [None] * len(args.k)
    if len(args.k) > 1 and "{k}" not in args.output:
        raise UserError(
            f"--output {args.output}: must have {{k}} in its name, because --k has several ranks: "
            "each is a file."
        )
    paths = [args.output.replace("{k}", str(k)) for k in args.k]
    folder = Path(paths[0]).absolute().parent
    if not folder.is_dir():
        raise UserError(f"--output {args.output}: the folder {folder} does not exist.")
    return list(paths)


def _tokenized(prompt: str) -> str:
    """As the prompts of the data are: punctuation stands alone."""
    from fairseq_mm.data.story_text import check_encodable, tokenize_story_text

    check_encodable(prompt, "--prompt")
    words = tokenize_story_text(prompt)
    if not words:
        raise UserError("--prompt: must have a word, but is empty.")
    return " ".join(words)


def _read_lines(path: Path) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None


def _read_stories(path: Path, wanted: set[int], expected: int, words: int) -> dict[int, str]:
    """Line number -> its first words, for the lines that are wanted."""
    stories: dict[int, str] = {}
    count = 0
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file):
                count += 1
                if number in wanted:
                    stories[number] = " ".join(line.split()[: words or None])
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
    if count != expected:
        raise UserError(
            f"{path}: has {count} lines, but {path.with_suffix('.wp_source').name} has {expected}."
        )
    return stories


def _check_found(
    args: argparse.Namespace, prompts: Sequence[str], found: "list[list[NearPrompt]]"
) -> None:
    k = max(args.k)
    few = [i for i, near in enumerate(found) if len(near) < k]
    if not few:
        return
    i = few[0]
    what = f"{len(found[i]) or 'no'} training prompts have a word in common with {prompts[i]!r}"
    if len(few) == len(prompts):
        raise UserError(f"--k {k}: {what}.")
    named = ", ".join(map(str, few[:NAMED])) + (", ..." if len(few) > NAMED else "")
    print(
        f"{len(few)} of {len(prompts)} prompts have fewer than {k} neighbours and no story at "
        f"that rank: {named} ({what})",
        file=sys.stderr,
    )


def _entry(
    number: int,
    prompt: str,
    near: "NearPrompt",
    k: int,
    training: Sequence[str],
    stories: dict[int, str],
) -> dict[str, Any]:
    return {
        "id": number,
        "prompt": prompt,
        "story": stories[near.line],
        "k": k,
        "similarity": round(near.similarity, 6),
        "training_prompt": training[near.line],
        "training_line": near.line + 1,
    }


def _write(
    path: Optional[str], entries: list[dict[str, Any]], expected: int, *, readable: bool
) -> None:
    from fairseq_mm.data.output_file import output_file
    from fairseq_mm.data.story_text import detokenize_story

    jsonl = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    if path is None:
        if not readable:
            sys.stdout.write(jsonl)
            return
        for entry in entries:
            story = detokenize_story(entry["story"].split())
            where = f"rank {entry['k']}, cosine {entry['similarity']:.3f}"
            print(f"{entry['training_prompt']}\n(line {entry['training_line']} of train, {where})")
            print(f"\n{story}\n")
        return
    with output_file(path) as file:
        if path.endswith(".jsonl"):
            file.write(jsonl)
        else:
            stories = {entry["id"]: entry["story"] for entry in entries}
            file.writelines(f"{stories.get(i, '')}\n" for i in range(expected))
    print(f"{path}: {len(entries)} stories", file=sys.stderr)
