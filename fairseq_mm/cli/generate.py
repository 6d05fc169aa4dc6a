"""Generate texts with a model of any task, from a JSON object a line.

  fairseq-mm generate inputs.jsonl --checkpoint m_rnn --output captions.jsonl
  echo '{"prompt": "[WP] The last dragon opens a bakery."}' | \\
      fairseq-mm generate - --checkpoint checkpoints/fusion --preset paper

The checkpoint's task says what a line has: an image ({"image": "dog.jpg"}), an
image sequence ({"images": [five paths, null for a missing one]}), a prompt
({"prompt": "..."}), or a video ({"video": "a.mp4", "transcript": "..."}, text
or a file of it); "id" is optional (default: the number of the input, from 0).
Paths are relative to the file. Writes a JSON object a line: id, hypothesis,
score, and what made them. An input that cannot be read, or is none of the task,
is named on stderr, the others are generated all the same, and the exit status
is 2. A file with a line that is no JSON object, or with an id that is there
twice, is refused before anything is generated.

Captions have a beam of 3 and at most 30 words by default, summaries a beam of 5,
at most 62 tokens and no trigram twice. They have no presets; those of stories
are described by fairseq-mm tell --help.

caption, tell and summarize are this command with inputs of their own: folders,
splits, feature stores.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.progress import progress_bar
from fairseq_mm.cli.records import counted, facts_of, json_line, opened
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import EXIT_STATUS, UserError
from fairseq_mm.generation.defaults import (
    PROMPT_STORY_PRESETS,
    VISUAL_STORY_CONSTRAINTS,
    VISUAL_STORY_PRESETS,
)


class Input(NamedTuple):
    """An input of a command line.

    Attributes:
        name: of what is written.
        index: on which the draws of ``--sampling`` depend.
        value: what the task's processor takes, or what the verb reads it from.
        error: why it cannot be read.
        where: for messages; by default the name.
    """

    name: str
    index: int
    value: Any = None
    error: Optional[UserError] = None
    where: Optional[str] = None


class Flow:
    """The way from inputs to what is written, which all verbs share.

    A piece of the inputs is read by the task's processor, generated from by each model, and
    written; then comes the next. A verb brings its inputs and overrides what is its own: how they
    are read, the lines, the page.

    Args:
        args: of the command line.
        models: generators, one or several that are compared.
        configs: of generation, one for each.
        inputs: in the order of what is written.
        **reading: options of the processor's ``examples``.
    """

    command = "generate"
    # inputs that are read before the first of them are generated from
    size = 100
    # inputs in sequence that differ in their index alone
    copies = 1

    def __init__(
        self,
        args: argparse.Namespace,
        models: Sequence[Any],
        configs: Sequence[Any],
        inputs: Sequence[Input],
        **reading: Any,
    ) -> None:
        self.args = args
        self.models = models
        self.configs = configs
        self.inputs = inputs
        self.reading = reading
        self.input_names, self.text_names = models[0].task.input_names, models[0].task.text_names
        self.form = form_of(args)
        self.facts: list[dict[str, Any]] = [{} for _ in models]
        if self.form == "jsonl":
            self.facts = [self.facts_of(model, config) for model, config in zip(models, configs)]
        self._said: set[str] = set()

    def facts_of(self, model: Any, config: Any) -> dict[str, Any]:
        """What made the texts, the same in each record."""
        return facts_of(model, config)

    def read(self, inputs: Sequence[Input]) -> Iterator[Any]:
        """For each input the examples of each model, or why it cannot be read."""
        values = [item.value for item in inputs]
        for example in self.models[0].processor.examples(values, **self.reading):
            yield example if isinstance(example, UserError) else [example]

    def lines(self, item: Input, examples: Sequence[Any], found: Sequence[Any]) -> Iterable[str]:
        """What is written of an input.

        Args:
            item: the input.
            examples: of each model.
            found: hypotheses of each model, the best first.
        """
        others, shown = self.others(item, examples[0], found[0])
        if self.form == "jsonl":
            return [json_line(item.name, found[0], {**others, **self.facts[0]})]
        return ["\t".join([item.name, best.text, *shown]) for best in found[0]]

    def others(self, item: Input, example: Any, found: Any) -> tuple[dict[str, Any], list[str]]:
        """Fields of records, and columns of text, that the verb adds."""
        return {}, []

    def show(self, item: Input, examples: Sequence[Any], found: Sequence[Any]) -> None:
        """Keeps what the page shows of an input."""

    def count(self, found: Any) -> int:
        """The number of texts that are written of what a model gave for an input."""
        return len(found)

    def remarks(self) -> Iterable[str]:
        """What is said at the end of inputs that were not read as they are."""
        return ()

    def write_page(self, number: str) -> str:
        """Writes ``--html``.

        Args:
            number: number of texts, with their name.

        Returns:
            What the closing message says of the page.
        """
        return number

    def run(self) -> int:
        """
        Returns:
            Exit status: 2 if an input could not be read.

        Raises:
            UserError: if the only input, or none, could be read.
        """
        total, failed, generated = len(self.inputs), 0, 0
        with ExitStack() as stack, progress_bar(total, self.input_names[1]) as bar:
            files = [stack.enter_context(opened(path)) for path in self.output_paths()]
            for start in range(0, total, self.size):
                readable = []
                for item, examples in self._read(self.inputs[start : start + self.size]):
                    if not isinstance(examples, UserError):
                        readable.append((item, examples))
                        continue
                    where = item.name if item.where is None else item.where
                    message = f"{where}: {examples}" if where else str(examples)
                    if total == self.copies:
                        raise UserError(message)
                    failed += 1
                    bar.clear()
                    self.warn(message)
                    bar.update()
                for (item, examples), *found in zip(readable, *self._generate(readable)):
                    lines = list(self.lines(item, examples, found))
                    for file, part in zip(files, [lines] if len(files) == 1 else zip(lines)):
                        print(*part, sep="\n", file=file, flush=True)
                    self.show(item, examples, found)
                    generated += sum(map(self.count, found))
                    bar.update()
            if failed == total:
                raise UserError(
                    f"none of the {failed // self.copies} {self.input_names[1]} could be read."
                )
        number = counted(generated, *self.text_names)
        if getattr(self.args, "html", None):
            page = f"wrote {self.args.html}: {self.write_page(number)}"
        for remark in self.remarks():
            print(remark, file=sys.stderr)
        if self.args.output:
            print(f"wrote {', '.join(map(str, self.output_paths()))}: {number}", file=sys.stderr)
        if getattr(self.args, "html", None):
            print(page, file=sys.stderr)
        if failed:
            print(
                f"{failed // self.copies} of {total // self.copies} {self.input_names[1]} could "
                "not be read",
                file=sys.stderr,
            )
        return EXIT_STATUS if failed else 0

    page_alone = False

    def output_paths(self) -> Sequence[Optional[str]]:
        """Return the files to write; of several, each gets one line of an input."""
        # with --html and no other output option, only the page is written
        is_silent = getattr(self.args, "html", None) and self.page_alone
        return [os.devnull if is_silent else self.args.output]

    def _read(self, piece: Sequence[Input]) -> Iterator[tuple[Input, Any]]:
        found = iter(self.read([item for item in piece if item.error is None]))
        for item in piece:
            yield item, item.error or next(found)

    def _generate(self, readable: Sequence[tuple[Input, Any]]) -> list[Iterator[Any]]:
        """The hypotheses of each model, input by input."""
        indices = [item.index for item, _ in readable]
        return [
            model.stream(
                [examples[place] for _, examples in readable],
                config,
                indices=indices,
                batch_size=self.args.batch_size,
            )
            for place, (model, config) in enumerate(zip(self.models, self.configs))
        ]

    def warn(self, message: str) -> None:
        """Says something on stderr, once."""
        if message not in self._said:
            self._said.add(message)
            print(f"fairseq-mm {self.command}: {message}", file=sys.stderr)


def form_of(args: argparse.Namespace) -> str:
    """What is written: ``raw``, ``jsonl`` or ``text``."""
    if getattr(args, "raw", False):
        return "raw"
    is_jsonl = getattr(args, "jsonl", True) or (args.output or "").lower().endswith(".jsonl")
    return "jsonl" if is_jsonl else "text"


def inputs_of_jsonl(path: str, processor: Any) -> list[tuple[Input, Mapping[str, Any]]]:
    """The inputs of a JSONL file, indexed by their position, each with its object.

    Args:
        path: of the file; ``-`` is standard input.
        processor: of the task, which says what an object has. A line that it refuses is an input
            with an error.

    Raises:
        UserError: if the file cannot be read or has no line, a line is no JSON object, or two have
            one ``id``.
    """
    from fairseq_mm.data.input_files import check_id, parse_object, read_lines

    folder = "" if path == "-" else os.path.dirname(path)
    found: list[tuple[Input, Mapping[str, Any]]] = []
    seen: dict[str, str] = {}
    for number, line in read_lines(Path("/dev/stdin" if path == "-" else path)):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        entry = parse_object(line, where)
        try:
            json.dumps(entry, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UserError(f"{where}: text holds half a character (a lone surrogate).") from None
        key = entry.pop("id", None)
        if isinstance(key, bool) or not isinstance(key, (str, int, type(None))):
            raise UserError(
                f"{where}: `id` must be text or a number, but is {json.dumps(key)[:80]} instead."
            )
        name = str(len(found)) if key is None else str(key)
        # keys of an image sequence are separated by tabs
        check_id(name.replace("\t", " "), where, what="an input")
        if key is not None and seen.setdefault(name, where) != where:
            raise UserError(f"{where}: the id {name!r} was given before, at {seen[name]}.")
        item = Input(name, len(found), where=where)
        try:
            item = item._replace(value=processor.from_record(entry, folder))
        except UserError as error:
            item = item._replace(error=error)
        found.append((item, {**entry, "id": key}))
    if not found:
        raise UserError(f"{path}: must have a JSON object a line, but is empty.")
    return found


def without_name(error: UserError, name: str) -> UserError:
    """An error without the name of its input, which is printed before it."""
    return UserError(str(error).removeprefix(f"{name}: "))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", metavar="FILE", help="JSON lines with the inputs; - is standard input."
    )
    arguments.add(parser, "checkpoint", "weights", "embedding", "data")
    presets = dict.fromkeys([*PROMPT_STORY_PRESETS, *VISUAL_STORY_PRESETS])
    arguments.add_generation(parser, {}, presets=presets, constraints=VISUAL_STORY_CONSTRAINTS)
    arguments.add(
        parser.add_argument_group("output"),
        "output",
        output={"help": "Write to this file (default: standard output)."},
    )
    arguments.add(parser.add_argument_group("run"), "device", "batch_size")


def run(args: argparse.Namespace) -> int:
    arguments.check(args)
    options = arguments.generation_options(args)
    register_quietly()

    import fairseq_mm
    from fairseq_mm.inference.generator import Generator

    names = ("weights", "embedding", "data", "device")
    paths = {name: getattr(args, name) for name in names}
    model: Any = fairseq_mm.from_pretrained(args.checkpoint, **paths)
    if not isinstance(model, Generator):
        raise UserError(f"{args.checkpoint}: does not generate texts by itself.")
    config = model.config(**options)
    inputs = [item for item, _ in inputs_of_jsonl(args.inputs, model.processor)]
    return Flow(args, [model], [config], inputs).run()
