"""Generate stories of five images, of prompts, or of a language model's prompts.

  fairseq-mm tell --checkpoint fusion --prompt "The last dragon opens a bakery."
  fairseq-mm tell --checkpoint fusion --prompts test.wp_source --jsonl > all
  fairseq-mm tell --checkpoint fusion --prompt-model checkpoints/prompt_lm --n 5
  fairseq-mm tell a.jpg b.jpg c.jpg d.jpg e.jpg --checkpoint glac --html s.html
  fairseq-mm tell data-bin/vist --split valid --checkpoint glac --jsonl
  fairseq-mm tell *.jpg --compare glac/best.pt xl=xl/best.pt --html systems.html

Presets for prompts: paper (the default), greedy, beam, sampling; stories have 150
tokens. Presets for images: beam (the default), greedy, sampling, paper.
A sampled story depends only on --seed and its index: its line in the --split, or
its number among the stories. Unreadable inputs are reported on stderr and
skipped; the exit status is then 2.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, REPEATED, Rows, Rule, positive
from fairseq_mm.cli.generate import run_task, split_name
from fairseq_mm.cli.records import Item, counted, open_output
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.input_files import read_lines
from fairseq_mm.data.story_text import check_encodable
from fairseq_mm.generation.defaults import PROMPT_STORY_PRESETS, SEED, VISUAL_STORY_CONSTRAINTS
from fairseq_mm.inference.checkpoint_files import checkpoint_files

_RULES = (
    Rule("prompt_model", excludes=("prompt", "prompts"), because="it generates the prompts"),
    Rule("best_of", excludes=("beam",), because="it is the number of stories that are sampled"),
    Rule("best_by", needs=("best_of",), excludes=("mbr",), because="each is an order of stories"),
    Rule("checkpoint", excludes=("compare",)),
    Rule("split", excludes=("n",), because="each line of a split has one story"),
    Rule("line", needs=("split",)),
    Rule("limit", needs=("split",)),
    Rule("images", needs=("html",)),
)
_PROMPTS_ONLY = Rule(
    "prompts_only",
    needs=("prompt_model",),
    excludes=("checkpoint", "inputs", "prompt", "prompts", "preset", *arguments.OF_SEARCH),
    because="no story is generated",
)
_OWN = {
    "prompts": ("prompt", "prompts", "prompt_model"),
    "albums": ("features", "compare", "weights", "html", "images"),
}
_NUMBER = {"type": positive, "metavar": "N"}
_PROMPTS: Rows = {
    "--prompt": ("Prompt; may be given again.", {**REPEATED, "metavar": "TEXT"}),
    "--prompts": (
        "File with one prompt per line; - is standard input.",
        {**REPEATED, "metavar": "FILE"},
    ),
    "--prompt-model": (
        "Language model that generates the prompts.",
        {"metavar": "PATH"},
    ),
    "--prompts-only": ("Write the generated prompts, and no stories.", FLAG),
}
_IMAGES: Rows = {
    "--compare": (
        "Models to compare, behind the inputs.",
        {"nargs": "+", "metavar": "[NAME=]CKPT"},
    ),
    "--limit": ("Maximum number of inputs of the split.", _NUMBER),
    "--line": (
        "Line of the split, from 0; may be given again.",
        {"type": int, "action": "append", "metavar": "N"},
    ),
    "--images": (
        "Images of a store, for the page; may be given again.",
        {**REPEATED, "metavar": "FOLDER"},
    ),
}
_CHOICE: Rows = {
    "--n": ("Stories per input, or in total without inputs.", _NUMBER),
    "--best-of": ("Sample N stories per input and write the --nbest best.", _NUMBER),
    "--best-by": (
        "Order: score, or ranking (against 9 other inputs).",
        {"choices": ("score", "ranking"), "metavar": "NAME"},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_inputs(parser, "Five images in the order of the story (- is a missing one)")
    names = ("checkpoint", "weights", "data", "split", "features")
    arguments.add(parser, *names, checkpoint={"required": False})
    arguments.add_rows(parser.add_argument_group("prompts"), _PROMPTS)
    arguments.add_rows(parser.add_argument_group("images"), _IMAGES)
    presets, constraints = PROMPT_STORY_PRESETS, VISUAL_STORY_CONSTRAINTS
    arguments.add_generation(parser, {}, presets=presets, constraints=constraints)
    arguments.add_rows(parser.add_argument_group("number and choice"), _CHOICE)
    arguments.add_output(parser, "jsonl", "output", "html")


def run(args: argparse.Namespace) -> int:
    arguments.check(args, [_PROMPTS_ONLY])
    if args.prompts_only:
        return write_prompts(args)
    arguments.require(args, "checkpoint", "compare")
    for text in args.compare or ():  # before torch and fairseq are imported, which takes seconds
        checkpoint_files(split_name(text)[1])
    prompts = read_prompts(args.prompt, args.prompts)
    return run_task(args, "tell", rules=_RULES, own=_OWN, change=lambda items: [*prompts, *items])


def read_prompts(texts: Sequence[str], files: Sequence[str]) -> list[Item]:
    """Return the prompts ``texts`` of the command line, and prompts from files, one per line.

    The file ``-`` is standard input.
    """
    prompts = []
    for number, text in enumerate(texts, start=1):
        check_encodable(text, f"--prompt {number}")
        prompts.append((f"prompt {number}", text))
    for path in files:
        name = "standard input" if path == "-" else path
        lines = read_lines("/dev/stdin" if path == "-" else path)
        prompts += [(f"{name}:{number}", line) for number, line in lines]
    return [
        Item(index, {"id": None, "prompt": text}, where=where)
        for index, (where, text) in enumerate(prompts)
    ]


def write_prompts(args: argparse.Namespace) -> int:
    """Generate and write prompts without stories (``--prompts-only``); return the exit status."""
    register_quietly()
    from fairseq_mm.inference.checkpoint_files import compute_digests
    from fairseq_mm.inference.generator import PROMPT_OPTIONS, generate_prompts
    from fairseq_mm.inference.pretrained import load_prompt_generator

    model = load_prompt_generator(args.prompt_model, device=args.device)
    options = {**PROMPT_OPTIONS, "seed": SEED if args.seed is None else args.seed}
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
