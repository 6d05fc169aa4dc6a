"""Generate stories of five images, of prompts, of prompts that a language model generates, or of
none.

  fairseq-mm tell --checkpoint checkpoints/fusion --prompt "The last dragon opens a bakery."
  fairseq-mm tell --checkpoint checkpoints/fusion --prompts test.wp_source --jsonl > all
  fairseq-mm tell --checkpoint checkpoints/fusion --prompt-model checkpoints/prompt_lm --n 5
  fairseq-mm tell --prompt-model checkpoints/prompt_lm --n 5 --prompts-only
  fairseq-mm tell --checkpoint checkpoints/gcnn_lm_stories --n 5
  fairseq-mm tell a.jpg b.jpg c.jpg d.jpg e.jpg --checkpoint checkpoints/glac --html story.html
  fairseq-mm tell --data data/vist --split valid --checkpoint checkpoints/glac --jsonl > all
  fairseq-mm tell *.jpg --compare glac/best.pt xl=xl/best.pt --html systems.html

Presets of prompts: paper, the default, draws each token from the 10 most probable at temperature
0.8; greedy; beam, of 5; sampling. Stories have 150 tokens, <newline> among them; with --min-len 1
the model may end a story earlier. Models of WritingPrompts expect prompts as they stand there, such
as "[WP] The last dragon ...".

Presets of images: beam, of 5, the default; greedy; sampling; paper, which is greedy with a
repetition penalty of 5 and sentences that end after punctuation, as in the released code of
Transtory-XL. A story has five sentences of 1 to 50 words. The extractor is the one that the model
was trained with; its weights file is looked for beside the checkpoint, and known by its content.

The stories are those of fairseq-generate. The draws of a story depend on --seed and its index
alone, which counts from 0, or from --first-id, and is the line of a --split. A prompt or an image
that cannot be read is named on stderr, the other stories are generated all the same, and the exit
status is 2.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.progress import progress_bar
from fairseq_mm.cli.records import hashes_of, model_facts, opened
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.cli.tell_inputs import (
    GivenPrompt,
    ImageSource,
    Source,
    StoredSource,
    counted,
    given_prompts,
    read_prompts,
    sequences_of_files,
    sequences_of_ids,
    sequences_of_split,
    warn,
)
from fairseq_mm.cli.tell_output import (
    Page,
    VisualStoryFormatter,
    story_lines,
)
from fairseq_mm.errors import EXIT_STATUS, UserError
from fairseq_mm.generation.defaults import (
    PROMPT_STORY_PRESETS,
    SEED,
    VISUAL_STORY_CONSTRAINTS,
)

if TYPE_CHECKING:
    from fairseq_mm.generation.config import GenerationConfig
    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.loading import States

_OF_PROMPTS = (
    *("prompt", "prompts", "truncate_prompt", "prompt_model", "prompt_topk"),
    "prompt_temperature",
)
_OF_IMAGES = (
    *("inputs", "sequences", "features", "ids", "split", "line", "limit", "compare", "weights"),
    *("html", "images"),
)
# greatest index that fairseq's tensors and every reader of JSON can hold
_GREATEST = 2**53


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "checkpoint", checkpoint={"required": False})
    _add_prompts(parser.add_argument_group("prompts"))
    _add_images(parser.add_argument_group("images"))
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
    output.add_argument(
        "--images",
        action="append",
        default=[],
        metavar="FOLDER",
        help="Folder or .tar of the images of a store, for the page; may be given again.",
    )
    run_options = parser.add_argument_group("run")
    arguments.add(run_options, "device", "batch_size")
    run_options.add_argument(
        "--n",
        type=int,
        metavar="N",
        help="Number of stories of each input, or in all without inputs (default: 1).",
    )
    run_options.add_argument(
        "--first-id",
        type=int,
        default=0,
        metavar="ID",
        help="Index of the first story (default: %(default)s).",
    )


def _add_prompts(group: Any) -> None:
    group.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="Prompt; may be given again.",
    )
    group.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="FILE",
        help="File with a prompt a line; - is the standard input.",
    )
    group.add_argument(
        "--truncate-prompt",
        action="store_true",
        help="Truncate prompts that are longer than the model's positions.",
    )
    group.add_argument(
        "--prompt-model",
        metavar="PATH",
        help="Language model that generates the prompts, with the source vocabulary of the story "
        "model.",
    )
    group.add_argument(
        "--prompts-only", action="store_true", help="Write the generated prompts, and no stories."
    )
    group.add_argument(
        "--prompt-topk",
        type=int,
        metavar="K",
        help="Draw the tokens of prompts from the K most probable; 0 for all (default: 10).",
    )
    group.add_argument(
        "--prompt-temperature",
        type=float,
        metavar="T",
        help="Divisor of the prompt model's logits (default: 1.0).",
    )


def _add_images(group: Any) -> None:
    group.add_argument(
        "inputs",
        nargs="*",
        metavar="IMAGE",
        help="Five images in the order of the story; - stands for one that is missing.",
    )
    group.add_argument(
        "--sequences",
        action="append",
        default=[],
        metavar="FILE.jsonl",
        help='File with an image sequence a line, {"images": [five paths], "id": "..."}; paths '
        "are relative to the file.",
    )
    arguments.add(group, "features")
    group.add_argument(
        "--ids", nargs="+", default=[], metavar="ID", help="Five ids of the feature store."
    )
    arguments.add(
        group,
        "data",
        "split",
        data={
            "help": "Data folder of --split; or, of fairseq's own models, which carry no "
            "dictionary, the folder that they were trained on."
        },
    )
    group.add_argument(
        "--line",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="Line of the split whose images are meant, counted from 0; may be given again.",
    )
    group.add_argument(
        "--limit", type=int, metavar="N", help="Number of image sequences of the split, at most."
    )
    group.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="[NAME=]CKPT",
        help="Several models in the place of one --checkpoint, whose stories are shown as a table; "
        "they are named by their --arch.",
    )
    arguments.add(group, "weights")


def run(args: argparse.Namespace) -> int:
    _check_arguments(args)
    given = given_prompts(args.prompt, args.prompts)
    options = arguments.generation_options(args)
    register_quietly()
    if args.prompts_only:
        return _generate_prompts(args)

    from fairseq_mm.inference.loading import command_of, task_class_of

    systems = _load_states(args)
    tasks = []
    for states in systems.values():
        for file, state in states.items():
            if command_of(state) != "tell":
                raise UserError(
                    f"{file}: was trained with --task {state['cfg']['task']['_name']} (--arch "
                    f"{state['cfg']['model']['_name']}), and generates no stories: fairseq-mm "
                    f"{command_of(state) or 'doctor'}."
                )
            tasks.append((file, task_class_of(state)))
    for file, task in tasks:
        reads_prompts = task.input_kind == "prompts"
        wrong = _given(args, _OF_IMAGES if reads_prompts else _OF_PROMPTS)
        if wrong:
            raise UserError(
                f"{wrong[0]}: is no option of models that read {task.input_names[1]}, such as "
                f"{file}."
            )
    if reads_prompts:
        return _tell_prompts(args, given, options)
    return _tell_images(args, systems, options)


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


def _given(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of the options that were given, as they are written."""
    given = [name for name in names if getattr(args, name) not in (None, False, [])]
    return ["IMAGE" if name == "inputs" else f"--{name.replace('_', '-')}" for name in given]


