"""Generate stories from five images, from prompts, from prompts that a language
model generates, or without a prompt.

  fairseq-mm tell --checkpoint fusion --prompt "The last dragon opens a bakery."
  fairseq-mm tell --checkpoint fusion --prompts test.wp_source --jsonl > all
  fairseq-mm tell --checkpoint fusion --prompts test.wp_source --best-of 10 \\
      --best-by ranking --nbest 10 --output ranked.jsonl
  fairseq-mm tell --checkpoint fusion --prompt-model checkpoints/prompt_lm --n 5
  fairseq-mm tell --prompt-model checkpoints/prompt_lm --n 5 --prompts-only
  fairseq-mm tell --checkpoint checkpoints/gcnn_lm_stories --n 5
  fairseq-mm tell a.jpg b.jpg c.jpg d.jpg e.jpg --checkpoint glac --html s.html
  fairseq-mm tell --data data-bin/vist --split valid --checkpoint glac --jsonl
  fairseq-mm tell *.jpg --compare glac/best.pt xl=xl/best.pt --html systems.html

Presets for prompts: paper (the default) samples each token from the 10 most
probable tokens at temperature 0.8; greedy; beam, a beam of 5; sampling. Stories
have 150 tokens, including <newline>; with --min-len 1 the model may end a story
earlier. Models of WritingPrompts expect prompts in the form of that dataset,
such as "[WP] The last dragon ...".

--best-of N samples N stories for each input and writes the --nbest best
stories, ranked by their score (computed at the --temperature of the samples).
With --best-by ranking, stories are ranked by their log-likelihood under their
own prompt minus the highest log-likelihood under 9 other prompts of the run or
of --other-prompts; the field prompt_margin has this difference in nats per token.
Stories of images are ranked by their own images and by the images of 9 other
sequences of the run that share no image with them (images_margin). With --mbr
METRIC, the best stories are the most similar to the other stories sampled for the
input.

Presets for images: beam (the default), a beam of 5; greedy; sampling; paper,
greedy search with a repetition penalty of 5 and sentences that end after
punctuation, as in the released code of Transtory-XL. A story has five sentences
of 1 to 50 words. Image features are extracted with the network that the
checkpoint was trained on; its weights file is searched next to the checkpoint
and verified by its SHA-256 digest.

fairseq-generate prints the same stories. With sampling, a story depends only on
--seed and its index: its line in the --split, or its number among the stories,
counted from 0. Unreadable prompts and images are reported on stderr and skipped,
and the exit status is then 2.
"""

import argparse
import os
from typing import TYPE_CHECKING

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, NUMBER, REPEATED, Rows, Rule
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.cli.tell_images import visual_stories
from fairseq_mm.cli.tell_prompts import prompt_stories, read_prompts, write_prompts
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import PROMPT_STORY_PRESETS, VISUAL_STORY_CONSTRAINTS
from fairseq_mm.inference.checkpoint_files import checkpoint_files

if TYPE_CHECKING:
    from fairseq_mm.inference.checkpoint import Checkpoint

_OF_PROMPTS = (*("prompt", "prompts", "prompt_model", "other_prompts"),)
_OF_IMAGES = (
    *("inputs", "features", "ids", "split", "line", "limit", "compare", "weights"),
    *("html", "images"),
)
_SOURCES = ("inputs", "ids", "split")
_OF_STORIES = (
    *(*arguments.GENERATION, *arguments.CONSTRAINTS, "preset", "checkpoint", "data", "best_of"),
)
_RULES = (
    Rule(
        "prompts_only",
        needs=("prompt_model",),
        excludes=tuple(
            name
            for name in (*_OF_STORIES, *_OF_PROMPTS, *_OF_IMAGES)
            if name not in ("seed", "prompt_model")
        ),
        because="no story is generated",
    ),
    Rule("prompt_model", excludes=("prompt", "prompts"), because="it generates the prompts"),
    Rule("best_of", excludes=("beam",), because="it is the number of stories that are drawn"),
    Rule("best_by", needs=("best_of",)),
    Rule("best_by", excludes=("mbr",), because="each is an order of the stories"),
    Rule("other_prompts", needs=("best_by",)),
    Rule("checkpoint", excludes=("compare",)),
    Rule("ids", needs=("features",), excludes=("inputs", "split")),
    Rule("split", needs=("data",), excludes=("inputs",)),
    Rule(
        "split",
        excludes=("n",),
        because="stories of a split are indexed by its lines; another --seed draws others",
    ),
    Rule("line", needs=("split",)),
    Rule("limit", needs=("split",)),
    Rule("features", needs=("ids", "split")),
    Rule("weights", needs=("inputs",), because="else no image is read"),
    Rule("images", needs=("html",), excludes=("inputs",)),
)


