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
from fairseq_mm.cli.arguments import Rule, is_given, written
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
# number of image sequences from which --best-by ranking samples others
_POOL = 256
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
    given: Sequence[Item] = (),
    change: Callable[[list[Item]], list[Item]] = list,
    extra: Callable[[Result], dict[str, Any]] = lambda result: {},
) -> int:
    """Run a command that generates texts; return its exit status.

    Args:
        args: Parsed command line.
        command: Command that the models must be meant for; None for any.
        rules: Rules for combining the options of the command.
        own: Options that only models of one kind have, by kind.
        given: Inputs that are not among ``args.inputs``.
        change: Function that changes the listed inputs.
        extra: Function that returns further fields of a result's record.
    """
    arguments.check(args, (*_RULES, *rules))
    args.jsonl = args.jsonl or (args.output or "").lower().endswith(".jsonl")
    options = arguments.generation_options(args)
    register_quietly()
    systems = _load_systems(args, command, own)
    models = list(systems.values())
    store = _open_store(args, models)
    configs = [_build_config(args, model, options) for model in models]
    items = change([*given, *_list_inputs(args, models[0].processor, store)])
    run = _Run(args, systems, configs, store, items)
    page = None
    if getattr(args, "html", None):
        from fairseq_mm.cli.generated_views import Page

        page = Page(args, systems)
    # if only --html is given, the page is the output, and nothing is printed
    is_written = page is None or args.output or args.jsonl
    with run.progress, contextlib.ExitStack() as stack:
        file = stack.enter_context(open_output(args.output)) if is_written else None
        for result in run.results():
            lines = run.format(result, extra(result))
            if file is not None:
                # flushed, so that a reader of a pipe gets each text when it is generated
                print(*lines, sep="\n", file=file, flush=True)
            if page is not None:
                page.add(result)
    return run.finish("" if page is None else page.write(configs))