def _check_count(args: argparse.Namespace, config: "GenerationConfig") -> None:
    if (args.n or 1) > 1 and not config.sampling:
        raise UserError(
            f"--n {args.n}: a search generates the same story each time: draw them (--sampling), "
            "or take several of one search (--nbest)."
        )


# Stories of prompts --------------------------------------------------------------------------


def _tell_prompts(
    args: argparse.Namespace, given: list[GivenPrompt], options: Mapping[str, Any]
) -> int:
    from fairseq_mm.inference.generator import generate_prompts
    from fairseq_mm.inference.pretrained import from_pretrained

    model: Any = from_pretrained(
        args.checkpoint, prompt_model=args.prompt_model, data=args.data, device=args.device
    )
    is_language_model = model.loaded.are_language_models
    if is_language_model and (given or args.truncate_prompt):
        raise UserError(f"{model.files[0]}: is a language model, which takes no prompt: give --n.")
    config = model.config(**options)
    if args.prompt_model is None:
        _check_count(args, config)
    count = args.n or 1
    indices = range(args.first_id, args.first_id + (len(given) or 1) * count)
    if given:
        read = read_prompts(given, model, truncate=args.truncate_prompt)
        examples = [example for example in read for _ in range(count)]
    elif is_language_model:
        examples = list(model.processor.examples([None] * count))
    elif model.prompt_generator is None:
        raise UserError(
            f"{model.files[0]}: generates stories of prompts: give some (--prompt, --prompts), or "
            "a language model that generates them (--prompt-model)."
        )
    else:
        limit = model.processor.max_source_words
        prompts = generate_prompts(
            model.prompt_generator, indices, **_prompt_options(args), max_words=limit,
            batch_size=args.batch_size,
        )  # fmt: skip
        examples = list(model.processor.examples(prompts))
    readable = [(i, example) for i, example in zip(indices, examples) if example is not None]
    facts: dict[str, Any] = {}
    if args.jsonl:
        facts = model_facts(model, config)
        if args.prompt_model:
            facts["prompt_options"] = _prompt_options(args)
            facts["prompt_checkpoint"] = hashes_of(model.prompt_generator.files)
    # a single story of a prompt that was typed needs no heading
    has_heading = len(indices) > 1 or not given
    found = model.stream(
        [example for _, example in readable],
        config,
        indices=[index for index, _ in readable],
        batch_size=args.batch_size,
    )
    with opened(args.output) as file, progress_bar(len(readable), "stories") as bar:
        for hypotheses in found:
            lines = story_lines(hypotheses, _form(args), facts, has_heading=has_heading)
            print(*lines, sep="\n", file=file, flush=True)
            bar.update()
    if args.output:
        number = counted(len(readable), "story", "stories")
        print(f"wrote {args.output}: {number}", file=sys.stderr)
    failed = (len(indices) - len(readable)) // count
    if failed:
        print(f"{failed} of {len(given)} prompts could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _generate_prompts(args: argparse.Namespace) -> int:
    import json

    from fairseq_mm.inference.generator import generate_prompts
    from fairseq_mm.inference.prompt_models import load_prompt_generator

    model = load_prompt_generator(args.prompt_model, device=args.device)
    options = _prompt_options(args)
    indices = range(args.first_id, args.first_id + (args.n or 1))
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


def _prompt_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "topk": 10 if args.prompt_topk is None else args.prompt_topk,
        "temperature": 1.0 if args.prompt_temperature is None else args.prompt_temperature,
        "seed": SEED if args.seed is None else args.seed,
    }


