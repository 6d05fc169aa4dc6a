"""Generate texts with a model of any task, from one JSON object per line.

  fairseq-mm generate inputs.jsonl --checkpoint m_rnn --output captions.jsonl
  echo '{"prompt": "[WP] The last dragon opens a bakery."}' | \\
      fairseq-mm generate - --checkpoint checkpoints/fusion --preset paper

The task of the checkpoint decides which fields a line must have: an image
({"image": "dog.jpg"}), an image sequence ({"images": [five paths, null for a
missing one]}), a prompt ({"prompt": "..."}), or a video ({"video": "a.mp4",
"transcript": "..."}, where the transcript is text or a file). "id" is optional
(default: the number of the input, counted from 0). Paths are relative to FILE.

The command writes one JSON object per line: id, hypothesis, score, and the
checkpoint and options that produced them. Inputs that cannot be read or do not
fit the task are reported on stderr and skipped, and the exit status is then 2.
If a line is no JSON object, or two lines have the same id, the command stops
before it generates anything.

Defaults for captions: a beam of 3 and at most 30 words; for summaries: a beam
of 5, at most 62 tokens, and no trigram twice. Only stories have presets; see
fairseq-mm tell --help.

caption, tell and summarize do the same for inputs from folders, splits and
feature stores.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.records import (
    counted,
    json_line,
    open_output,
    progress_bar,
    provenance_fields,
)
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import EXIT_STATUS, UserError
from fairseq_mm.generation.defaults import (
    PROMPT_STORY_PRESETS,
    VISUAL_STORY_CONSTRAINTS,
    VISUAL_STORY_PRESETS,
)


class Input(NamedTuple):
    """Input of a command that generates texts.

    Attributes:
        name: Name of the input in the output.
        index: Index of the input; the random numbers of ``--sampling`` depend on it.
        value: Content of the input, such as a path or a JSON object.
        error: Reason why the input cannot be read, if it is already known; else None.
        where: Name of the input in messages (default: ``name``).
    """

    name: str
    index: int
    value: Any = None
    error: Optional[UserError] = None
    where: Optional[str] = None


# reads inputs: for each input one example per model, or the reason why it cannot be read
Read = Callable[[Sequence[Input]], Iterable[Any]]


class TextRun:
    """Run of a command that generates texts: its models, inputs and outputs.

    A command loops over :meth:`generate` within :meth:`open_outputs`, passes the lines of each
    input to :meth:`write`, and returns the exit status of :meth:`finish`.

    Args:
        models: One generator, or several generators whose texts are compared.
        configs: Generation config of each model.
        inputs: Inputs in the order of the output.
        copies: Number of times that each input of the user is in ``inputs``, with different indices
            (``--n``). Messages count the repetitions as one input.

    Attributes:
        form: Form of the output: ``text`` (detokenized) or ``jsonl``.
        num_failed: Number of inputs so far that could not be read.
        num_texts: Number of texts so far.
    """

    def __init__(
        self,
        command: str,
        args: argparse.Namespace,
        models: Sequence[Any],
        configs: Sequence[Any],
        inputs: Sequence[Input],
        *,
        copies: int = 1,
    ) -> None:
        self.command = command
        self.args = args
        self.models = models
        self.configs = configs
        self.inputs = inputs
        self.copies = copies
        task = models[0].task
        self.input_names, self.text_names = task.input_names, task.text_names
        # `generate` has no --jsonl, because it writes nothing else
        is_jsonl = getattr(args, "jsonl", True) or (args.output or "").lower().endswith(".jsonl")
        self.form = "jsonl" if is_jsonl else "text"
        self.num_failed = self.num_texts = 0
        self._file: Any = None
        self._bar: Any = None
        self._warnings: set[str] = set()

    def provenance(self) -> list[dict[str, Any]]:
        """Return for each model the fields that all JSON records of its texts share.

        These are digest of the checkpoint, options and extractor; no fields if the output is not
        JSON.
        """
        # hashing a checkpoint takes seconds
        if self.form != "jsonl":
            return [{} for _ in self.models]
        return [provenance_fields(*pair) for pair in zip(self.models, self.configs)]

    @contextlib.contextmanager
    def open_outputs(self, *, is_written: bool = True) -> Iterator[None]:
        """Open the output file; it appears when the context ends without an error.

        If ``is_written`` is False, :meth:`write` writes nothing.
        """
        with contextlib.ExitStack() as stack:
            self._bar = stack.enter_context(progress_bar(len(self.inputs), self.input_names[1]))
            if is_written:
                self._file = stack.enter_context(open_output(self.args.output))
            yield

    def generate(self, read: Read, *, size: int = 100) -> Iterator[tuple[Input, Any, list[Any]]]:
        """Generate the texts of all inputs, and report the inputs that cannot be read.

        Args:
            read: Function from a list of inputs to one result per input: a list of the input's
                example for each model, or a UserError if the input cannot be read.
            size: Number of inputs that are read at a time.

        Yields:
            item: An input that could be read.
            examples: Example of the input for each model.
            hypotheses: For each model, its hypotheses for the input, best first.
        """
        for start in range(0, len(self.inputs), size):
            piece = self.inputs[start : start + size]
            examples = iter(read([item for item in piece if item.error is None]))
            readable = []
            for item in piece:
                example = item.error or next(examples)
                if isinstance(example, UserError):
                    self._report(item, example)
                else:
                    readable.append((item, example))
            # runs the reader to its end, where it stops its threads
            next(examples, None)
            streams = [
                model.stream(
                    [examples[i] for _, examples in readable],
                    config,
                    indices=[item.index for item, _ in readable],
                    batch_size=self.args.batch_size,
                )
                for i, (model, config) in enumerate(zip(self.models, self.configs))
            ]
            for (item, example), *hypotheses in zip(readable, *streams):
                yield item, example, hypotheses
                self._bar.update()
        if self.num_failed == len(self.inputs):
            raise UserError(
                f"none of the {self.num_failed // self.copies} {self.input_names[1]} could be read."
            )

    def _report(self, item: Input, error: UserError) -> None:
        # an empty `where` is for an input that the user has not named
        where = item.name if item.where is None else item.where
        message = f"{where}: {error}" if where else str(error)
        # without other inputs, the error ends the command
        if len(self.inputs) == self.copies:
            raise UserError(message)
        self.num_failed += 1
        # the message would be appended to the bar's line
        self._bar.clear()
        # the copies of an input all give the same message
        if message not in self._warnings:
            self._warnings.add(message)
            print(f"fairseq-mm {self.command}: {message}", file=sys.stderr)
        self._bar.update()

    def write(self, lines: Sequence[str], num_texts: int) -> None:
        """Write the lines of one input, which have ``num_texts`` generated texts."""
        if self._file is not None:
            # flushed, so that a reader of a pipe gets each text when it is generated
            print(*lines, sep="\n", file=self._file, flush=True)
        self.num_texts += num_texts

    def finish(self, remarks: Iterable[str] = (), page: str = "") -> int:
        """Report on stderr what was written, and return the exit status.

        The exit status is 2 if an input could not be read.

        Args:
            remarks: Messages that are printed before the report.
            page: Description of the content of the page ``--html``; empty for no page.
        """
        messages = list(remarks)
        if self.args.output:
            number = counted(self.num_texts, *self.text_names)
            messages.append(f"wrote {self.args.output}: {number}")
        if page:
            messages.append(f"wrote {self.args.html}: {page}")
        if self.num_failed:
            failed, total = self.num_failed // self.copies, len(self.inputs) // self.copies
            messages.append(f"{failed} of {total} {self.input_names[1]} could not be read")
        for message in messages:
            print(message, file=sys.stderr)
        return EXIT_STATUS if self.num_failed else 0


def read_jsonl_inputs(path: str, processor: Any) -> list[tuple[Input, Mapping[str, Any]]]:
    """Read the inputs of a JSONL file; return pairs of an input and its JSON object.

    If the JSON object does not fit the task, the input has an ``error``.

    Args:
        path: Path of the file; ``-`` is standard input.
        processor: Processor of the task, which checks each object.
    """
    from fairseq_mm.data.input_files import check_id, parse_object, read_lines

    folder = "" if path == "-" else os.path.dirname(path)
    inputs: list[tuple[Input, Mapping[str, Any]]] = []
    seen: dict[str, str] = {}
    for number, line in read_lines(Path("/dev/stdin" if path == "-" else path)):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        entry = parse_object(line, where)
        key = entry.pop("id", None)
        # True is an int in Python
        if isinstance(key, bool) or not isinstance(key, (str, int, type(None))):
            raise UserError(
                f"{where}: `id` must be text or a number, but is {json.dumps(key)[:80]} instead."
            )
        name = str(len(inputs)) if key is None else str(key)
        # the keys of an image sequence are separated by tabs
        check_id(name.replace("\t", " "), where, what="an input")
        if key is not None and seen.setdefault(name, where) != where:
            raise UserError(f"{where}: the id {name!r} was given before, at {seen[name]}.")
        # not raised here: the other lines are still generated
        item = Input(name, len(inputs), where=where)
        try:
            item = item._replace(value=processor.from_record(entry, folder))
        except UserError as error:
            item = item._replace(error=error)
        inputs.append((item, {**entry, "id": key}))
    if not inputs:
        raise UserError(f"{path}: must have a JSON object a line, but is empty.")
    return inputs


def remove_name(error: UserError, name: str) -> UserError:
    """Return an error whose message no longer begins with the name of the input.

    :class:`TextRun` prints the name before the message, so it would appear twice.
    """
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
    inputs = [item for item, _ in read_jsonl_inputs(args.inputs, model.processor)]
    texts = TextRun("generate", args, [model], [config], inputs)
    (facts,) = texts.provenance()
    with texts.open_outputs():
        for item, _, (hypotheses,) in texts.generate(partial(read_examples, model)):
            texts.write([json_line(item.name, hypotheses, facts)], len(hypotheses))
    return texts.finish()


def read_examples(model: Any, inputs: Sequence[Input], **options: Any) -> Iterator[Any]:
    """Yield for each input a list with its example, or a UserError if it cannot be read.

    :meth:`TextRun.generate` expects a list with one example per model; here there is one model.

    Args:
        model: Generator, whose processor makes the examples.
        **options: Keyword arguments of the processor's method ``examples``.
    """
    for example in model.processor.examples([item.value for item in inputs], **options):
        yield example if isinstance(example, UserError) else [example]
