"""Generate texts with a model of any task.

  fairseq-mm generate inputs.jsonl --checkpoint m_rnn --output captions.jsonl
  echo '{"prompt": "A door."}' | fairseq-mm generate - --checkpoint fusion

A JSON line has the field of the task: {"image": "dog.jpg"}, {"images": [five
paths, null for a missing one]}, {"prompt": "..."} or {"video": "a.mp4",
"transcript": text or file}. "id" is optional. Paths are relative to FILE.

Writes one JSON object per line; caption, tell and summarize also write text.
Unreadable inputs are reported on stderr and skipped, with exit status 2.
"""

import argparse
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rule, written
from fairseq_mm.cli.records import PEOPLE, Item, Result, counted, open_output, progress_bar
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import EXIT_STATUS, UserError
from fairseq_mm.generation.defaults import (
    PROMPT_STORY_PRESETS,
    VISUAL_STORY_CONSTRAINTS,
    VISUAL_STORY_PRESETS,
)

# number of inputs that a remark names
MAX_NAMED = 3
# number of frames of a video on the page
PAGE_IMAGES = 6
# number of image sequences from which --best-by ranking samples others, and of others for a story
# (Fan et al. 2018, section 5.5)
_POOL, _DISTRACTORS = 256, 9
# arguments of from_checkpoints that a command may have
_MODEL_OPTIONS = (
    *("weights", "embedding", "data", "device", "prompt_model", "vectors", "language_model"),
)
_RULES = (
    Rule("split", excludes=("weights",), because="its features come from a store"),
    Rule("features", excludes=("weights",), because="no file is read"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_inputs(parser, "File, folder")
    arguments.add(parser, "checkpoint", "weights", "embedding", "data", "split", "features")
    arguments.add(parser, "output", "device", "batch_size")
    presets = dict.fromkeys([*PROMPT_STORY_PRESETS, *VISUAL_STORY_PRESETS])
    arguments.add_generation(parser, None, presets=presets, constraints=VISUAL_STORY_CONSTRAINTS)


def run(args: argparse.Namespace) -> int:
    args.jsonl = True
    return run_task(args, None)


def run_task(
    args: argparse.Namespace,
    command: Optional[str],
    *,
    rules: Iterable[Rule] = (),
    own: Mapping[str, Sequence[str]] = {},
    change: Callable[[list[Item]], list[Item]] = list,
    extra: Optional[Callable[[Result], dict[str, Any]]] = None,
) -> int:
    """Run a command that generates texts; return its exit status.

    Args:
        args: Parsed command line.
        command: Command that the models must be meant for; None for any.
        rules: Rules for combining the options of the command.
        own: Options that only models of one kind have, by kind.
        change: Function that changes the list of inputs.
        extra: Function that returns further fields of a result's record.
    """
    given = arguments.check(args, (*_RULES, *rules))
    args.jsonl = args.jsonl or (args.output or "").lower().endswith(".jsonl")
    options = arguments.generation_options(args)
    register_quietly()
    systems = _load_systems(args, command, own, given)
    models = list(systems.values())
    store = _open_store(args, models)
    configs = [_build_config(args, model, options) for model in models]
    items = change(_list_inputs(args, models[0].processor, store))
    run = _Run(args, systems, configs, store, items)
    page = None
    if args.html:
        from fairseq_mm.cli.generated_views import Page

        page = Page(args, systems)
    # if only --html is given, the page is the output, and nothing is printed
    is_written = page is None or args.output or args.jsonl
    with run.progress, contextlib.ExitStack() as stack:
        file = stack.enter_context(open_output(args.output)) if is_written else None
        for result in run.results():
            lines = run.format(result, extra(result) if extra else {})
            if file is not None:
                # flushed, so that a reader of a pipe gets each text when it is generated
                print(*lines, sep="\n", file=file, flush=True)
            if page is not None:
                page.add(result)
    return run.finish("" if page is None else page.write(configs))


def _load_systems(
    args: argparse.Namespace,
    command: Optional[str],
    own: Mapping[str, Sequence[str]],
    given: set[str],
) -> dict[str, Any]:
    """Load the models; return them by system name, which is by default the model's architecture."""
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.inference.pretrained import from_checkpoints

    systems: dict[str, Any] = {}
    for text in args.compare or [args.checkpoint]:
        name, path = split_name(text) if args.compare else ("", text)
        checkpoints = Checkpoint.open_all(path, data=args.data, command=command)
        first = checkpoints[0]
        if first.is_embedding:
            first.check_command(command or "generate")
        kind = "structures" if first.reads_structure else first.kind
        others = {option for other in own if other != kind for option in own[other]}
        if wrong := others & given:
            raise UserError(f"{written(min(wrong))}: not for {first.path}, a model of {kind}.")
        name = name or first.arch
        if name in systems:
            raise UserError(f"--compare: two systems are named {name}; give names: NAME=CKPT.")
        paths = {option: x for option, x in vars(args).items() if option in _MODEL_OPTIONS}
        if first.reads_structure and args.split is not None:
            paths["data"] = args.data or _split_folder(args)
        systems[name] = from_checkpoints(checkpoints, **paths)
    return systems


def split_name(text: str) -> tuple[str, str]:
    """Split ``NAME=PATH`` into name and path; the name is empty if ``text`` is only a path."""
    # a path may have "=" in it
    name, sign, path = text.partition("=")
    if not (sign and name) or os.sep in name or os.path.exists(text):
        return "", text
    return name, path


def _build_config(args: argparse.Namespace, model: Any, options: Mapping[str, Any]) -> Any:
    """Return the generation config; with ``--best-of N``, it samples N texts for each input."""
    names = getattr(model, "search_options", ())
    own = {name: x for name, x in vars(args).items() if name in names and x is not None}
    if names and not args.jsonl:
        own.setdefault("top", 1)  # a line has one caption
    config = model.config(**options, **own)
    # each generated prompt is another input
    needs_sampling = args.best_of or ((args.n or 1) > 1 and not args.prompt_model)
    if needs_sampling and not config.sampling:
        option = "--best-of" if args.best_of else "--n"
        raise UserError(
            f"{option}: a search generates the same text each time: sample texts (--sampling, or a "
            "--preset that samples), or take several of one search (--nbest)."
        )
    if args.best_of is None:
        return config
    preset = options.get("preset")
    if preset is None and "sampling" not in options:
        preset = model.task.default_preset
    # fairseq returns sampled texts in the order of their scores; a ranking needs all of them
    nbest = args.best_of if args.best_by == "ranking" else options.get("nbest", 1)
    return model.config(**{**options, "preset": preset, "beam": args.best_of, "nbest": nbest})


def _open_store(args: argparse.Namespace, models: Sequence[Any]) -> Any:
    """Open the feature store of ``--split`` or ``--features``; None if no features are stored.

    If features are extracted from files, load the extractor, so that an extractor that cannot be
    rebuilt is reported before any file is read.
    """
    from fairseq_mm.data.feature_store import open_features, open_folder_features

    store: Any = None
    reads_features = models[0].processor.extractor_identity is not None
    if args.features and not reads_features:
        raise UserError(f"--features: {models[0].files[0]} reads no features.")
    if args.split is not None and reads_features:
        store = open_folder_features(_split_folder(args), args.features)
    elif args.features:
        store = open_features(args.features.split(os.pathsep))
    for model in models if reads_features else ():
        reader = model.processor.reader
        if store is not None:
            reader.check_features(store.attributes, store.dim, store.path)
        elif args.inputs:
            _ = reader.extractor  # built now
    return store


def _split_folder(args: argparse.Namespace) -> str:
    if len(args.inputs) != 1:
        raise UserError(f"--split {args.split}: give its data folder as the only input.")
    return args.inputs[0]


def _list_inputs(args: argparse.Namespace, processor: Any, store: Any) -> list[Item]:
    """List the inputs in the order of the output."""
    where = "" if processor.has_headings else None
    if args.split is not None:
        items = _list_split(args, processor)
    elif args.inputs == ["-"] or any(x.endswith(".jsonl") for x in args.inputs):
        items = [item for path in args.inputs for item in read_jsonl(path, processor)]
    elif store is not None:
        ids = args.inputs or store.ids
        # a text with a heading is of an image sequence
        listed = [ids] if processor.has_headings else [[key] for key in ids]
        items = [Item(0, {"id": "\t".join(x), "images": x}, where=where) for x in listed]
    else:
        files = processor.list_files(args.inputs) if args.inputs else []
        items = [Item(0, record, error=error, where=where) for record, error in files]
    if args.split is None:
        items = [item._replace(index=index) for index, item in enumerate(items)]
    for item in items if store is not None else ():
        # reports an id that is not in the store, before texts are generated
        for key in () if item.error else processor.get_stored_keys(item.record):
            if key is not None:
                store.count_rows(key)
    return items


def _list_split(args: argparse.Namespace, processor: Any) -> list[Item]:
    """List the items of the lines ``--line``, or each item of a split once, in order."""
    from fairseq_mm.data.records import open_split
    from fairseq_mm.data.story_text import detokenize_sentences

    folder = _split_folder(args)
    split = open_split(folder, args.split)
    fields = {name: split.field(name) for name in processor.record_fields}
    firsts = [number for number, is_first in enumerate(split.first) if is_first]
    keys: Any = split.keys or [None] * len(split)
    people: dict[str, list[list[str]]] = {}
    if args.compare or args.html:
        for key, words in zip(keys, split.iterate_tokens()):
            people.setdefault(key, []).append(detokenize_sentences(" ".join(words)))
    chosen = list(dict.fromkeys(args.line or firsts))
    if args.line and not 0 <= min(chosen) <= max(chosen) < len(keys):
        raise UserError(f"--line: {args.split} has lines 0 to {len(keys) - 1}.")
    items = []
    for number in chosen[: args.limit]:
        record = {"id": keys[number], **{name: values[number] for name, values in fields.items()}}
        if keys[number] is not None:
            images = keys[number].split("\t")
            record["images"] = [None if image in split.missing else image for image in images]
            record["references"] = people.get(keys[number], [])
        where = f"{folder}, line {number} of {args.split}"
        items.append(Item(number, record, folder=None, where=where))
    return items


def read_jsonl(path: str, processor: Any) -> list[Item]:
    """Read the inputs of a JSONL file; ``-`` is standard input.

    Raise UserError if a line is no JSON object, if two lines have the same id, or if no line has a
    field that the model reads.
    """
    from fairseq_mm.data.input_files import check_id, parse_object, read_lines

    folder = "" if path == "-" else os.path.dirname(path)
    items: dict[str, Item] = {}
    for number, line in read_lines(Path("/dev/stdin" if path == "-" else path)):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        record = parse_object(line, where)
        key = record.get("id")
        name = processor.get_id(record, len(items)) if key is None else str(key)
        # the keys of an image sequence are separated by tabs
        check_id(name.replace("\t", " "), where, what="an input")
        if name in items:
            raise UserError(f"{where}: the id {name!r} was given before, at {items[name].where}.")
        items[name] = Item(0, {**record, "id": name}, folder, where=where)
    fields = processor.input_fields
    if fields and not any(x in item.record for item in items.values() for x in fields):
        raise UserError(f"{path}: must have JSON objects with {' or '.join(map(repr, fields))}.")
    return list(items.values())


class _Run:
    """Run that generates the texts of all inputs, and reports inputs that cannot be read.

    Args:
        systems: Dict from the name of a system to its model.
        configs: Generation config of each model.
        store: Feature store; None if inputs are read from files.
        items: Inputs of the user, in the order of the output.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        systems: Mapping[str, Any],
        configs: Sequence[Any],
        store: Any,
        items: Sequence[Item],
    ) -> None:
        self.args = args
        self.names = list(systems)
        self.models = list(systems.values())
        self.configs = configs
        self.store = store
        self.processor = self.models[0].processor
        self.task = self.models[0].task
        types = self.processor.reading_options
        self.reading = {k: x for k, x in vars(args).items() if k in types and x is not None}
        if args.html and "num_images" in types:
            self.reading["num_images"] = PAGE_IMAGES
        self.copies = args.n or 1
        self.items = self._repeat(items)
        self.facts: list[dict[str, Any]] = [{} for _ in self.models]
        if args.jsonl:  # hashing a checkpoint takes seconds
            self.facts = [
                model.describe_run(config, self.reading)
                for model, config in zip(self.models, configs)
            ]
            if args.split is not None:  # where `score` finds the references
                source = {"data": _split_folder(args), "split": args.split}
                self.facts = [{**source, **facts} for facts in self.facts]
        self.progress = progress_bar(len(self.items), self.task.input_names[1])
        self.num_failed = self.num_texts = 0
        self.messages: set[str] = set()
        self.remarks: dict[str, list[str]] = {}

    def _repeat(self, items: Sequence[Item]) -> list[Item]:
        """Repeat each input ``--n`` times. If there are no inputs, return generated ones."""
        if items and self.models[0].loaded.are_language_models:
            raise UserError(
                f"{self.models[0].files[0]}: is a language model, which takes no input: give --n."
            )
        self.has_inputs = bool(items)
        if not items:
            size, number, self.copies = self.args.batch_size, self.copies, 1
            values = self.models[0].missing_inputs(number, self.configs[0], batch_size=size)
            return [Item(i, {"id": None}, where="", value=x) for i, x in enumerate(values)]
        if self.copies == 1:
            return list(items)
        copied = [item for item in items for _ in range(self.copies)]
        return [item._replace(index=index) for index, item in enumerate(copied)]

    def results(self) -> Iterator[Result]:
        """Yield the texts of each input that can be read."""
        pools = self._read_pools()
        size = self.processor.num_read[self.store is not None]
        for start in range(0, len(self.items), size):
            readable = []
            for item, examples in self._read(self.items[start : start + size]):
                if isinstance(examples, UserError):
                    self._report(item, examples)
                else:
                    readable.append(Result(item, examples, [], []))
            streams = [
                model.stream(
                    [result.examples[i] for result in readable],
                    config,
                    indices=[result.item.index for result in readable],
                    batch_size=self.args.batch_size,
                )
                for i, (model, config) in enumerate(zip(self.models, self.configs))
            ]
            for result, *generated in zip(readable, *streams):
                for place, hypotheses in enumerate(generated):
                    self._rank(result, place, hypotheses, pools)
                for remark, details in result.examples[0].remarks.items():
                    name = f"{result.item.name} ({details})" if details else result.item.name
                    self.remarks.setdefault(remark, []).append(name)
                yield result
                self.num_texts += sum(map(len, result.hypotheses))
                self.progress.update()
        if self.num_failed == len(self.items):
            number = self.num_failed // self.copies
            raise UserError(f"none of the {number} {self.task.input_names[1]} could be read.")

    def _read(self, items: Sequence[Item]) -> list[tuple[Item, Union[list[Any], UserError]]]:
        """Return each input with its example for each model, or with its error if unreadable."""
        values: dict[int, Any] = {}
        errors: dict[int, UserError] = {}
        for item in items:
            try:
                if item.error is not None:
                    raise item.error
                values[item.index] = self._get_value(item)
            except UserError as error:
                errors[item.index] = error
        # an input is read once for all systems with one extractor
        names = [str(x.processor.extractor_identity or id(x)) for x in self.models]
        columns: dict[str, dict[int, Any]] = {}
        for name, model in zip(names, self.models):
            if name not in columns:
                examples = model.processor.examples([*values.values()], **self.reading)
                columns[name] = dict(zip(values, examples))
        read: list[tuple[Item, Union[list[Any], UserError]]] = []
        for item in items:
            row = [errors.get(item.index, columns[name].get(item.index)) for name in names]
            read.append((item, next((x for x in row if isinstance(x, UserError)), row)))
        return read

    def _get_value(self, item: Item) -> Any:
        if self.store is not None:
            keys = self.processor.get_stored_keys(item.record)
            features = [None if key is None else self.store.read(key) for key in keys]
            return self.processor.from_features(item.record, item.folder, features)
        if not self.has_inputs:
            return item.value
        return self.processor.from_record(item.record, item.folder)

    def _report(self, item: Item, error: UserError) -> None:
        where = item.name if item.where is None else item.where
        is_named = not where or str(error).startswith(f"{where}: ")
        message = str(error) if is_named else f"{where}: {error}"
        # without other inputs, the error ends the command
        if len(self.items) == self.copies:
            raise UserError(message)
        self.num_failed += 1
        # the message would be appended to the bar's line
        self.progress.clear()
        # the copies of an input all give the same message
        if message not in self.messages:
            self.messages.add(message)
            print(f"{self.args.prog}: {message}", file=sys.stderr)
        self.progress.update()

    def _read_pools(self) -> list[dict[Any, Any]]:
        """Return the distinct inputs that ``--best-by ranking`` samples from, for each system."""
        if self.args.best_by != "ranking":
            return []
        distinct = {repr(item.record) + repr(item.value): item for item in self.items}
        most = _POOL if self.models[0].loaded.feature_dim else None
        rows = [x for _, x in self._read([*distinct.values()][:most])]
        read = [x for x in rows if not isinstance(x, UserError)]
        pools = [{_get_parts(x[i]): x[i] for x in read} for i in range(len(self.models))]
        if read:
            # if there is no other input, this fails before any text is generated
            self._sample_others(pools[0], read[0][0], 0, 0)
        return pools

    def _sample_others(self, pool: Mapping[Any, Any], example: Any, seed: int, index: int) -> Any:
        """Sample inputs that differ from ``example``. Image sequences with a common image are from
        one album, so sampled sequences share no image with it."""
        import numpy as np

        own = set(_get_parts(example))
        others = [other for parts, other in pool.items() if own.isdisjoint(parts)]
        if not others:
            raise UserError(
                "ranking compares a story under its own prompt or images and under others, but "
                "there are no others: give more."
            )
        order = np.random.default_rng([seed % 2**64, index]).permutation(len(others))
        return [others[i] for i in order[:_DISTRACTORS]]

    def _rank(
        self, result: Result, place: int, hypotheses: Sequence[Any], pools: Sequence[Any]
    ) -> None:
        """Add the hypotheses of a system to a result, with the fields of their records.

        With ``--best-by ranking``, they are ordered by their log-likelihood under their own input
        minus the highest log-likelihood under another input, in nats per token. Fan et al. 2018
        rank stories for their Figure 7, but do not name the score.
        """
        args, index = self.args, result.item.index
        fields: list[dict[str, Any]] = [{} for _ in hypotheses]
        if pools:
            model, example = self.models[place], result.examples[place]
            others = self._sample_others(pools[place], example, self.configs[place].seed, index)
            likelihoods = model.compare(hypotheses, [example, *others], batch_size=args.batch_size)
            margins = [
                (own - max(other)) / len(story.tokens)
                for (own, *other), story in zip(likelihoods, hypotheses)
            ]
            # stable: equal margins keep their order
            order = sorted(range(len(margins)), key=lambda i: -margins[i])[: args.nbest or 1]
            hypotheses, by = [hypotheses[i] for i in order], self.processor.ranked_by
            fields = [
                {
                    f"{by}_margin": round(margins[i], 4),
                    # last in a tie
                    f"{by}_rank": sum(x >= likelihoods[i][0] for x in likelihoods[i]),
                }
                for i in order
            ]
        if args.best_of is not None:
            about = {"candidates": args.best_of, "best_by": args.best_by or "score"}
            fields = [{"rank": i, **about, **x} for i, x in enumerate(fields, start=1)]
        result.hypotheses.append(hypotheses)
        result.fields.append(fields)

    def format(self, result: Result, more: Mapping[str, Any]) -> list[str]:
        """Format a result as lines of output; ``more`` has further fields of JSON records."""
        item, is_compared = result.item, bool(self.args.compare)
        if self.args.jsonl:
            return [json.dumps(x, ensure_ascii=False) for x in self._to_records(result, more)]
        if is_compared:
            from fairseq_mm.cli.generated_views import compare_stories

            texts = [compare_stories(result, self.names)]
        else:
            texts = [self.processor.to_text(best) for best in result.hypotheses[0]]
        if not self.processor.has_headings:
            columns = [x["caption"] for x in more.values()]
            lines = ["\t".join([str(item.record["id"]), text, *columns]) for text in texts]
            if columns and not self.num_texts:
                names = (self.task.input_names[0], *[self.task.text_names[0]] * 2)
                lines.insert(0, "{}\t{}\tnearest training {}".format(*names))
            return lines
        if len(self.items) == 1 and self.has_inputs:
            return texts
        shown = item.record["id"] or getattr(result.examples[0].origin, "text", "")
        title = " ".join(str(shown).split())
        return [f"=== {item.index}{': ' if title else ''}{title} ===\n\n{x}\n" for x in texts]

    def _to_records(self, result: Result, more: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        item, is_compared = result.item, bool(self.args.compare)
        key = item.index if item.record["id"] is None else item.record["id"]
        for place, (name, model) in enumerate(zip(self.names, self.models)):
            example, hypotheses = result.examples[place], result.hypotheses[place]
            entries = [
                {**model.processor.to_entry(hypothesis), **fields}
                for hypothesis, fields in zip(hypotheses, result.fields[place])
            ]
            own = model.processor.to_record(item.record, example, hypotheses[0])
            if is_compared and place == 0:
                for sentences in item.record.get("references", ()):
                    about = {"item": item.index, "images": own["images"], "system": PEOPLE}
                    yield {"id": key, **about, "sentences": sentences}
            # the best hypothesis is always a field of its own, where `score` looks for it
            several = {"hypotheses": entries} if len(entries) > 1 else {}
            system = {"system": name} if is_compared else {}
            yield {"id": key, **entries[0], **several, **system, **own, **more, **self.facts[place]}

    def finish(self, page: str) -> int:
        """Report written files on stderr (``page`` describes the page); return the exit status."""
        messages = []
        for remark, names in self.remarks.items():
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            messages.append(f"{remark}: {', '.join(names[:MAX_NAMED])}{more}")
        if self.args.output:
            number = counted(self.num_texts, *self.task.text_names)
            messages.append(f"wrote {self.args.output}: {number}")
        if page:
            messages.append(f"wrote {self.args.html}: {page}")
        if self.num_failed:
            failed, total = self.num_failed // self.copies, len(self.items) // self.copies
            messages.append(f"{failed} of {total} {self.task.input_names[1]} could not be read")
        for message in messages:
            print(message, file=sys.stderr)
        return EXIT_STATUS if self.num_failed else 0


def _get_parts(example: Any) -> tuple[Any, ...]:
    """Return the features of a sequence's images as bytes, or a prompt's tokens, to compare."""
    if example.features is None:
        return (tuple(example.source.tolist()),)
    missing = itertools.repeat(False) if example.missing is None else example.missing
    return tuple(row.tobytes() for row, gone in zip(example.features, missing) if not gone)
