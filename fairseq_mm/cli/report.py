"""Shows hypotheses, images and references as one self-contained HTML page.

  fairseq-mm report --data data-bin/flickr8k --hypotheses generate.txt \\
      --images photos/ --output page.html

--hypotheses is a file in any format that `fairseq-mm score --data` accepts, and
its texts are assigned to the references in the same way. --scores takes files
that `fairseq-mm score --per-item` wrote, or any JSON lines with "id" and numbers.
--result is a file that `fairseq-mm score --json` wrote.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import REPEATED, Rows
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.report.html_page import Section

_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
ARGUMENTS: Rows = {
    "--hypotheses": ("Generated texts.", {"metavar": "FILE", "required": True}),
    "--images": (
        "Folder or .tar of the images; may be given again. Without it the page has no images.",
        {"metavar": "FOLDER", **REPEATED},
    ),
    "--scores": (
        "JSON lines with scores of each item, to sort by; may be given again.",
        {**_FILE, **REPEATED},
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
    from fairseq_mm.cli.score_inputs import existing_file, join_texts, read_score_references
    from fairseq_mm.cli.score_output import print_problems
    from fairseq_mm.cli.score_visual_stories import without_separators
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.item_gallery import gallery_section
    from fairseq_mm.report.training_curves import curves_section, read_training_log

    # before images are read, which takes minutes
    arguments.check_writable("--output", str(args.output))
    read = read_score_references(str(args.data), args.split, None)
    references = read.texts
    joined = join_texts(args.hypotheses, read)
    print_problems(args.hypotheses, joined.problems())
    texts = {key: without_separators(text) for key, text in joined.texts.items()}
    scores = _read_scores(args.scores, references)
    items, missing = _make_items(args, references, texts, scores)

    sections = []
    if args.result is not None:
        sections.append(figures_section(_read_result(args.result)))
    if args.training_log is not None:
        sections.append(curves_section(read_training_log(args.training_log)))
    note = "Words that no reference has are marked."
    if len(items) < len(references):
        note = f"The first {len(items):,} of {len(references):,} items. {note}"
    sections.append(gallery_section(items, heading="Items", note=note))
    files = {
        "hypotheses": args.hypotheses,
        "references": read.path,
        "dictionary": existing_file(args.data, "dict.txt"),
        "result": args.result and str(args.result),
        "training log": args.training_log and str(args.training_log),
    }
    command = shlex.join(["fairseq-mm", *sys.argv[1:]])
    sections.append(card_section(command, files, hypotheses=args.hypotheses))
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


def card_section(command: str, files: dict[str, Optional[str]], *, hypotheses: str) -> "Section":
    """Return a section of the page: command, hashes of files, decoding settings and versions.

    Args:
        command: Command line.
        files: Dict from the label of an input file in the section to its path; None as a path
            leaves the file out.
        hypotheses: Path of the generated texts. If the first lines of the file name the checkpoint
            and the decoding settings, both are added.
    """
    from fairseq_mm.metrics.result_card import result_card
    from fairseq_mm.report.html_page import section

    card: dict[str, Any] = result_card(command=command, files=files, generated=hypotheses)
    entries = list(card["files"].items())
    for role in ("checkpoints", "stores"):
        entries += [(role, entry) for entry in card.get(role, ())]
    rows = [("command", command), ("created", str(card["created"]))]
    for role, entry in entries:
        facts = f", {entry['bytes']:,} bytes" if "bytes" in entry else f" ({entry['missing']})"
        # files above a limit have no digest
        digest = f", sha256 {entry['sha256'][:16]}" if "sha256" in entry else ""
        rows.append((role, f"{entry['path']}{facts}{digest}"))
    if "decoding" in card:
        rows.append(("decoding", json.dumps(card["decoding"], ensure_ascii=False)))
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in card["versions"].items())))
    return section("What was run", "key_values.html", rows=rows)


def figures_section(result: Mapping[str, Any]) -> "Section":
    """Return a section of the page that is a table with one row per metric.

    ``result`` is the content of a file that ``fairseq-mm score --json`` wrote.
    """
    from fairseq_mm.metrics.score_rows import format_figure
    from fairseq_mm.report.html_page import section

    rows = []
    for entry in result["scores"]:
        number = format_figure(str(entry.get("metric")), entry.get("value"), decimals=4)
        remark = " ".join(str(entry[key]) for key in ("signature", "note") if entry.get(key))
        rows.append((entry.get("metric"), number, remark))
    return section("Figures", "scores.html", rows=rows)


def _make_items(
    args: argparse.Namespace,
    references: dict[str, list[str]],
    texts: dict[str, str],
    scores: dict[str, dict[str, float]],
) -> tuple[list, list[str]]:
    """Build the items of the page: an image, or image sequence, with its texts and scores.

    Args:
        args: Parsed command line.
        references: Dict from item id to references.
        texts: Dict from item id to hypothesis.
        scores: For each item id, a dict from the name of a score to its value.

    Returns:
        items: Items of the page.
        missing: Ids of the images that are not in the folders of ``--images``.
    """
    from tqdm.auto import tqdm

    from fairseq_mm.report.item_gallery import Item
    from fairseq_mm.report.thumbnails import Thumbnails

    thumbnails = Thumbnails(args.images, args.side) if args.images else None
    keys = list(references)[: args.limit]
    items, missing = [], []
    for key in tqdm(keys, "images", file=sys.stderr, leave=False, disable=None):
        images = {}
        # a visual story's id has the ids of its five images
        for name in key.split("\t") if thumbnails is not None else []:
            if name in thumbnails:
                images[name] = thumbnails.data_uri(name)
            else:
                missing.append(name)
        items.append(Item(key, texts.get(key), references[key], scores.get(key, {}), images))
    # some missing images are reported, but if all are missing, it is the wrong folder
    if thumbnails is not None and not any(item.images for item in items):
        raise UserError(
            f"--images {' '.join(args.images)}: has none of the {len(missing):,} images, such "
            f"as {missing[0]}."
        )
    return items, missing


def _read_scores(
    paths: list[Path], references: dict[str, list[str]]
) -> dict[str, dict[str, float]]:
    """Read the files of ``--scores``; return for each item id a dict from score name to value.

    Raises:
        UserError: if a file has an id that is not in ``references``, a dict with item ids as keys.
    """
    from fairseq_mm.data.input_files import read_objects

    scores: dict[str, dict[str, float]] = {}
    for path in paths:
        for where, record in read_objects(path):
            key = record.pop("id", None)
            if not isinstance(key, str) or key not in references:
                raise UserError(f"{where}: the split has no item {key!r}.")
            # --per-item also writes texts
            numbers = {x: float(y) for x, y in record.items() if isinstance(y, (int, float))}
            scores.setdefault(key, {}).update(numbers)
    return scores


def _read_result(path: Path) -> dict[str, Any]:
    from fairseq_mm.data.input_files import read_json

    result = read_json(path)
    if not isinstance(result, dict) or not isinstance(result.get("scores"), list):
        raise UserError(f'{path}: must be what score --json writes, but has no list "scores".')
    for number, entry in enumerate(result["scores"], 1):
        # null is a valid value: a metric that could not be computed, with a note
        value = entry.get("value") if isinstance(entry, dict) else "nothing"
        if value is not None and not isinstance(value, (int, float)):
            raise UserError(
                f"{path}: entry {number} of `scores` must have a number or null as its `value`, "
                f"but is {repr(entry)[:60]}."
            )
    return result