_PROMPTS: Rows = {
    "--prompt": ("Prompt; may be given again.", {**REPEATED, "metavar": "TEXT"}),
    "--prompts": (
        "File with one prompt per line; - is standard input.",
        {**REPEATED, "metavar": "FILE"},
    ),
    "--prompt-model": (
        "Language model that generates the prompts, with the source vocabulary of the story model.",
        {"metavar": "PATH"},
    ),
    "--prompts-only": ("Write the generated prompts, and no stories.", FLAG),
}
_IMAGES: Rows = {
    "--limit": ("Maximum number of image sequences of the split (default: all).", NUMBER),
    "--images": (
        "Folder or .tar of the images of a store, for the page; may be given again.",
        {**REPEATED, "metavar": "FOLDER"},
    ),
}
_NUMBER: Rows = {
    "--n": ("Number of stories per input, or in total without inputs (default: 1).", NUMBER),
    "--best-of": (
        "Sample N stories per input and write the best, or the --nbest best; needs --sampling, or "
        "a preset that samples.",
        NUMBER,
    ),
    "--other-prompts": (
        "File with one prompt per line, from which --best-by ranking samples the other prompts "
        "(default: the prompts of this run).",
        {"metavar": "FILE"},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "checkpoint", checkpoint={"required": False})
    arguments.add_rows(parser.add_argument_group("prompts"), _PROMPTS)
    group = parser.add_argument_group("images")
    group.add_argument(
        "inputs",
        nargs="*",
        metavar="IMAGE",
        help="Five images in the order of the story; - is a missing image.",
    )
    group.add_argument(
        "--ids", nargs="+", default=[], metavar="ID", help="Five ids of the feature store."
    )
    group.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="[NAME=]CKPT",
        help="Several models instead of one --checkpoint; a table shows their stories, named by "
        "--arch by default.",
    )
    arguments.add(
        group,
        *("features", "weights", "data", "split"),
        data={
            "help": "Data folder of --split; for fairseq's own models, whose checkpoints have no "
            "dictionary, the data folder of their training."
        },
    )
    arguments.add_rows(group, _IMAGES)
    group.add_argument(
        "--line",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="Line of the split, counted from 0; may be given again (default: every sequence).",
    )
    arguments.add_generation(
        parser, {}, presets=PROMPT_STORY_PRESETS, constraints=VISUAL_STORY_CONSTRAINTS
    )
    number = parser.add_argument_group("number and choice")
    arguments.add_rows(number, _NUMBER)
    number.add_argument(
        "--best-by",
        choices=("score", "ranking"),
        help="Order of --best-of: by score, or by the likelihood under the story's own prompt or "
        "images compared with others (default: score).",
    )
    output = parser.add_argument_group("output")
    arguments.add(output, "jsonl", "output", "html")
    arguments.add(parser.add_argument_group("run"), "device", "batch_size")


def run(args: argparse.Namespace) -> int:
    arguments.check(args, _RULES)
    if not (args.checkpoint or args.compare or args.prompts_only):
        raise UserError("no model: give a checkpoint of a model of stories (--checkpoint).")
    of_images = [name for name in _OF_IMAGES if arguments.is_given(args, name)]
    has_images = any(arguments.is_given(args, name) for name in _SOURCES)
    if of_images and not has_images:
        raise UserError(_NO_IMAGES)
    of_prompts = [name for name in _OF_PROMPTS if arguments.is_given(args, name)]
    prompts = [] if args.prompts_only else read_prompts(args.prompt, args.prompts)
    options = arguments.generation_options(args)
    # before torch and fairseq are imported, which takes seconds
    for text in args.compare or ():
        checkpoint_files(_named_path(text)[1])
    register_quietly()
    if args.prompts_only:
        return write_prompts(args)

    systems = _open_systems(args)
    checkpoints = [checkpoint for system in systems.values() for checkpoint in system]
    for checkpoint in checkpoints:
        checkpoint.check_command("tell")
    for checkpoint in checkpoints:
        reads_prompts = checkpoint.input_kind == "prompts"
        wrong = of_images if reads_prompts else of_prompts
        if wrong:
            raise UserError(
                f"{arguments.written(wrong[0])}: not for models that read "
                f"{checkpoint.task_class.input_names[1]}, such as {checkpoint.path}."
            )
    if not reads_prompts and not has_images:
        raise UserError(_NO_IMAGES)
    generate = prompt_stories if reads_prompts else visual_stories
    return generate(args, systems, options, prompts)


_NO_IMAGES = (
    "no images: give five (before --compare), or --features STORE --ids ID ID "
    "ID ID ID, or --data DIR --split NAME."
)


def _named_path(text: str) -> tuple[str, str]:
    """Split ``NAME=PATH`` into name and path; the name is empty if ``text`` is only a path."""
    # a path may have "=" in it
    name, sign, path = text.partition("=")
    if not (sign and name) or os.sep in name or os.path.exists(text):
        return "", text
    return name, path


def _open_systems(args: argparse.Namespace) -> "dict[str, list[Checkpoint]]":
    """Open the checkpoints of ``--compare`` or ``--checkpoint``.

    Returns:
        Dict from the name of a system to its checkpoints, several for an ensemble. The name is
        taken from ``--compare``; a system without a name has the name of its architecture.
    """
    from fairseq_mm.inference.checkpoint import Checkpoint

    # with --split the folder has image sequences, not a model's dictionaries
    data = None if args.split else args.data
    systems: dict[str, list[Checkpoint]] = {}
    for text in args.compare or [args.checkpoint]:
        name, path = _named_path(text) if args.compare else ("", text)
        checkpoints = Checkpoint.open_all(path, data=data)
        name = name or checkpoints[0].arch
        if name in systems:
            raise UserError(
                f"--compare: two systems are named {name}: give them names (--compare "
                "first=CKPT second=CKPT)."
            )
        systems[name] = checkpoints
    return systems
