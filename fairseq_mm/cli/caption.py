"""Generate captions of images.

  fairseq-mm caption dog.jpg --checkpoint checkpoints/m_rnn
  fairseq-mm caption images/ a.tar --checkpoint best.pt --weights mobilenet.pt
  fairseq-mm caption data-bin/flickr8k --split valid --checkpoint best.pt
  fairseq-mm caption --features f.h5 --checkpoint best.pt --nbest 3 --jsonl

Prints one line per image (path, tab, caption) in input order. Unreadable images
are reported on stderr and skipped; the exit status is then 2.
"""

import argparse
import sys
from typing import Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rule
from fairseq_mm.cli.generate import run_task
from fairseq_mm.cli.records import Item, Result, counted
from fairseq_mm.data.output_file import write_file
from fairseq_mm.generation.defaults import CAPTIONS

_RULES = (Rule("checkpoint", needs=("inputs", "features"), because="it captions images"),)
_OWN = {"structures": [*map(arguments.name_of, arguments.STRUCTURES)]}
_OUTPUT: arguments.Rows = {
    "--nearest": (
        "Add the nearest training caption by CIDEr-D.",
        {"metavar": "DATA"},
    ),
    "--submission": (
        "Write the captions for COCO's evaluation server, too.",
        {"metavar": "FILE"},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_inputs(parser, "Image, folder (with its subfolders) or .tar of images")
    arguments.add(parser, "checkpoint", "weights", "embedding", "split", "features")
    arguments.add_generation(parser, CAPTIONS)
    group = parser.add_argument_group("candidates by part-of-speech sequences (sc_nlm)")
    arguments.add_rows(group, arguments.STRUCTURES)
    arguments.add_rows(arguments.add_output(parser, "jsonl", "output"), _OUTPUT)


def run(args: argparse.Namespace) -> int:
    from fairseq_mm.metrics.submissions import coco_image_ids, coco_results

    best: dict[str, str] = {}
    if args.nearest:
        from fairseq_mm.data.records import open_split
        from fairseq_mm.metrics.cider import NearestCaption

        training = open_split(args.nearest, "train")
        lines, keys = training.tokens(), training.items
        index = NearestCaption(lines, keys)

    def check_ids(items: list[Item]) -> list[Item]:
        # before the captions are generated: an id may be no number of COCO
        coco_image_ids(item.name for item in items)
        return items

    def extra(result: Result) -> dict[str, Any]:
        text = best[str(result.item.record["id"])] = result.hypotheses[0][0].text
        if not args.nearest:
            return {}
        place, similarity = index.nearest(text.split())
        nearest = {"caption": " ".join(lines[place]), "id": keys[place]}
        return {"nearest": {**nearest, "cider_d": round(similarity, 4)}}

    status = run_task(
        args,
        "caption",
        rules=_RULES,
        own=_OWN,
        change=check_ids if args.submission else list,
        extra=extra if args.submission or args.nearest else None,
    )
    if args.submission:
        write_file(args.submission, coco_results(best))
        number = counted(len(best), "caption")
        print(f"wrote {args.submission}: {number}", file=sys.stderr)
    return status
