"""Stories, by a trained model: of five images; of prompts, of prompts that a language model makes
up, or of none.

  fairseq-mm tell --model checkpoints/conv_story_fusion --prompt "The last dragon opens a bakery."
  fairseq-mm tell --model checkpoints/conv_story_fusion --prompts test.wp_source --jsonl > all
  fairseq-mm tell --model checkpoints/conv_story_fusion --prompt-model checkpoints/prompt_lm --n 5
  fairseq-mm tell --prompt-model checkpoints/prompt_lm --n 5 --prompts-only
  fairseq-mm tell --model checkpoints/gcnn_lm_stories --n 5
  fairseq-mm tell --model checkpoints/glac a.jpg b.jpg c.jpg d.jpg e.jpg --html story.html
  fairseq-mm tell --model checkpoints/glac --data data/vist --split valid --jsonl > told.jsonl
  fairseq-mm tell *.jpg --compare glac/best.pt xl=xl/best.pt --html systems.html

Presets for prompts: paper draws each word from the 10 most probable at temperature 0.8; greedy
takes the most probable; beam searches with a beam of 5. All tell 150 words, where a line break is a
word; with --min-words 1 the model may end a story earlier. Models of WritingPrompts expect prompts
as they stand there, such as "[WP] The last dragon ...".

Presets for images: beam, of 5, is the default; greedy; sampling draws from all words, and is the
default with --topk or --topp; paper is greedy with a repetition penalty of 5 and sentences that end
after punctuation, as the released code of Transtory-XL tells. A story has five sentences of 1 to 50
words. The extractor is the one that the model was trained with; its weights file is looked for
beside the checkpoint, and known by its content.

The stories are those of fairseq-generate: no <unk> unless --allow-unk is given. A story's draws
depend on --seed and its id, which counts from 0, or from --first-id, and is the line of a --split:
it is equal whatever is told beside it. A prompt or image that cannot be read is named on stderr,
the other stories are told all the same, and the exit status is 2.
"""

import argparse
import dataclasses
import os
import sys
from typing import Any

from fairseq_mm.cli import tell_images
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.cli.tell_output import check_folder, check_numbers
from fairseq_mm.cli.tell_prompts import counted, given_prompts, read_prompts
from fairseq_mm.errors import EXIT_STATUS, UserError
from fairseq_mm.generation.defaults import ALLOW_UNK_HELP, SEED

