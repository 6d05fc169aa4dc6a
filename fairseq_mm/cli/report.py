"""Hypotheses, images and references as one HTML page that loads nothing from elsewhere.

  fairseq-mm report --data data-bin/flickr8k --split test --hypotheses generate.txt \\
      --images photos/ --output page.html
  fairseq-mm report ... --scores per_item.jsonl --result scores.json --training-log train.log

HYPOTHESES is whatever `fairseq-mm score --data` takes, and is joined with the references as there;
--scores and --result are what it writes with --per-item and --json. Any JSON lines with "id" and
numbers will do for --scores.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Optional

from fairseq_mm.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data folder")
    parser.add_argument("--split", default="test", help="split of it (default: test)")
    parser.add_argument("--hypotheses", required=True, metavar="FILE", help="generated texts")
    parser.add_argument(
        "--images",
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder or .tar of the images; may be given again; without it a page of text",
    )
    parser.add_argument(
        "--scores",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.jsonl",
        help="scores by item, to sort by; may be given again",
    )
    parser.add_argument("--result", type=Path, metavar="FILE.json", help="figures of the whole")
    parser.add_argument(
        "--training-log", type=Path, metavar="FILE", help="log of fairseq-train, for curves"
    )
    parser.add_argument("--title", help="(default: DIR and split)")
    parser.add_argument("--limit", type=int, metavar="N", help="show only the first N items")
    parser.add_argument(
        "--side",
        type=int,
        default=224,
        metavar="PIXELS",
        help="images are made as small as this (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.html")


def run(args: argparse.Namespace) -> None:
    from fairseq_mm.cli.score_inputs import join_texts, read_score_references
    from fairseq_mm.cli.score_output import print_problems
    from fairseq_mm.cli.score_visual_stories import without_separators
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.item_gallery import gallery_section
    from fairseq_mm.report.run_card import card_section, figures_section
    from fairseq_mm.report.training_curves import curves_section
    from fairseq_mm.report.training_log import read_training_log

    for name in ("limit", "side"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} must be 1 or more, but is {value} instead.")
    folder = args.output.parent
    if not folder.is_dir():
        raise UserError(f"--output {args.output}: there is no folder {folder}.")
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
    scores: dict[str, dict[str, float]] = {}
    for path in paths:
        for number, line in enumerate(_text_of(path).split("\n"), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                key = record["id"]
            except (ValueError, TypeError, KeyError):
                raise UserError(
                    f'{path}:{number}: must be {{"id": "...", "name": number, ...}}, but is '
                    f"{line[:60]!r} instead."
                ) from None
            if key not in references:
                raise UserError(f"{path}:{number}: the split has no item {key!r}.")
            own = scores.setdefault(key, {})
            for name, value in record.items():
                if isinstance(value, (int, float)) and name != "id":
                    own[name] = float(value)
    return scores


def _read_result(path: Path) -> dict:
    try:
        result = json.loads(_text_of(path))
    except ValueError as error:
        raise UserError(f"{path}: must be what score --json writes, but is no JSON: {error}") from (
            None
        )
    if not isinstance(result, dict) or not isinstance(result.get("scores"), list):
        raise UserError(f'{path}: must be what score --json writes, but has no list "scores".')
    return result


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None


def _existing(path: Path) -> Optional[str]:
    return str(path) if path.is_file() else None
