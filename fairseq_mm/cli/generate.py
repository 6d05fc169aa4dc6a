"""Generate texts with a model of any task, from a JSON object a line.

  fairseq-mm generate inputs.jsonl --checkpoint checkpoints/m_rnn --output captions.jsonl
  echo '{"prompt": "[WP] The last dragon opens a bakery."}' | \\
      fairseq-mm generate - --checkpoint checkpoints/conv_story_fusion --preset paper

The checkpoint's task says what a line has: an image ({"image": "dog.jpg"}), an image sequence
({"images": [five paths, null for a missing one]}), a prompt ({"prompt": "..."}), or a video
({"video": "a.mp4", "transcript": "..."}); "id" is optional. Paths are relative to the file. Writes
a JSON object a line: id, hypothesis, score, and what made them. A line that cannot be read is named
on stderr, the others are generated all the same, and the exit status is 2.

caption, tell and summarize are this command with inputs of their own: folders, splits, stores.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.records import Record, model_facts, opened
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import EXIT_STATUS, UserError
from fairseq_mm.generation.defaults import (
    PROMPT_STORY_PRESETS,
    VISUAL_STORY_CONSTRAINTS,
    VISUAL_STORY_PRESETS,
)

# inputs that are read before the first of them are generated from
PIECE = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", metavar="FILE", help="JSON lines with the inputs; - is standard input."
    )
    arguments.add(parser, "checkpoint", "weights", "embedding", "data")
    parser.add_argument(
        "--user-dir",
        metavar="DIR",
        help="Folder of a plugin of your own, with its task and models.",
    )
    presets = dict.fromkeys([*PROMPT_STORY_PRESETS, *VISUAL_STORY_PRESETS])
    arguments.add_generation(parser, {}, presets=presets, constraints=VISUAL_STORY_CONSTRAINTS)
    arguments.add(parser.add_argument_group("output"), "output")
    arguments.add(parser.add_argument_group("run"), "device", "batch_size")


def run(args: argparse.Namespace) -> int:
    arguments.check_batch_size(args)
    arguments.check_writable("--output", args.output)
    options = arguments.generation_options(args)
    register_quietly()

    from fairseq.utils import import_user_module

    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.pretrained import from_pretrained

    if args.user_dir:
        import_user_module(argparse.Namespace(user_dir=args.user_dir))
    model = from_pretrained(
        args.checkpoint,
        weights=args.weights,
        embedding=args.embedding,
        data=args.data,
        device=args.device,
    )
    if not isinstance(model, Generator):
        raise UserError(f"{args.checkpoint}: does not generate texts by itself.")
    config = model.config(**options)
    record = Record(model_facts(model, config), config.nbest)
    lines = list(_records(args.inputs))
    folder = "" if args.inputs == "-" else os.path.dirname(args.inputs)
    failed = 0
    with opened(args.output) as file:
        for start in range(0, len(lines), PIECE):
            piece = dict(enumerate(lines[start : start + PIECE], start))
            names, examples, indices = [], [], []
            for index, example in zip(piece, _examples_of(model, piece.values(), folder)):
                where, entry = piece[index]
                if isinstance(example, UserError):
                    failed += 1
                    print(f"fairseq-mm generate: {where}: {example}", file=sys.stderr)
                    continue
                names.append(str(entry.get("id", index)))
                examples.append(example)
                indices.append(index)
            found = model.stream(examples, config, indices=indices, batch_size=args.batch_size)
            for name, hypotheses in zip(names, found):
                print(record.line(name, hypotheses, {}), file=file, flush=True)
    if failed:
        print(f"{failed} of {len(lines)} inputs could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each object stands, and the object.

    Raises:
        UserError: if the file cannot be read, has no line, or one is no JSON object.
    """
    from fairseq_mm.data.input_files import parse_object, read_lines

    empty = True
    for number, line in read_lines(Path("/dev/stdin" if path == "-" else path)):
        if line.strip():
            empty = False
            where = f"{path}:{number}"
            yield where, parse_object(line, where)
    if empty:
        raise UserError(f"{path}: must have a JSON object a line, but is empty.")


def _examples_of(
    model: Any, piece: Iterable[tuple[str, Mapping[str, Any]]], folder: str
) -> Iterator[Any]:
    """The example of each line, or the reason why there is none."""
    inputs: list[Any] = []
    for _, entry in piece:
        fields = {name: value for name, value in entry.items() if name != "id"}
        try:
            inputs.append(model.processor.from_record(fields, folder))
        except UserError as error:
            inputs.append(error)
    readable = [value for value in inputs if not isinstance(value, UserError)]
    found = model.processor.examples(readable)
    for value in inputs:
        yield value if isinstance(value, UserError) else next(found)
