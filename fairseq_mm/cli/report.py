"""Shows hypotheses, images and references as one self-contained HTML page.

  fairseq-mm report --data data-bin/flickr8k --hypotheses generate.txt \\
      --images photos/ --output page.html

--hypotheses takes the files that `fairseq-mm score --data` takes, and joins them
with the references in the same way. --scores takes the output of its --per-item,
or any JSON lines with "id" and numbers; --result takes the output of its --json.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rows
from fairseq_mm.errors import UserError

_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_REPEATED: dict[str, Any] = {"action": "append", "default": []}
ARGUMENTS: Rows = {
    "--hypotheses": ("Generated texts.", {"metavar": "FILE", "required": True}),
    "--images": (
        "Folder or .tar of the images; may be given again. Without it the page has no images.",
        {"metavar": "FOLDER", **_REPEATED},
    ),
    "--scores": (
        "JSON lines with scores of each item, to sort by; may be given again.",
        {**_FILE, **_REPEATED},
    ),
    "--result": ("JSON with the scores of the whole split.", _FILE),
    "--training-log": ("Log of fairseq-train, for the training curves.", _FILE),
    "--title": ("Title of the page (default: data folder and split).", {"metavar": "TEXT"}),
    "--limit": (
        "Maximum number of items (default: all).",
        {"type": arguments.positive, "metavar": "N"},
    ),
    "--side": (
        "Longer side of the images in pixels (default: 224).",
        {"type": arguments.positive, "default": 224, "metavar": "N"},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(
        parser,
        *("data", "split", "output"),
        data={"required": True, "type": Path},
        split={"default": "valid", "help": "Split of the data folder (default: valid)."},
        output={"required": True, "type": Path, "help": "Page to write."},
    )
    arguments.add_rows(parser, ARGUMENTS)


def run(args: argparse.Namespace) -> None:
    from fairseq_mm.cli.score_inputs import join_texts, read_score_references
    from fairseq_mm.cli.score_output import print_problems
    from fairseq_mm.cli.score_visual_stories import without_separators
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.item_gallery import gallery_section
    from fairseq_mm.report.run_card import card_section, figures_section
    from fairseq_mm.report.training_curves import curves_section
    from fairseq_mm.report.training_log import read_training_log

    arguments.check_writable("--output", str(args.output))
    read = read_score_references(str(args.data), args.split, None)
    references = read.texts
    joined = join_texts(args.hypotheses, read)
    print_problems(args.hypotheses, joined.problems())
    texts = {key: without_separators(text) for key, text in joined.texts.items()}
    scores = _read_scores(args.scores, references)
    items, missing = _items(args, references, texts, scores)

    sections = []
    if args.result is not None:
        sections.append(figures_section(_read_result(args.result), heading="Figures"))
    if args.training_log is not None:
        sections.append(curves_section(read_training_log(args.training_log), heading="Training"))
    note = "Words that no reference has are marked."
    if len(items) < len(references):
        note = f"The first {len(items):,} of {len(references):,} items. {note}"
    sections.append(gallery_section(items, heading="Items", note=note))
    sections.append(
        card_section(
            command=shlex.join(["fairseq-mm", *sys.argv[1:]]),
            files={
                "hypotheses": args.hypotheses,
                "references": read.path,
                "dictionary": _existing(args.data / "dict.txt"),
                "result": args.result and str(args.result),
                "training log": args.training_log and str(args.training_log),
            },
            hypotheses=args.hypotheses,
            heading="What was run",
        )
    )
    subtitle = f"{len(texts):,} of {len(references):,} items have a hypothesis"
    page = render_page(
        args.title or f"{args.data.resolve().name}, {args.split}", sections, subtitle=subtitle
    )
    write_page(args.output, page)
    print(
        f"wrote {args.output}: {len(items):,} items, "
        f"{os.path.getsize(args.output) / 1e6:.1f} MB"
        + (f"; {len(missing):,} images not found, the first is {missing[0]}" if missing else "")
    )


def _items(
    args: argparse.Namespace,
    references: dict[str, list[str]],
    texts: dict[str, str],
    scores: dict[str, dict[str, float]],
) -> tuple[list, list[str]]:
    """Cards, and the keys whose images are in none of ``--images``."""
    from tqdm import tqdm

    from fairseq_mm.report.item_gallery import Item
    from fairseq_mm.report.thumbnails import Thumbnails

    thumbnails = Thumbnails(args.images, args.side) if args.images else None
    shown = list(references)[: args.limit]
    items, missing = [], []
    for item in tqdm(shown, "images", file=sys.stderr, leave=False, disable=None):
        keys = item.split("\t") if thumbnails is not None else []
        found = [key for key in keys if key in thumbnails]
        missing += [key for key in keys if key not in thumbnails]
        images = {key: thumbnails.data_uri(key) for key in found}
        items.append(Item(item, texts.get(item), references[item], scores.get(item, {}), images))
    if thumbnails is not None and not any(item.images for item in items):
        raise UserError(
            f"--images {' '.join(args.images)}: has none of the {len(missing):,} images, such "
            f"as {missing[0]}."
        )
    return items, missing


def _read_scores(
    paths: list[Path], references: dict[str, list[str]]
) -> dict[str, dict[str, float]]:
    """Item -> name -> number, of all files together.

    Raises:
        UserError: for a line that is no object with "id", or whose id is not in the split.
    """
    from fairseq_mm.data.input_files import parse_object, read_lines

    scores: dict[str, dict[str, float]] = {}
    for path in paths:
        for number, line in read_lines(path):
            if not line.strip():
                continue
            record = parse_object(line, f"{path}:{number}")
            key = record.pop("id", None)
            if not isinstance(key, str) or key not in references:
                raise UserError(f"{path}:{number}: the split has no item {key!r}.")
            numbers = {x: float(y) for x, y in record.items() if isinstance(y, (int, float))}
            scores.setdefault(key, {}).update(numbers)
    return scores


def _read_result(path: Path) -> dict[str, Any]:
    from fairseq_mm.data.input_files import read_json

    result = read_json(path)
    if not isinstance(result, dict) or not isinstance(result.get("scores"), list):
        raise UserError(f'{path}: must be what score --json writes, but has no list "scores".')
    for number, entry in enumerate(result["scores"], 1):
        value = entry.get("value") if isinstance(entry, dict) else "nothing"
        if value is not None and not isinstance(value, (int, float)):
            raise UserError(
                f"{path}: entry {number} of `scores` must have a number or null as its `value`, "
                f"but is {repr(entry)[:60]}."
            )
    return result


def _existing(path: Path) -> Optional[str]:
    return str(path) if path.is_file() else None
