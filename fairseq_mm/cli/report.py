"""Shows texts, images and references as one self-contained HTML page.

  fairseq-mm report --data data-bin/flickr8k --hypotheses generate.txt \\
      --metrics bleu,rouge_l,cider --images photos/ --output page.html
  fairseq-mm report --data data-bin/flickr8k --hypotheses a.jsonl \\
      --hypotheses b.jsonl --name greedy --name beam --output page.html

The page has the scores of --metrics, the images or videos with their texts, which
can be sorted by a score, and the command.

--hypotheses is a file that `fairseq-mm score --data` accepts. Several systems must have
texts of the same items. --scores takes files of `fairseq-mm score --per-item`, or any
JSON lines with "id" and numbers.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from tqdm.auto import tqdm

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import POSITIVE, REPEATED, Rows
from fairseq_mm.cli.records import counted
from fairseq_mm.cli.score import (
    COMPARE_SAMPLES,
    compare,
    print_problems,
    score_systems,
    split_metrics,
)
from fairseq_mm.cli.score_inputs import (
    References,
    find_source,
    join_texts,
    read_score_references,
    without_separators,
)
from fairseq_mm.data.elapsed_time import elapsed_time
from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED
from fairseq_mm.metrics.hypotheses import allows_unk
from fairseq_mm.metrics.result_card import result_card
from fairseq_mm.metrics.score_rows import format_figure
from fairseq_mm.report.html_page import render_page, section, write_page
from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section
from fairseq_mm.report.thumbnails import Thumbnails

# the others need transcripts, training texts or sentences, and score computes them
METRICS = (
    *("bleu", "meteor", "meteor_vist", "rouge", "rouge_l", "cider", "content_f1"),
    *("diversity", "self_bleu", "seq_rep"),
)
DEFAULT_METRICS = "bleu,rouge_l,cider"
_SIDE = 224  # pixels of the longer side of an image
_FILES = {**REPEATED, "metavar": "FILE"}
ARGUMENTS: Rows = {
    "--hypotheses": ("Texts of a system; repeatable.", {"required": True, **_FILES}),
    "--name": (
        "Name of a system, for each of --hypotheses (default: their names).",
        {**REPEATED, "metavar": "TEXT"},
    ),
    "--scores": ("JSON lines with scores of the first system's items; repeatable.", _FILES),
    "--title": ("Title of the page (default: data folder and split).", {"metavar": "TEXT"}),
    "--limit": ("Maximum number of items (default: all).", POSITIVE),
    "--metrics": (
        "Metrics, as of score, that need no further files (default with several --hypotheses: "
        "bleu,rouge_l,cider).",
        {"metavar": "NAMES"},
    ),
}


class ScoreLine(NamedTuple):
    """Values of one score, such as BLEU-4, for all systems."""

    name: str
    values: Sequence[Optional[float]]  # score of each system; None for a missing score
    # for each system after the first, the record of :func:`.score.compare`; None if missing
    differences: Sequence[Optional[Mapping[str, Any]]] = ()
    signature: str = ""
    note: str = ""  # remark, or the reason why the score is missing


class System(NamedTuple):
    """Texts of one system, and their scores."""

    name: str  # name on the page; empty for a single system
    path: str  # path of the file of texts
    texts: Mapping[str, str]  # dict from item id to text
    # dict from item id to a dict from the name of a score to its value
    scores: dict[str, dict[str, float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(
        parser,
        *("data", "split", "output", "images"),
        data={"required": True, "type": Path},
        split={"help": "Split of the data folder (default: the split of --hypotheses, or valid)."},
        output={"required": True, "type": Path, "help": "Page to write."},
    )
    arguments.add_rows(parser, ARGUMENTS)


def run(args: argparse.Namespace) -> None:
    # before texts are scored and images are read, which takes minutes
    arguments.check_writable("--output", str(args.output))
    if len(args.hypotheses) > 1:
        args.metrics = args.metrics or DEFAULT_METRICS
    if args.metrics is not None:
        split_metrics(args.metrics, METRICS)
    _, args.split = find_source(args.hypotheses[0], str(args.data), args.split)
    split = open_split(args.data, args.split)
    references = read_score_references(split, None)
    arguments.check_outputs({"output": str(args.output)}, [references.path])
    systems = read_systems(args, references)
    names = [system.name for system in systems]
    sections = []
    if args.metrics is not None:
        lines = compute_scores(args, systems, references)
        note = (
            f"Differences have 95 % intervals of a paired bootstrap over the items "
            f"({COMPARE_SAMPLES:,} samples, seed {SEED}); those without 0 are bold. Of twenty "
            "differences that are 0 in truth, one is bold on average."
        )
        values = {"lines": lines, "systems": names, "number": format_figure}
        values["resampling"] = note if names[1:] else ""
        sections.append(section("Scores", "system_scores.html", **values))
    read_scores(args.scores, systems[0], references)
    thumbnails = Thumbnails(args.images, _SIDE)
    items = []
    keys = list(references.texts)[: args.limit]
    for key in tqdm(keys, "images", file=sys.stderr, leave=False, disable=None):
        images = thumbnails.find(key) if args.images else {}
        texts = [
            ItemText(
                without_separators(system.texts.get(key, "no hypothesis")),
                system.scores.get(key, {}),
                system.name,
            )
            for system in systems
        ]
        items.append(Item(key, texts, images, references=references.texts[key]))
    # some missing images are reported, but if all are missing, it is the wrong folder
    if args.images and not any(item.images for item in items):
        raise UserError(
            f"--images {' '.join(args.images)}: has none of the {len(thumbnails.missing):,} images"
            f", such as {thumbnails.missing[0]}."
        )
    total = len(references.texts)
    note = f"The first {len(items):,} of {total:,} items." if len(items) < total else ""
    sections.append(gallery_section(items, heading="Items", note=note, sortable=True))
    files: dict[str, Optional[str]] = {
        f"hypotheses {system.name}".rstrip(): system.path for system in systems
    }
    files["references"] = references.path
    # several files may have different decoding settings
    card: dict[str, Any] = result_card(files, systems[0].path if len(systems) == 1 else None)
    entries = list(card["files"].items())
    for role in ("checkpoints", "stores"):
        entries += [(role, entry) for entry in card.get(role, ())]
    rows = [(name, card[name]) for name in ("command", "created")]
    rows += [(role, ", ".join(f"{k} {v}" for k, v in entry.items())) for role, entry in entries]
    if "decoding" in card:
        rows.append(("decoding", json.dumps(card["decoding"], ensure_ascii=False)))
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in card["versions"].items())))
    run_section = section("What was run", "key_values.html", rows=rows)
    sections.append(run_section._replace(is_folded=True))
    title = args.title or f"{args.data.resolve().name}, {args.split}"
    subtitle = f"{len(systems[0].texts):,} of {total:,} items have a hypothesis"
    write_page(args.output, render_page(title, sections, subtitle=subtitle))
    print(
        f"wrote {args.output}: {counted(len(items), 'item')}, "
        f"{os.path.getsize(args.output) / 1000:,.0f} kB{thumbnails.describe_missing()}"
    )


def read_systems(args: argparse.Namespace, references: References) -> list[System]:
    """Read the files of ``--hypotheses``; problems of the texts are printed on stderr."""
    paths = args.hypotheses
    names = args.name or ([""] if len(paths) == 1 else [Path(path).stem for path in paths])
    if not args.name and len(set(names)) < len(names):
        names = list(paths)
    if len(names) != len(paths) or len(set(names)) < len(names):
        raise UserError(
            f"--name: must be given once for each of the {len(paths)} --hypotheses, each time "
            f"with another name, but is {', '.join(names)}."
        )
    systems: list[System] = []
    for name, path in zip(names, paths):
        joined = join_texts(path, references)
        print_problems(path, joined.problems())
        systems.append(System(name, path, joined.texts, {}))
        odd = [key for key in joined.texts if key not in systems[0].texts]
        odd += [key for key in systems[0].texts if key not in joined.texts]
        if odd:
            raise UserError(
                f"{path}: must have texts for the items of {paths[0]}, but one of the files lacks "
                f"{len(odd):,} items of the other, such as {odd[0]}."
            )
    return systems


def compute_scores(
    args: argparse.Namespace, systems: Sequence[System], references: References
) -> list[ScoreLine]:
    """Compute the scores of all systems, and their differences from the first system.

    The scores of single items are added to ``System.scores``.
    """
    metrics, figures = split_metrics(args.metrics, METRICS)
    ids = list(systems[0].texts)
    with elapsed_time("scores") as show:
        scored = score_systems(
            [[system.texts[key] for key in ids] for system in systems],
            [references.texts[key] for key in ids],
            metrics,
            "ptb",
            unk=[allows_unk(system.path) for system in systems],
            show=show,
        )
        tables = [[row for row in rows if row.name in figures] for _, rows in scored]
        compared = [
            {x["metric"]: x for x in compare(table, tables[0], samples=COMPARE_SAMPLES, seed=SEED)}
            for table in tables[1:]
        ]
    lines = []
    for rows in zip(*tables):
        name = rows[0].name
        # signatures differ if one system may write <unk> and another may not
        signature, note = (
            "; ".join(dict.fromkeys(filter(None, texts)))
            for texts in zip(*((row.signature, row.note) for row in rows))
        )
        differences = [entries.get(name) for entries in compared]
        values = [row.value for row in rows]
        lines.append(ScoreLine(name, values, differences, signature, note))
        for system, row in zip(systems, rows):
            for key, value in zip(ids, row.per_item or ()):
                if value is not None:
                    system.scores.setdefault(key, {})[name] = value
    return lines


def read_scores(paths: Sequence[str], system: System, references: References) -> None:
    """Read the files of ``--scores`` into ``System.scores``."""
    for path in paths:
        for where, record in read_objects(path):
            key = str(record.pop("id", None))
            # --per-item also writes texts
            expected = system.texts.get(key)
            if expected != record.get("hypothesis", expected) or key not in references.texts:
                raise UserError(
                    f"{where}: must have scores of an item and its text in {system.path}, but has "
                    f"those of {key!r}, {str(record.get('hypothesis'))[:60]!r}."
                )
            numbers = {x: float(y) for x, y in record.items() if isinstance(y, (int, float))}
            system.scores.setdefault(key, {}).update(numbers)