CHECKPOINT_HELP = (
    "folder with checkpoint_best.pt or else checkpoint_last.pt, or a checkpoint; several, "
    f"separated by {os.pathsep!r}, are an ensemble"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="PATH", help=f"of stories: {CHECKPOINT_HELP}")
    parser.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="tell a story of it; may be given repeatedly",
    )
    parser.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="FILE",
        help="prompts, one a line; - reads them from the standard input",
    )
    parser.add_argument(
        "--truncate-prompt", action="store_true", help="cut prompts that are too long"
    )
    parser.add_argument(
        "--n", type=int, metavar="N", help="stories of each given prompt, or in all (default: 1)"
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="data folder whose dictionaries a --model of fairseq's own has, such as --arch lstm; "
        "other checkpoints carry theirs; with --split a folder of visual stories",
    )
    tell_images.add_arguments(parser)
    made_up = parser.add_argument_group("prompts that are made up")
    made_up.add_argument(
        "--prompt-model",
        metavar="PATH",
        help="language model of prompts, with the source dictionary of the story model",
    )
    made_up.add_argument(
        "--prompts-only", action="store_true", help="print the prompts, one a line, and no stories"
    )
    made_up.add_argument(
        "--prompt-topk", type=int, metavar="K", help="as --topk, for prompts (default: 10)"
    )
    made_up.add_argument(
        "--prompt-temperature", type=float, metavar="T", help="for prompts (default: 1.0)"
    )
    telling = parser.add_argument_group("telling")
    telling.add_argument(
        "--preset",
        choices=("paper", "greedy", "beam", "sampling"),
        help="see above (default: paper; beam with --beam and for images)",
    )
    telling.add_argument(
        "--topk", type=int, metavar="K", help="draw from the K most probable words; 0 for all"
    )
    telling.add_argument(
        "--topp",
        type=float,
        metavar="P",
        help="draw from the most probable words that have together this share of the probability",
    )
    telling.add_argument(
        "--temperature", type=float, metavar="T", help="above 1 flattens the distribution"
    )
    telling.add_argument("--beam", type=int, metavar="N", help="search with a beam, do not draw")
    telling.add_argument(
        "--words", type=int, metavar="N", help="exact length of a story (default: 150)"
    )
    telling.add_argument(
        "--min-words", type=int, metavar="N", help="shortest story, or sentence about an image"
    )
    telling.add_argument(
        "--max-words", type=int, metavar="N", help="longest story or sentence, ended there"
    )
    telling.add_argument(
        "--no-repeat-ngram", type=int, metavar="N", help="no N words occur twice in turn"
    )
    telling.add_argument(
        "--seed", type=int, default=SEED, help="seed of the draws (default: %(default)s)"
    )
    telling.add_argument("--allow-unk", action="store_true", help=ALLOW_UNK_HELP)
    telling.add_argument(
        "--first-id",
        type=int,
        default=0,
        metavar="ID",
        help="id of the first story: a story of an earlier run is told again by its prompt, the "
        "earlier seed and its id (default: %(default)s)",
    )
    output = parser.add_argument_group("output")
    form = output.add_mutually_exclusive_group()
    form.add_argument(
        "--raw", action="store_true", help="a story a line, in words as the model wrote them"
    )
    form.add_argument(
        "--jsonl",
        action="store_true",
        help="an object a line: id, prompt, story, tokens (as the model wrote them), words (their "
        "number), score (mean log-probability of a token), unknown_words (of the prompt), seed, "
        "options, checkpoint (SHA-256), ...",
    )
    output.add_argument("--output", metavar="FILE", help="write there instead of to the screen")
    run_options = parser.add_argument_group("run")
    run_options.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    run_options.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="stories at a time (default: 32 on a CPU, 128 elsewhere)",
    )


def run(args: argparse.Namespace) -> int:
    if tell_images.given_options(args):
        return tell_images.run(args)
    _check_arguments(args)
    given = given_prompts(args.prompt, args.prompts)
    register_quietly()
    return _make_up_prompts(args) if args.prompts_only else _tell(args, given)


