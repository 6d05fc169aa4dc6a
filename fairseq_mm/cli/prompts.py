"""Reads prompts, and writes prompts of a language model, for ``fairseq-mm tell``."""

import argparse
import json
import sys
from collections.abc import Sequence

from fairseq_mm.cli.records import Item, counted, open_output
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.input_files import read_lines
from fairseq_mm.data.story_text import check_encodable
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED


def read_prompts(texts: Sequence[str], files: Sequence[str]) -> list[Item]:
    """Return the prompts of the command line (``texts``) and of files with one prompt per line.

    The file ``-`` is standard input.
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