# Stories of image sequences ------------------------------------------------------------------


def _tell_images(
    args: argparse.Namespace, systems: "Mapping[str, States]", options: Mapping[str, Any]
) -> int:
    from fairseq_mm.inference.pretrained import from_pretrained

    _check_sources(args)
    models: Any = [
        from_pretrained(list(states), weights=args.weights, device=args.device, states=states)
        for states in systems.values()
    ]
    configs = [model.config(**options) for model in models]
    _check_count(args, configs[0])
    source = _source_of(args, models)
    names = list(systems)
    facts: list[dict[str, Any]] = [{} for _ in models]
    if args.jsonl:
        facts = [
            {**model_facts(model, config), "extractor": model.processor.reader.identity}
            for model, config in zip(models, configs)
        ]
    formatter = VisualStoryFormatter(
        _form(args),
        names if args.compare else [],
        facts,
        has_heading=len(source.sequences) > 1,
    )
    page = None
    if args.html:
        page = Page(args.html, names, args.images, _card(names, models, configs[0]))
    failed = _write_stories(args, source, configs, formatter, page)
    generated = len(source.sequences) - failed
    number = counted(generated * len(models), "story", "stories")
    if args.output:
        print(f"wrote {args.output}: {number}", file=sys.stderr)
    if page is not None and generated:
        page.write()
        absent = ""
        if args.images and page.num_absent:
            absent = f"; {counted(page.num_absent, 'image')} not found"
        size = os.path.getsize(args.html) / 1e6
        print(f"wrote {args.html}: {number}, {size:.1f} MB{absent}", file=sys.stderr)
    if failed:
        total = len(source.sequences)
        print(f"{failed} of {total} image sequences could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _source_of(args: argparse.Namespace, models: "Sequence[Generator]") -> Source:
    if args.split:
        sequences, store = sequences_of_split(
            args.data, args.split, features=args.features, chosen=args.line, limit=args.limit
        )
        return StoredSource(sequences, store, models)
    numbering = {"count": args.n or 1, "first": args.first_id}
    if args.ids:
        sequences, store = sequences_of_ids(args.ids, args.features, **numbering)
        return StoredSource(sequences, store, models)
    return ImageSource(sequences_of_files(args.inputs, args.sequences, **numbering), models)


def _write_stories(
    args: argparse.Namespace,
    source: Source,
    configs: "Sequence[GenerationConfig]",
    formatter: VisualStoryFormatter,
    page: Optional[Page],
) -> int:
    """
    Returns:
        failed: number of sequences that could not be read.
    """
    failed, total = 0, len(source.sequences)
    is_silent = args.html and not (args.output or args.jsonl or args.raw)
    with (
        opened(os.devnull if is_silent else args.output) as file,
        progress_bar(total, "stories") as bar,
    ):
        for start in range(0, total, source.piece):
            piece = source.sequences[start : start + source.piece]
            readable = []
            for sequence, examples in zip(piece, source.examples(piece)):
                if not isinstance(examples, UserError):
                    readable.append((sequence, examples))
                    continue
                if total == 1:
                    raise examples
                failed += 1
                bar.clear()
                warn(str(examples))
            indices = [sequence.index for sequence, _ in readable]
            by_system = [
                model.stream(
                    [examples[place] for _, examples in readable],
                    config,
                    indices=indices,
                    batch_size=args.batch_size,
                )
                for place, (model, config) in enumerate(zip(source.models, configs))
            ]
            for (sequence, _), *stories in zip(readable, *by_system):
                print(*formatter.lines(sequence, stories), sep="\n", file=file, flush=True)
                if page is not None:
                    page.add(sequence, stories)
            bar.update(len(piece))
    return failed


def _card(
    names: Sequence[str], models: "Sequence[Generator]", config: "GenerationConfig"
) -> list[tuple[str, str]]:
    """What was run, for the page."""
    card = [("command", shlex.join(["fairseq-mm", *sys.argv[1:]]))]
    options = {name: value for name, value in config.to_dict().items() if value is not None}
    card.append(("generation", ", ".join(f"{name} {value}" for name, value in options.items())))
    for name, model in zip(names, models):
        hashes = hashes_of(model.files)
        hashes = [hashes] if isinstance(hashes, str) else hashes
        card.append(
            (name, ", ".join(f"{file}, sha256 {x[:16]}" for file, x in zip(model.files, hashes)))
        )
    extractors = {
        str(model.processor.reader.identity.get("extractor", "not recorded")) for model in models
    }
    return [*card, ("extractor", ", ".join(sorted(extractors)))]


def _form(args: argparse.Namespace) -> str:
    return "raw" if args.raw else "jsonl" if args.jsonl else "text"


def _check_arguments(args: argparse.Namespace) -> None:
    if args.prompts_only:
        if not args.prompt_model:
            raise UserError("--prompts-only: needs the model that generates them (--prompt-model).")
        ours = (*arguments.GENERATION, *arguments.CONSTRAINTS, "preset", "checkpoint", "data")
        others = [name for name in (*ours, *_OF_PROMPTS, *_OF_IMAGES) if name != "seed"]
        allowed = ("--prompt-model", "--prompt-topk", "--prompt-temperature")
        for option in _given(args, others):
            if option not in allowed:
                raise UserError(
                    f"{option}: is of stories, but with --prompts-only there are none "
                    "(--prompt-topk and --prompt-temperature are of prompts)."
                )
    elif bool(args.checkpoint) == bool(args.compare):
        raise UserError(
            "--checkpoint and --compare: give one model or several systems, not both."
            if args.checkpoint
            else "no model: give a checkpoint of a model of stories (--checkpoint)."
        )
    if args.prompt_model and (args.prompt or args.prompts):
        raise UserError("--prompt-model: generates prompts, but some are given; leave one out.")
    if not args.prompt_model and (args.prompt_topk, args.prompt_temperature) != (None, None):
        name = "topk" if args.prompt_topk is not None else "temperature"
        raise UserError(f"--prompt-{name}: no prompt is generated without --prompt-model.")
    for name, least in (("n", 1), ("first_id", 0), ("limit", 1)):
        value = getattr(args, name)
        if value is not None and not least <= value <= _GREATEST:
            raise UserError(
                f"--{name.replace('_', '-')} must be from {least} to {_GREATEST}, but is {value}."
            )
    arguments.check_batch_size(args)
    if _given(args, _OF_IMAGES) and not _given(args, _OF_PROMPTS):
        _check_sources(args)
    for option, path in (("--output", args.output), ("--html", args.html)):
        arguments.check_writable(option, path)


def _check_sources(args: argparse.Namespace) -> None:
    """That the images of the stories are named once, with what belongs to them."""
    images = bool(args.inputs or args.sequences)
    sources = _given(args, ("inputs", "sequences", "ids", "split"))
    if not sources:
        raise UserError(
            "no images: give five (before --compare), or --sequences FILE, or --features STORE "
            "--ids ID ID ID ID ID, or --data DIR --split NAME."
        )
    if len(sources) > 1 and sources != ["IMAGE", "--sequences"]:
        raise UserError(f"{sources[0]} and {sources[1]}: leave one of the two out.")
    if args.ids and not args.features:
        raise UserError("--ids: are of a feature store; name it (--features STORE).")
    if images and (args.features or args.images):
        other = "--features" if args.features else "--images"
        raise UserError(f"{other}: is for images of a feature store; leave it out.")
    if args.weights and not images:
        raise UserError("--weights: no image is read where features are given; leave it out.")
    if args.images and not args.html:
        raise UserError("--images: are shown on the page (--html FILE).")
    if bool(args.split) != bool(args.data):
        other, missing = ("--split", "--data") if args.split else ("--data", "--split")
        raise UserError(f"{other}: needs {missing} beside it.")
    if not args.split and (args.line or args.limit is not None):
        raise UserError(f"{'--line' if args.line else '--limit'}: is of a --split.")
    if args.split and (args.n or args.first_id):
        name = "--n" if args.n else "--first-id"
        raise UserError(
            f"{name}: the stories of a split are indexed by its lines, and each is generated once; "
            "another --seed draws others."
        )