def _load_systems(
    args: argparse.Namespace, command: Optional[str], own: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return a dict from the name of each system, by default its architecture, to its model."""
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.inference.pretrained import from_checkpoints

    compared = getattr(args, "compare", None)
    systems: dict[str, Any] = {}
    for text in compared or [args.checkpoint]:
        name, path = split_name(text) if compared else ("", text)
        checkpoints = Checkpoint.open_all(path, data=args.data, command=command)
        first = checkpoints[0]
        kind = "structures" if first.reads_structure else first.kind
        others = (option for other in own if other != kind for option in own[other])
        for option in others:
            if is_given(args, option):
                raise UserError(f"{written(option)}: not for {first.path}, a model of {kind}.")
        name = name or first.arch
        if name in systems:
            raise UserError(f"--compare: two systems are named {name}; give names: NAME=CKPT.")
        paths = {option: getattr(args, option, None) for option in _MODEL_OPTIONS}
        if first.reads_structure and args.split is not None:
            paths["data"] = args.data or _split_folder(args)
        systems[name] = from_checkpoints(checkpoints, **paths)
        if not hasattr(systems[name], "stream"):
            raise UserError(f"{first.path}: does not generate texts by itself.")
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
    own = {name: getattr(args, name, None) for name in getattr(model, "search_options", ())}
    if own and not args.jsonl:
        own["top"] = own["top"] or 1  # a line has one caption
    config = model.config(**options, **{name: x for name, x in own.items() if x is not None})
    best_of, number = getattr(args, "best_of", None), getattr(args, "n", None) or 1
    # each generated prompt is another input
    if number > 1 and not (config.sampling or args.prompt_model):
        raise UserError(
            f"--n {number}: a search generates the same text each time: sample them (--sampling), "
            "or take several of one search (--nbest)."
        )
    if best_of is None:
        return config
    nbest = options.get("nbest", 1)
    if not config.sampling or nbest > best_of:
        raise UserError(
            f"--best-of {best_of}: needs --sampling, or a --preset that samples, and --nbest of at "
            f"most {best_of}."
        )
    preset = options.get("preset")
    if preset is None and "sampling" not in options:
        preset = model.task.default_preset
    # fairseq returns sampled texts in the order of their scores; a ranking needs all of them
    nbest = best_of if args.best_by == "ranking" else nbest
    return model.config(**{**options, "preset": preset, "beam": best_of, "nbest": nbest})


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
            reader.load_extractor()
    return store


def _split_folder(args: argparse.Namespace) -> str:
    if len(args.inputs) != 1:
        raise UserError(f"--split {args.split}: give its data folder as the only input.")
    return args.inputs[0]


def _list_inputs(args: argparse.Namespace, processor: Any, store: Any) -> list[Item]:
    """List the inputs in the order of the output."""
    are_records = args.inputs == ["-"] or any(x.endswith(".jsonl") for x in args.inputs)
    where = "" if processor.has_headings else None
    if args.split is not None:
        items = _list_split(args, processor)
    elif are_records:
        items = list(itertools.chain(*(read_jsonl(path, processor) for path in args.inputs)))
    elif store is not None:
        ids = args.inputs or store.ids
        # a text with a heading is of an image sequence
        listed = [ids] if processor.has_headings else [[key] for key in ids]
        items = [Item(0, {"id": "\t".join(x), "images": x}, where=where) for x in listed]
    else:
        listed = processor.list_files(args.inputs) if args.inputs else []
        items = [Item(0, record, error=error, where=where) for record, error in listed]
    if args.split is None:
        items = [item._replace(index=index) for index, item in enumerate(items)]
    for item in items if store is not None else ():
        try:
            # reports an id that is not in the store, before texts are generated
            for key in () if item.error else processor.get_stored_keys(item.record):
                if key is not None:
                    store.count_rows(key)
        except UserError as error:
            raise UserError(f"{item.where}: {error}" if item.where else str(error)) from None
    return items


def _list_split(args: argparse.Namespace, processor: Any) -> list[Item]:
    """List each item of a split once, in the order of first occurrence, or the lines ``--line``."""
    from fairseq_mm.data.records import open_split
    from fairseq_mm.data.story_text import detokenize_sentences

    folder = _split_folder(args)
    split = open_split(folder, args.split)
    fields = {name: split.field(name) for name in processor.record_fields}
    firsts = [number for number, is_first in enumerate(split.first) if is_first]
    keys: Any = split.keys or [None] * len(split)
    people: dict[str, list[list[str]]] = {}
    if getattr(args, "compare", None) or getattr(args, "html", None):
        for key, words in zip(keys, split.iterate_tokens()):
            people.setdefault(key, []).append(detokenize_sentences(" ".join(words)))
    chosen = getattr(args, "line", None) or ()
    for number in chosen:
        if not 0 <= number < len(keys):
            raise UserError(f"--line {number}: {args.split} has lines 0 to {len(keys) - 1}.")
    items = []
    for number in (list(dict.fromkeys(chosen)) or firsts)[: getattr(args, "limit", None)]:
        record = {"id": keys[number], **{name: values[number] for name, values in fields.items()}}
        if keys[number] is not None:
            images = keys[number].split("\t")
            record["images"] = [None if image in split.missing else image for image in images]
            record["references"] = people.get(keys[number], [])
        where = f"{folder}, line {number} of {args.split}"
        items.append(Item(number, record, folder=None, where=where))
    return items


def read_jsonl(path: str, processor: Any) -> Iterator[Item]:
    """Yield the inputs of a JSONL file; ``-`` is standard input.

    Raise UserError if a line is no JSON object, or if two lines have the same id.
    """
    from fairseq_mm.data.input_files import check_id, parse_object, read_lines

    folder = "" if path == "-" else os.path.dirname(path)
    seen: dict[str, str] = {}
    for number, line in read_lines(Path("/dev/stdin" if path == "-" else path)):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        record = parse_object(line, where)
        key = record.get("id")
        # True is an int in Python
        if isinstance(key, bool) or not isinstance(key, (str, int, type(None))):
            raise UserError(f"{where}: `id` must be text or a number, but is {json.dumps(key)}.")
        name = processor.get_id(record, len(seen)) if key is None else str(key)
        # the keys of an image sequence are separated by tabs
        check_id(name.replace("\t", " "), where, what="an input")
        if seen.setdefault(name, where) != where:
            raise UserError(f"{where}: the id {name!r} was given before, at {seen[name]}.")
        yield Item(0, {**record, "id": name}, folder, where=where)
    if not seen:
        raise UserError(f"{path}: must have a JSON object a line, but is empty.")


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
        reading = {name: getattr(args, name, None) for name in types}
        if getattr(args, "html", None) and "num_images" in types:
            reading["num_images"] = PAGE_IMAGES
        self.reading = {name: value for name, value in reading.items() if value is not None}
        self.copies = getattr(args, "n", None) or 1
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
        """Repeat each input ``--n`` times; without inputs, let a language model make them."""
        if items and self.models[0].loaded.are_language_models:
            raise UserError(
                f"{self.models[0].files[0]}: is a language model, which takes no input: give --n."
            )
        if not items:
            values = self.models[0].missing_inputs(
                self.copies, self.configs[0], batch_size=self.args.batch_size
            )
            self.copies = 1
            return [
                Item(index, {"id": None}, where="", value=value, is_given=False)
                for index, value in enumerate(values)
            ]
        if self.copies == 1:
            return list(items)
        copied = [item for item in items for _ in range(self.copies)]
        return [item._replace(index=index) for index, item in enumerate(copied)]

    def results(self) -> Iterator[Result]:
        """Yield the texts of each input that can be read."""
        rankings = self._open_rankings()
        size = self.processor.num_read[self.store is not None]
        for start in range(0, len(self.items), size):
            readable = []
            for item, examples in self._read(self.items[start : start + size]):
                if isinstance(examples, UserError):
                    self._report(item, examples)
                else:
                    readable.append((item, examples))
            streams = [
                model.stream(
                    [examples[i] for _, examples in readable],
                    config,
                    indices=[item.index for item, _ in readable],
                    batch_size=self.args.batch_size,
                )
                for i, (model, config) in enumerate(zip(self.models, self.configs))
            ]
            for (item, examples), *generated in zip(readable, *streams):
                result = Result(item, examples, list(generated), [])
                self._rank(result, rankings)
                for remark, details in examples[0].remarks.items():
                    name = f"{item.name} ({details})" if details else item.name
                    self.remarks.setdefault(remark, []).append(name)
                yield result
                self.num_texts += sum(map(len, result.hypotheses))
                self.progress.update()
        if self.num_failed == len(self.items):
            number = self.num_failed // self.copies
            raise UserError(f"none of the {number} {self.task.input_names[1]} could be read.")

    def _read(self, items: Sequence[Item]) -> Iterator[tuple[Item, Union[list[Any], UserError]]]:
        """Yield each input with its example for each model, or with the reason of a failure."""
        errors = [item.error for item in items]
        values = []
        for place, item in enumerate(items):
            try:
                if errors[place] is None:
                    values.append(self._get_value(item))
            except UserError as error:
                errors[place] = error
        # an input is read once for all systems with one extractor
        columns: dict[str, list[Any]] = {}
        for model in self.models:
            name = str(model.processor.extractor_identity or id(model))
            if name not in columns:
                columns[name] = list(model.processor.examples(values, **self.reading))
        rows = zip(*(columns[str(x.processor.extractor_identity or id(x))] for x in self.models))
        for item, reason in zip(items, errors):
            examples = list(next(rows)) if reason is None else []
            failed = [x for x in (reason, *examples) if isinstance(x, UserError)]
            yield item, failed[0] if failed else examples

    def _get_value(self, item: Item) -> Any:
        if self.store is not None:
            keys = self.processor.get_stored_keys(item.record)
            features = [None if key is None else self.store.read(key) for key in keys]
            return self.processor.from_features(item.record, item.folder, features)
        return self.processor.from_record(item.record, item.folder) if item.is_given else item.value

    def _report(self, item: Item, error: UserError) -> None:
        where = item.name if item.where is None else item.where
        message = str(error)
        if where and not message.startswith(f"{where}: "):
            message = f"{where}: {error}"
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

    def _open_rankings(self) -> list[Any]:
        """Return the object that ranks texts for ``--best-by ranking``, for each system."""
        if getattr(self.args, "best_by", None) != "ranking":
            return []
        from fairseq_mm.inference.prompt_ranking import PromptRanking

        pool = {repr(item.record) + repr(item.value): item for item in self.items}
        most = _POOL if self.models[0].loaded.feature_dim else None
        read = [x for _, x in self._read([*pool.values()][:most]) if not isinstance(x, UserError)]
        rankings = [
            PromptRanking(model, [examples[i] for examples in read], seed=config.seed)
            for i, (model, config) in enumerate(zip(self.models, self.configs))
        ]
        if read:
            # if there is no other input, this fails before any text is generated
            rankings[0].draw_others(read[0][0], 0)
        return rankings

    def _rank(self, result: Result, rankings: Sequence[Any]) -> None:
        """Order the hypotheses of ``--best-of``, and add the fields of their records."""
        nbest, size = self.args.nbest or 1, self.args.batch_size
        for place, hypotheses in enumerate(result.hypotheses):
            margins: list[dict[str, Any]] = [{} for _ in hypotheses]
            if rankings:
                ranked = rankings[place].rank(
                    result.examples[place], hypotheses, index=result.item.index, batch_size=size
                )[:nbest]
                result.hypotheses[place] = hypotheses = [story.hypothesis for story in ranked]
                by = self.processor.ranked_by
                margins = [
                    {f"{by}_margin": round(x.margin, 4), f"{by}_rank": x.prompt_rank}
                    for x in ranked
                ]
            if getattr(self.args, "best_of", None) is not None:
                about = {"candidates": self.args.best_of, "best_by": self.args.best_by or "score"}
                margins = [{"rank": i, **about, **x} for i, x in enumerate(margins, start=1)]
            result.fields.append(margins)

    def format(self, result: Result, more: Mapping[str, Any]) -> list[str]:
        """Return the lines of the output for a result; ``more`` has further fields."""
        item, is_compared = result.item, bool(getattr(self.args, "compare", None))
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
        if len(self.items) == 1 and item.is_given:
            return texts
        shown = item.record["id"] or getattr(result.examples[0].origin, "text", "")
        title = " ".join(str(shown).split())
        return [f"=== {item.index}{': ' if title else ''}{title} ===\n\n{x}\n" for x in texts]

    def _to_records(self, result: Result, more: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        item, is_compared = result.item, bool(getattr(self.args, "compare", None))
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
        """Report on stderr what was written (``page`` describes the page); return the status."""
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