def _tell(args: argparse.Namespace, given: list[Any]) -> int:
    from fairseq_mm.cli.likelihood_options import load_models
    from fairseq_mm.cli.tell_output import Description, hashes_of, opened, progress_bar
    from fairseq_mm.inference.storyteller import Storyteller
    from fairseq_mm.inference.text_models import load_text_models

    telling = _telling(args)
    models = load_models(args.model, args.data, args.device)
    if models.are_language_models and (given or args.truncate_prompt):
        raise UserError(f"{models.files[0]}: is a language model, which takes no prompt: give --n.")
    prompt_models = None
    if args.prompt_model:
        prompt_models = load_text_models(args.prompt_model, device=args.device)
    teller = Storyteller(models, prompt_models)
    teller.writer.check(telling)
    count = args.n or 1
    if count > 1 and not telling.draws and prompt_models is None:
        raise UserError(
            f"--n {count}: a search finds the same story each time; draw the words for several "
            "(--preset paper)."
        )
    items = range(args.first_id, args.first_id + (len(given) or 1) * count)
    if given:
        read = read_prompts(given, teller, truncate=args.truncate_prompt)
        prompts = [prompt for prompt in read for _ in range(count)]
        told = [(item, prompt) for item, prompt in zip(items, prompts) if prompt is not None]
    elif models.are_language_models:
        told = [(item, None) for item in items]
    else:
        options = _prompt_options(args)
        told = list(
            zip(items, teller.make_up_prompts(items, batch_size=args.batch_size, **options))
        )
    if not told:
        return EXIT_STATUS
    facts: dict[str, Any] = {}
    if args.jsonl:
        facts["seed"] = args.seed
        facts["options"] = dataclasses.asdict(telling)
        facts["checkpoint"] = hashes_of(models.files)
        if prompt_models is not None:
            facts["prompt_options"] = _prompt_options(args)
            facts["prompt_checkpoint"] = hashes_of(prompt_models.files)
    # a single story of a prompt that was typed needs none
    description = Description(_form(args), facts, has_heading=len(items) > 1 or not given)
    stories = teller.stories(
        [item for item, _ in told],
        [prompt for _, prompt in told],
        telling,
        batch_size=args.batch_size,
    )
    with opened(args.output) as file, progress_bar(len(told)) as bar:
        for story in stories:
            print(description.of_story(story), file=file, flush=True)
            bar.update()
    if args.output:
        print(f"wrote {args.output}: {counted(len(told), 'story', 'stories')}", file=sys.stderr)
    failed = (len(items) - len(told)) // count
    if failed:
        print(f"{failed} of {len(given)} prompts could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _make_up_prompts(args: argparse.Namespace) -> int:
    from fairseq_mm.cli.tell_output import Description, hashes_of, opened
    from fairseq_mm.inference.storyteller import check_language_models, make_up_prompts
    from fairseq_mm.inference.text_models import load_text_models
    from fairseq_mm.inference.text_writer import TextWriter

    models = load_text_models(args.prompt_model, device=args.device)
    check_language_models(models)
    options = _prompt_options(args)
    items = range(args.first_id, args.first_id + (args.n or 1))
    prompts = make_up_prompts(TextWriter(models), items, batch_size=args.batch_size, **options)
    facts: dict[str, Any] = {}
    if args.jsonl:
        facts = {"seed": args.seed, "options": options, "checkpoint": hashes_of(models.files)}
    description = Description(_form(args), facts)
    with opened(args.output) as file:
        for item, prompt in zip(items, prompts):
            print(description.of_prompt(item, prompt), file=file)
    if args.output:
        print(f"wrote {args.output}: {counted(len(prompts), 'prompt')}", file=sys.stderr)
    return 0


def _form(args: argparse.Namespace) -> str:
    return "raw" if args.raw else "jsonl" if args.jsonl else "text"


def _check_arguments(args: argparse.Namespace) -> None:
    if args.prompts_only:
        if not args.prompt_model:
            raise UserError("--prompts-only: needs the model that makes them up (--prompt-model).")
        telling = ("preset", "topk", "topp", "temperature", "beam")
        length = ("words", "min_words", "max_words", "no_repeat_ngram", "allow_unk")
        for name in ("model", "prompt", "prompts", "truncate_prompt", "data", *telling, *length):
            value = getattr(args, name)
            if value is not None and value is not False and value != []:
                raise UserError(
                    f"--{name.replace('_', '-')}: says how stories are told, but with "
                    "--prompts-only there are none (--prompt-topk and --prompt-temperature are "
                    "of prompts)."
                )
    elif not args.model:
        raise UserError("no model: give a checkpoint of a story model (--model).")
    if args.prompt_model and (args.prompt or args.prompts):
        raise UserError("--prompt-model: makes prompts up, but some are given; leave one out.")
    if not args.prompt_model and (args.prompt_topk, args.prompt_temperature) != (None, None):
        name = "topk" if args.prompt_topk is not None else "temperature"
        raise UserError(f"--prompt-{name}: no prompt is made up without --prompt-model.")
    check_numbers(args)
    check_folder("--output", args.output)


def _telling(args: argparse.Namespace) -> Any:
    from fairseq_mm.inference.text_writer import preset_with

    names = ("beam", "topk", "topp", "temperature", "no_repeat_ngram", "seed")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    changes["allow_unk"] = args.allow_unk
    if args.words is not None:
        changes.update(min_words=args.words, max_words=args.words)
    for name in ("min_words", "max_words"):
        if getattr(args, name) is not None:
            changes[name] = getattr(args, name)
    name = args.preset or ("paper" if args.beam is None else "beam")
    return preset_with(name, **changes)


def _prompt_options(args: argparse.Namespace) -> dict[str, Any]:
    from fairseq_mm.inference.storyteller import PROMPT_TOPK

    return {
        "topk": PROMPT_TOPK if args.prompt_topk is None else args.prompt_topk,
        "temperature": 1.0 if args.prompt_temperature is None else args.prompt_temperature,
        "seed": args.seed,
    }
