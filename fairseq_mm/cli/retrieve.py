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
from pathlib import Path
from typing import Any

from fairseq_mm.cli import arguments, retrieve_nearest
from fairseq_mm.cli.arguments import POSITIVE, REPEATED, Rows
from fairseq_mm.cli.records import list_first
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError

_PLOT_HELP = """\
Draws images and words on the first two principal components of their
vectors, as HTML.

  fairseq-mm retrieve plot --checkpoint checkpoints/vse_bow --store images.h5 \\
      --output plane.html --near "a red car" --near "a blue car" --word red \\
      --word blue --word car --images photos/

The plot is like Figure 5 of Kiros et al. 2014. It has the images of --id, and the
--top images nearest to each --near. With --images the page shows the images,
otherwise each image is a dot. --jsonl also writes the coordinates to a file.
"""
_NAMED = 5  # lines in a message
_SIDE = 128  # pixels of an image in the file, twice its size on the page


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
        {**POSITIVE, "default": 150},
    ),
}

_PLOT: Rows = {
    "--jsonl": ("Write the coordinates to this file, a point a line.", {"metavar": "FILE"}),
    "--id": ("Item of the store to draw; repeatable.", REPEATED),
    "--near": ("Draw the items nearest to this sentence; repeatable.", REPEATED),
    "--word": ("Word to draw; repeatable.", REPEATED),
    "--top": ("Number of items of each --near (default: 3).", {**POSITIVE, "default": 3}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    kind = kinds.add_parser(
        "prompts", help="stories of the nearest training prompts", description=__doc__
    )
    kind.set_defaults(kind_function=_run_prompts)
    kind.add_argument("data", metavar="DATA", help="Data folder with a training split.")
    query = kind.add_mutually_exclusive_group()
    split = {"default": "valid", "help": "Split whose prompts are the queries (default: valid)."}
    arguments.add(query, "split", split=split)
    query.add_argument(
        "--prompt", action="append", metavar="TEXT", help="Query prompt; may be given again."
    )
    arguments.add_rows(kind, _PROMPTS)
    output = {"help": "File to write, with {k} in its name for several ranks (default: stdout)."}
    arguments.add(kind, "output", output=output)

    summary = "images or sentences nearest to a sentence or an image"
    kind = kinds.add_parser("nearest", help=summary, description=retrieve_nearest.__doc__)
    kind.set_defaults(kind_function=retrieve_nearest.run_nearest)
    retrieve_nearest.add_nearest_arguments(kind)

    summary = "images and words on their principal components"
    kind = kinds.add_parser("plot", help=summary, description=_PLOT_HELP)
    # load_store_embedder reads args.weights; no image is embedded here, so there is no option.
    kind.set_defaults(kind_function=_run_plot, weights=None)
    store = "Feature store of vectors, made by fairseq-mm embed."
    kind.add_argument("--store", required=True, metavar="FILE", help=store)
    arguments.add(
        kind,
        *("checkpoint", "output", "device", "images"),
        checkpoint={"help": "Checkpoint that the vectors are from."},
        output={"required": True, "help": "HTML file to write."},
    )
    arguments.add_rows(kind, _PLOT)


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


def _run_plot(args: argparse.Namespace) -> None:
    arguments.check_outputs({"output": args.output, "jsonl": args.jsonl})
    register_quietly()
    import numpy as np

    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.report.figures import PlotPoint, plot_section
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.thumbnails import Thumbnails
    from fairseq_mm.retrieval.nearest_vectors import VectorStore, principal_components

    opened = FeatureStore(args.store)
    embedder = retrieve_nearest.load_store_embedder(opened, args)
    store = VectorStore(opened)
    ids = list(args.id)
    for key in ids:
        opened.count_rows(key)  # raises UserError if the item is missing
    if args.near:
        for items in store.search(embedder.embed_texts(args.near), args.top):
            ids += [key for key, _ in items]
    ids, words = list(dict.fromkeys(ids)), list(dict.fromkeys(args.word))
    if len(ids) + len(words) < 3:  # two points lie on a line
        raise UserError(
            f"{len(ids) + len(words)} images and words: at least 3 make a plane; give --id, "
            "--near or --word."
        )
    plane = principal_components(np.concatenate([store[ids], embedder.embed_texts(words)]))
    thumbnails = Thumbnails(args.images, _SIDE)
    points = []
    for number, (label, (x, y)) in enumerate(zip([*ids, *words], plane.coordinates.tolist())):
        is_word = number >= len(ids)
        uri = thumbnails.data_uri(label) if not is_word and label in thumbnails else None
        points.append(PlotPoint(label, x, y, is_word, uri))
    if args.jsonl:
        lines = [
            {"kind": "word" if x.is_word else "image", "label": x.label, "x": x.x, "y": x.y}
            for x in points
        ]
        write_file(
            args.jsonl, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        )
    subtitle = f"{len(ids)} images and {len(words)} words of {embedder.files[0]}"
    section = plot_section(points, plane.variance_shares)
    write_page(Path(args.output), render_page("One space", [section], subtitle=subtitle))
    print(f"{args.output}: {len(ids)} images, {len(words)} words", file=sys.stderr)
