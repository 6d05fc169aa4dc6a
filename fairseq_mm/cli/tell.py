"""Generate stories of five images, of prompts, of prompts that a language model
generates, or of none.

  fairseq-mm tell --checkpoint fusion --prompt "The last dragon opens a bakery."
  fairseq-mm tell --checkpoint fusion --prompts test.wp_source --jsonl > all
  fairseq-mm tell --checkpoint fusion --prompt-model checkpoints/prompt_lm --n 5
  fairseq-mm tell --prompt-model checkpoints/prompt_lm --n 5 --prompts-only
  fairseq-mm tell --checkpoint checkpoints/gcnn_lm_stories --n 5
  fairseq-mm tell a.jpg b.jpg c.jpg d.jpg e.jpg --checkpoint glac --html s.html
  fairseq-mm tell --data data/vist --split valid --checkpoint glac --jsonl > all
  fairseq-mm tell *.jpg --compare glac/best.pt xl=xl/best.pt --html systems.html

Presets of prompts: paper, the default, draws each token from the 10 most
probable at temperature 0.8; greedy; beam, of 5; sampling. Stories have 150
tokens, <newline> among them; with --min-len 1 the model may end a story
earlier. Models of WritingPrompts expect prompts as they stand there, such as
"[WP] The last dragon ...".

Presets of images: beam, of 5, the default; greedy; sampling; paper, which is
greedy with a repetition penalty of 5 and sentences that end after punctuation,
as in the released code of Transtory-XL. A story has five sentences of 1 to 50
words. The extractor is the one that the model was trained with; its weights
file is looked for beside the checkpoint, and known by its content.

The stories are those of fairseq-generate. The draws of a story depend on --seed
and its index alone, which counts from 0, or from --first-id, and is the line of
a --split. A prompt or an image that cannot be read is named on stderr, the
other stories are generated all the same, and the exit status is 2.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rule
from fairseq_mm.cli.generate import Flow, Input, inputs_of_jsonl
from fairseq_mm.cli.records import counted, hashes_of, json_line, opened
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.cli.tell_inputs import (
    ImageSequence,
    sequence_of_files,
    sequences_of_ids,
    sequences_of_split,
)
from fairseq_mm.cli.tell_output import VisualStories, heading
from fairseq_mm.data.story_text import check_encodable
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import (
    PROMPT_STORY_PRESETS,
    SEED,
    VISUAL_STORY_CONSTRAINTS,
)

if TYPE_CHECKING:
    from fairseq_mm.inference.loading import States

# prompts whose unknown words are named
NAMED = 5
_OF_PROMPTS = (
    *("prompt", "prompts", "truncate_prompt", "prompt_model", "prompt_topk"),
    "prompt_temperature",
)
_OF_IMAGES = (
    *("inputs", "sequences", "features", "ids", "split", "line", "limit", "compare", "weights"),
    *("html", "images"),
)
_SOURCES = ("inputs", "sequences", "ids", "split")
_OF_STORIES = (*arguments.GENERATION, *arguments.CONSTRAINTS, "preset", "checkpoint", "data")
_RULES = (
    Rule(
        "prompts_only",
        needs=("prompt_model",),
        excludes=tuple(
            name
            for name in (*_OF_STORIES, *_OF_PROMPTS, *_OF_IMAGES)
            if name not in ("seed", "prompt_model", "prompt_topk", "prompt_temperature")
        ),
        because="no story is generated",
    ),
    Rule("prompt_model", excludes=("prompt", "prompts"), because="it generates the prompts"),
    Rule("prompt_topk", needs=("prompt_model",)),
    Rule("prompt_temperature", needs=("prompt_model",)),
    Rule("checkpoint", excludes=("compare",)),
    Rule("ids", needs=("features",), excludes=("inputs", "sequences", "split")),
    Rule("split", needs=("data",), excludes=("inputs", "sequences")),
    Rule(
        "split",
        excludes=("n", "first_id"),
        because="stories of a split are indexed by its lines; another --seed draws others",
    ),
    Rule("line", needs=("split",)),
    Rule("limit", needs=("split",)),
    Rule("features", needs=("ids", "split")),
    Rule("weights", needs=("inputs", "sequences"), because="else no image is read"),
    Rule("images", needs=("html",), excludes=("inputs", "sequences")),
)


# option -> type, placeholder, help
_PROMPTS: dict[str, tuple[Any, str, str]] = {
    "prompt": (list, "TEXT", "Prompt; may be given again."),
    "prompts": (list, "FILE", "File with a prompt a line; - is the standard input."),
    "truncate_prompt": (bool, "", "Truncate prompts that are longer than the model's positions."),
    "prompt_model": (
        *(str, "PATH"),
        "Language model that generates the prompts, with the source vocabulary of the story model.",
    ),
    "prompts_only": (bool, "", "Write the generated prompts, and no stories."),
    "prompt_topk": (
        *(int, "K"),
        "Draw the tokens of prompts from the K most probable; 0 for all (default: 10).",
    ),
    "prompt_temperature": (
        *(float, "T"),
        "Divisor of the prompt model's logits (default: 1.0).",
    ),
}
_IMAGES: dict[str, tuple[Any, str, str]] = {
    "sequences": (
        *(list, "FILE.jsonl"),
        'File with an image sequence a line, {"images": [five paths], "id": "..."}; paths are '
        "relative to the file.",
    ),
    "limit": (int, "N", "Maximum number of image sequences of the split (default: all)."),
    "images": (
        *(list, "FOLDER"),
        "Folder or .tar of the images of a store, for the page; may be given again.",
    ),
}
_RUN: dict[str, tuple[Any, str, str]] = {
    "n": (int, "N", "Number of stories of each input, or in all without inputs (default: 1)."),
    "first_id": (int, "ID", "Index of the first story (default: 0)."),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "checkpoint", checkpoint={"required": False})
    arguments.add_table(parser.add_argument_group("prompts"), _PROMPTS)
    group = parser.add_argument_group("images")
    group.add_argument(
        "inputs",
        nargs="*",
        metavar="IMAGE",
        help="Five images in the order of the story; - stands for one that is missing.",
    )
    group.add_argument(
        "--ids", nargs="+", default=[], metavar="ID", help="Five ids of the feature store."
    )
    group.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="[NAME=]CKPT",
        help="Several models in the place of one --checkpoint, whose stories are shown as a table; "
        "they are named by their --arch.",
    )
    arguments.add(
        group,
        *("features", "weights", "data", "split"),
        data={
            "help": "Data folder of --split; or, of fairseq's own models, which carry no "
            "dictionary, the folder that they were trained on."
        },
    )
    arguments.add_table(group, _IMAGES)
    group.add_argument(
        "--line",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="Line of the split whose images are meant, counted from 0; may be given again.",
    )
    arguments.add_generation(
        parser, {}, presets=PROMPT_STORY_PRESETS, constraints=VISUAL_STORY_CONSTRAINTS
    )
    output = parser.add_argument_group("output")
    form = output.add_mutually_exclusive_group()
    form.add_argument(
        "--raw", action="store_true", help="Write the tokens of a story, separated by spaces."
    )
    arguments.add(form, "jsonl")
    arguments.add(output, "output", "html")
    run_options = parser.add_argument_group("run")
    arguments.add(run_options, "device", "batch_size")
    arguments.add_table(run_options, _RUN)


def run(args: argparse.Namespace) -> int:
    arguments.check(args, _RULES)
    if not (args.checkpoint or args.compare or args.prompts_only):
        raise UserError("no model: give a checkpoint of a model of stories (--checkpoint).")
    of_images = [name for name in _OF_IMAGES if arguments.is_given(args, name)]
    has_images = any(arguments.is_given(args, name) for name in _SOURCES)
    if of_images and not has_images:
        raise UserError(_NO_IMAGES)
    of_prompts = [name for name in _OF_PROMPTS if arguments.is_given(args, name)]
    prompts = [] if args.prompts_only else given_prompts(args.prompt, args.prompts)
    options = arguments.generation_options(args)
    register_quietly()
    if args.prompts_only:
        return _write_prompts(args)

    from fairseq_mm.inference.loading import check_command, task_class_of

    systems = _load_states(args)
    tasks = {}
    for states in systems.values():
        check_command("tell", states)
        tasks.update({file: task_class_of(state) for file, state in states.items()})
    for file, task in tasks.items():
        reads_prompts = task.input_kind == "prompts"
        wrong = of_images if reads_prompts else of_prompts
        if wrong:
            raise UserError(
                f"{arguments.written(wrong[0])}: not for models that read {task.input_names[1]}, "
                f"such as {file}."
            )
    if not reads_prompts and not has_images:
        raise UserError(_NO_IMAGES)
    generate = _prompt_stories if reads_prompts else _visual_stories
    return generate(args, systems, options, prompts)


_NO_IMAGES = (
    "no images: give five (before --compare), or --sequences FILE, or --features STORE --ids ID ID "
    "ID ID ID, or --data DIR --split NAME."
)


def _load_states(args: argparse.Namespace) -> "dict[str, States]":
    """Name of each system -> its checkpoints."""
    from fairseq_mm.inference.loading import load_states

    systems: dict[str, States] = {}
    for text in args.compare or [args.checkpoint]:
        name, sign, path = text.partition("=")
        if not args.compare or not (sign and name) or os.sep in name or os.path.exists(text):
            name, path = "", text
        states = load_states(path)
        name = name or str(next(iter(states.values()))["cfg"]["model"]["_name"])
        if name in systems:
            raise UserError(
                f"--compare: two systems are named {name}: give them names (--compare "
                "first=CKPT second=CKPT)."
            )
        systems[name] = states
    return systems


def _check_repeats(args: argparse.Namespace, config: Any) -> None:
    if (args.n or 1) > 1 and not config.sampling:
        raise UserError(
            f"--n {args.n}: a search generates the same story each time: draw them (--sampling), "
            "or take several of one search (--nbest)."
        )


# Stories of prompts --------------------------------------------------------------------------


def given_prompts(texts: Sequence[str], files: Sequence[str]) -> list[Input]:
    """
    Args:
        texts: prompts.
        files: with a prompt a line; ``-`` is the standard input.

    Raises:
        UserError: if a file cannot be read, or is empty, or a prompt is no UTF-8 text.
    """
    given = []
    for number, text in enumerate(texts, start=1):
        check_encodable(text, f"--prompt {number}")
        given.append((f"prompt {number}", text))
    for path in files:
        try:
            content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
            lines = content.decode("utf-8-sig").split("\n")
        except OSError as error:
            raise UserError(f"--prompts {path}: cannot be read ({error.strerror}).") from None
        except UnicodeDecodeError as error:
            raise UserError(f"--prompts {path}: is no UTF-8 text ({error}).") from None
        if not lines[-1]:
            lines.pop()
        if not lines:
            raise UserError(f"--prompts {path}: must have prompts, but is empty.")
        name = "standard input" if path == "-" else path
        given += [(f"{name}:{number}", line) for number, line in enumerate(lines, start=1)]
    return [Input("", 0, text, where=where) for where, text in given]


def _prompt_stories(
    args: argparse.Namespace,
    systems: "Mapping[str, States]",
    options: Mapping[str, Any],
    given: list[Input],
) -> int:
    from fairseq_mm.inference.generator import generate_prompts
    from fairseq_mm.inference.pretrained import from_pretrained

    (states,) = systems.values()
    model: Any = from_pretrained(
        list(states),
        prompt_model=args.prompt_model,
        data=args.data,
        device=args.device,
        states=states,
    )
    is_language_model = model.loaded.are_language_models
    if is_language_model and (given or args.truncate_prompt):
        raise UserError(f"{model.files[0]}: is a language model, which takes no prompt: give --n.")
    config = model.config(**options)
    if args.prompt_model is None:
        _check_repeats(args, config)
    count, first = args.n or 1, args.first_id or 0
    indices = range(first, first + (len(given) or 1) * count)
    values: Sequence[Any] = [None] * count
    if given:
        inputs = [item for item in given for _ in range(count)]
        return PromptStories(args, model, config, inputs, indices).run()
    if not is_language_model:
        if model.prompt_generator is None:
            raise UserError(
                f"{model.files[0]}: generates stories of prompts: give some (--prompt, --prompts), "
                "or a language model that generates them (--prompt-model)."
            )
        values = generate_prompts(
            model.prompt_generator,
            indices,
            **_prompt_options(args),
            max_words=model.processor.max_source_words,
            batch_size=args.batch_size,
        )
    inputs = [Input("", 0, value) for value in values]
    return PromptStories(args, model, config, inputs, indices).run()


class PromptStories(Flow):
    """Stories of prompts, or of none.

    Args:
        args: of the command line.
        model: that generates.
        config: of generation.
        inputs: prompts, each as often as it has stories.
        indices: of the stories.
    """

    command = "tell"

    def __init__(
        self,
        args: argparse.Namespace,
        model: Any,
        config: Any,
        inputs: Sequence[Input],
        indices: Sequence[int],
    ) -> None:
        numbered = [item._replace(index=index) for item, index in zip(inputs, indices)]
        options = {"truncate": True} if args.truncate_prompt else {}
        super().__init__(args, [model], [config], numbered, **options)
        self.copies = (args.n or 1) if inputs[0].where else 1
        # a single story of a prompt that was typed needs no heading
        self.has_heading = len(inputs) > 1 or not inputs[0].where
        self.unknown: dict[str, str] = {}

    def facts_of(self, model: Any, config: Any) -> dict[str, Any]:
        facts = super().facts_of(model, config)
        if self.args.prompt_model:
            facts["prompt_options"] = _prompt_options(self.args)
            facts["prompt_checkpoint"] = hashes_of(model.prompt_generator.files)
        return facts

    def read(self, inputs: Sequence[Input]) -> Iterator[Any]:
        for item, found in zip(inputs, super().read(inputs)):
            prompt = None if isinstance(found, UserError) else found[0].origin
            if prompt is not None and prompt.num_truncated:
                self.warn(
                    f"{item.where}: truncated to {len(prompt.words)} words, "
                    f"{prompt.num_truncated} are left out"
                )
            if prompt is not None and prompt.unknown:
                words = list(dict.fromkeys(prompt.unknown))
                self.unknown[str(item.where)] = (
                    f"{item.where}: {counted(len(words), 'word')} not in the vocabulary, read as "
                    f"<unk>: {' '.join(words)}"
                )
            yield found

    def remarks(self) -> Iterator[str]:
        for message in list(self.unknown.values())[:NAMED]:
            yield f"fairseq-mm tell: {message}"
        if len(self.unknown) > NAMED:
            more = counted(len(self.unknown) - NAMED, "further prompt")
            yield f"fairseq-mm tell: {more} with unknown words (--jsonl has them all)"

    def lines(self, item: Input, examples: Sequence[Any], found: Sequence[Any]) -> list[str]:
        (hypotheses,), prompt = found, examples[0].origin
        best = hypotheses[0]
        if self.form == "raw":
            return [hypothesis.line for hypothesis in hypotheses]
        if self.form == "jsonl":
            others = {"tokens": best.line, "words": len(best.line.split())}
            others.update({} if prompt is None else _prompt_fields(prompt))
            return [json_line(item.index, hypotheses, {**others, **self.facts[0]})]
        if not self.has_heading:
            return [hypothesis.text for hypothesis in hypotheses]
        title = heading(item.index, "" if prompt is None else prompt.text)
        return [f"{title}\n{hypothesis.text}\n" for hypothesis in hypotheses]


def _prompt_fields(prompt: Any) -> dict[str, Any]:
    """What a record of a story says of its prompt."""
    fields = {"prompt": prompt.text, "prompt_tokens": " ".join(prompt.words)}
    if prompt.score is None:
        return {**fields, "unknown_words": prompt.unknown, "prompt_words_cut": prompt.num_truncated}
    return {**fields, "prompt_score": round(prompt.score, 4)}


def _prompt_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "topk": 10 if args.prompt_topk is None else args.prompt_topk,
        "temperature": 1.0 if args.prompt_temperature is None else args.prompt_temperature,
        "seed": SEED if args.seed is None else args.seed,
    }


def _write_prompts(args: argparse.Namespace) -> int:
    """``--prompts-only``."""
    from fairseq_mm.inference.generator import generate_prompts
    from fairseq_mm.inference.prompt_models import load_prompt_generator

    model = load_prompt_generator(args.prompt_model, device=args.device)
    options = _prompt_options(args)
    first = args.first_id or 0
    indices = range(first, first + (args.n or 1))
    prompts = generate_prompts(model, indices, **options, batch_size=args.batch_size)
    facts = {"options": options, "checkpoint": hashes_of(model.files)} if args.jsonl else {}
    with opened(args.output) as file:
        for index, prompt in zip(indices, prompts):
            tokens = " ".join(prompt.words)
            line = tokens if args.raw else " ".join(prompt.text.split())
            if args.jsonl:
                record = {"id": index, "hypothesis": prompt.text, "score": round(prompt.score, 4)}
                others = {"tokens": tokens, "words": len(prompt.words)}
                line = json.dumps({**record, **others, **facts}, ensure_ascii=False)
            print(line, file=file)
    if args.output:
        print(f"wrote {args.output}: {counted(len(prompts), 'prompt')}", file=sys.stderr)
    return 0


# Stories of image sequences ------------------------------------------------------------------


def _visual_stories(
    args: argparse.Namespace,
    systems: "Mapping[str, States]",
    options: Mapping[str, Any],
    _: Sequence[Input],
) -> int:
    from fairseq_mm.inference.pretrained import from_pretrained

    models: dict[str, Any] = {
        name: from_pretrained(list(states), weights=args.weights, device=args.device, states=states)
        for name, states in systems.items()
    }
    configs = [model.config(**options) for model in models.values()]
    _check_repeats(args, configs[0])
    sequences, store = _sequences_of(args, next(iter(models.values())).processor)
    return VisualStories(args, models, configs, sequences, store).run()


def _sequences_of(args: argparse.Namespace, processor: Any) -> tuple[list[ImageSequence], Any]:
    """The image sequences, each as often as it has stories, and the store of their features."""
    if args.split:
        return sequences_of_split(
            args.data, args.split, features=args.features, chosen=args.line, limit=args.limit
        )
    store: Any = None
    if args.ids:
        sequences, store = sequences_of_ids(args.ids, args.features)
    else:
        sequences = [sequence_of_files(args.inputs)] if args.inputs else []
    for path in args.sequences:
        for item, entry in inputs_of_jsonl(path, processor):
            try:
                if item.error is not None:
                    raise item.error
                sequence = sequence_of_files(item.value)
            except UserError as error:
                raise UserError(f"{item.where}: {error}") from None
            name = sequence.id if entry["id"] is None else item.name
            sequences.append(sequence._replace(id=name, where=str(item.where)))
    copies = [sequence for sequence in sequences for _ in range(args.n or 1)]
    first = args.first_id or 0
    return [copy._replace(index=first + i) for i, copy in enumerate(copies)], store
