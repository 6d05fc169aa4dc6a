"""Generates stories, from prompts or without, and prompts themselves, for ``fairseq-mm tell``."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_mm.cli.generate import Input, TextRun, read_examples
from fairseq_mm.cli.records import (
    compute_digests,
    counted,
    heading,
    json_line,
    open_output,
    rank_fields,
)
from fairseq_mm.data.input_files import read_lines
from fairseq_mm.data.story_text import check_encodable
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED

if TYPE_CHECKING:
    from fairseq_mm.inference.checkpoint import Checkpoint

# maximum number of prompts whose unknown words are listed on stderr
NAMED = 5


def check_repeats(args: argparse.Namespace, config: Any) -> None:
    """Raise UserError if ``--n`` is above 1 without sampling; the stories would be equal."""
    if (args.n or 1) > 1 and not config.sampling:
        raise UserError(
            f"--n {args.n}: a search generates the same story each time: draw them (--sampling), "
            "or take several of one search (--nbest)."
        )


def make_config(args: argparse.Namespace, model: Any, options: Mapping[str, Any]) -> Any:
    """Return the generation config; with ``--best-of N``, it generates N stories per input.

    Args:
        options: Options of generation that are on the command line, by name.
    """
    config = model.config(**options)
    if args.best_of is None:
        return config
    if not config.sampling:
        raise UserError(
            f"--best-of {args.best_of}: chooses among stories that are drawn: give --sampling, or "
            "a --preset that samples."
        )
    nbest = options.get("nbest", 1)
    if nbest > args.best_of:
        raise UserError(
            f"--nbest must be at most --best-of ({args.best_of}), the number of stories that are "
            f"drawn, but is {nbest}."
        )
    preset = options.get("preset")
    if preset is None and "sampling" not in options:
        preset = getattr(model.task, "default_preset", None)
    # fairseq returns sampled stories in the order of their scores, so the first are the best by
    # score; a ranking needs all stories
    by_score = args.best_by != "ranking"
    chosen = {"beam": args.best_of, "nbest": nbest if by_score else args.best_of}
    return model.config(**{**options, "preset": preset, **chosen})


def read_prompts(texts: Sequence[str], files: Sequence[str]) -> list[Input]:
    """Read the prompts of the command line and of files, and return them as inputs.

    Args:
        texts: Prompts of the command line.
        files: Paths of files with one prompt per line; ``-`` is standard input.
    """
    prompts = []
    for number, text in enumerate(texts, start=1):
        check_encodable(text, f"--prompt {number}")
        prompts.append((f"prompt {number}", text))
    for path in files:
        lines = [line for _, line in read_lines("/dev/stdin" if path == "-" else path)]
        if not lines:
            raise UserError(f"{path}: must have prompts, but is empty.")
        name = "standard input" if path == "-" else path
        prompts += [(f"{name}:{number}", line) for number, line in enumerate(lines, start=1)]
    return [Input("", 0, text, where=where) for where, text in prompts]


def prompt_stories(
    args: argparse.Namespace,
    systems: "Mapping[str, Sequence[Checkpoint]]",
    options: Mapping[str, Any],
    prompts: list[Input],
) -> int:
    """Generate and write stories of prompts, or of a language model; return the exit status.

    Args:
        systems: Dict from the name of the only system to its opened checkpoints.
        options: Options of generation that are on the command line, by name.
        prompts: Prompts of the user; empty if a language model generates the prompts, or if the
            model is a language model, which reads no prompt.
    """
    from fairseq_mm.inference.generator import generate_prompts
    from fairseq_mm.inference.pretrained import from_checkpoints

    (checkpoints,) = systems.values()
    model: Any = from_checkpoints(
        checkpoints, prompt_model=args.prompt_model, data=args.data, device=args.device
    )
    is_language_model = model.loaded.are_language_models
    if is_language_model and prompts:
        raise UserError(f"{model.files[0]}: is a language model, which takes no prompt: give --n.")
    config = make_config(args, model, options)
    if args.best_by == "ranking" and is_language_model:
        raise UserError(
            f"--best-by ranking: {model.files[0]} is a language model, which reads no prompt."
        )
    # with generated prompts, each story has its own prompt
    if args.prompt_model is None:
        check_repeats(args, config)
    count = args.n or 1
    indices = range((len(prompts) or 1) * count)
    values: Sequence[Any] = [None] * count
    inputs = [item for item in prompts for _ in range(count)]
    if not prompts and not is_language_model:
        if model.prompt_generator is None:
            raise UserError(
                f"{model.files[0]}: generates stories of prompts: give some (--prompt, --prompts), "
                "or a language model that generates them (--prompt-model)."
            )
        values = generate_prompts(
            model.prompt_generator,
            indices,
            **_get_prompt_options(args),
            max_words=model.processor.max_source_words,
            batch_size=args.batch_size,
        )
    inputs = inputs or [Input("", 0, value) for value in values]
    inputs = [item._replace(index=index) for item, index in zip(inputs, indices)]
    return _write_stories(args, model, config, inputs)


def _write_stories(
    args: argparse.Namespace, model: Any, config: Any, inputs: Sequence[Input]
) -> int:
    """Generate and write the stories of each input; return the exit status.

    The values of ``inputs`` are prompts; for a language model they are None, one per story.
    """
    # prompts that a language model has generated have no place in a file or on the command line
    is_given = bool(inputs[0].where)
    texts = TextRun(
        "tell", args, [model], [config], inputs, copies=(args.n or 1) if is_given else 1
    )
    ranking = _open_ranking(args, model, config, inputs)
    (facts,) = texts.provenance()
    if facts and args.prompt_model:
        facts["prompt_options"] = _get_prompt_options(args)
        facts["prompt_checkpoint"] = compute_digests(model.prompt_generator.files)
    # a single story of a prompt on the command line needs no heading
    has_heading = len(inputs) > 1 or not is_given
    unknown: dict[str, str] = {}

    def read(inputs: Sequence[Input]) -> Iterator[Any]:
        for item, examples in zip(inputs, read_examples(model, inputs)):
            prompt = None if isinstance(examples, UserError) else examples[0].origin
            if prompt is not None and prompt.unknown:
                words = list(dict.fromkeys(prompt.unknown))
                unknown[str(item.where)] = (
                    f"{item.where}: {counted(len(words), 'word')} not in the vocabulary, read as "
                    f"<unk>: {' '.join(words)}"
                )
            yield examples

    with texts.open_outputs():
        # prompts are read quickly, and a long list keeps the batches full
        for item, (example,), (hypotheses,) in texts.generate(read, size=1000):
            ranked: list[Any] = []
            if ranking is not None:
                ranked = ranking.rank(
                    example, hypotheses, index=item.index, batch_size=args.batch_size
                )[: args.nbest or 1]
                hypotheses = [story.hypothesis for story in ranked]
            ranks = rank_fields(args, hypotheses)
            for fields, story in zip(ranks, ranked):
                fields["prompt_margin"] = round(story.margin, 4)
                fields["prompt_rank"] = story.prompt_rank
            if texts.form == "jsonl":
                prompt = example.origin
                tokens = hypotheses[0].line
                others = {"tokens": tokens, "words": len(tokens.split())}
                if prompt is not None:
                    others.update(prompt=prompt.text, prompt_tokens=" ".join(prompt.words))
                    if prompt.score is not None:
                        others["prompt_score"] = round(prompt.score, 4)
                    else:
                        others["unknown_words"] = prompt.unknown
                        others["prompt_words_cut"] = prompt.num_truncated
                lines = [json_line(item.index, hypotheses, {**others, **facts}, each=ranks)]
            elif has_heading:
                title = heading(item.index, "" if example.origin is None else example.origin.text)
                lines = [f"{title}\n{hypothesis.text}\n" for hypothesis in hypotheses]
            else:
                lines = [hypothesis.text for hypothesis in hypotheses]
            texts.write(lines, len(hypotheses))
    remarks = [f"fairseq-mm tell: {message}" for message in [*unknown.values()][:NAMED]]
    if len(unknown) > NAMED:
        more = counted(len(unknown) - NAMED, "further prompt")
        remarks.append(f"fairseq-mm tell: {more} with unknown words (--jsonl has them all)")
    return texts.finish(remarks)


def _open_ranking(
    args: argparse.Namespace,
    model: Any,
    config: Any,
    inputs: Sequence[Input],
) -> Any:
    """Return the object that ranks stories for ``--best-by ranking``; None without this option.

    The likelihood of a story under its own prompt is compared with its likelihood under the prompts
    of the run (``inputs``) or of ``--other-prompts``.
    """
    if args.best_by != "ranking":
        return None
    from fairseq_mm.inference.prompt_ranking import PromptRanking

    if args.other_prompts:
        inputs = read_prompts([], [args.other_prompts])
    examples = []
    for item, example in zip(inputs, read_examples(model, inputs)):
        if not isinstance(example, UserError):
            examples += example
        elif args.other_prompts:
            raise UserError(f"{item.where}: {example}")
    ranking = PromptRanking(model, examples, seed=config.seed)
    for example in examples[:1] if not args.other_prompts else []:
        # if there is no other prompt, this fails before any story is generated
        ranking.draw_others(example, 0)
    return ranking


def _get_prompt_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "topk": 10,
        "temperature": 1.0,
        "seed": SEED if args.seed is None else args.seed,
    }


def write_prompts(args: argparse.Namespace) -> int:
    """Generate and write prompts without stories (``--prompts-only``); return the exit status."""
    from fairseq_mm.inference.generator import generate_prompts
    from fairseq_mm.inference.pretrained import load_prompt_generator

    model = load_prompt_generator(args.prompt_model, device=args.device)
    options = _get_prompt_options(args)
    indices = range(args.n or 1)
    prompts = generate_prompts(model, indices, **options, batch_size=args.batch_size)
    facts = {"options": options, "checkpoint": compute_digests(model.files)} if args.jsonl else {}
    with open_output(args.output) as file:
        for index, prompt in zip(indices, prompts):
            line = " ".join(prompt.text.split())
            if args.jsonl:
                record = {"id": index, "hypothesis": prompt.text, "score": round(prompt.score, 4)}
                others = {"tokens": " ".join(prompt.words), "words": len(prompt.words)}
                line = json.dumps({**record, **others, **facts}, ensure_ascii=False)
            print(line, file=file)
    if args.output:
        print(f"wrote {args.output}: {counted(len(prompts), 'prompt')}", file=sys.stderr)
    return 0
