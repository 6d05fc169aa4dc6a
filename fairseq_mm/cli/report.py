"""Shows texts, images and references as one self-contained HTML page.

  fairseq-mm report --data data-bin/flickr8k --hypotheses generate.txt \\
      --images photos/ --output page.html
  fairseq-mm report --data data-bin/flickr8k --hypotheses a.jsonl \\
      --hypotheses b.jsonl --name greedy --name beam --output page.html

The page has the images or videos with their texts first, then the scores, the
training curves, and the command. Errors that the text alone shows are marked: a
phrase that is said twice in a row, an unknown word, an end that is cut off. The
page counts these errors in the references as well.

--hypotheses is a file in any format that `fairseq-mm score --data` accepts, and
its texts are assigned to the references in the same way. For several systems,
which must have texts of the same items, the page has the scores of --metrics and
their differences from the first system, with 95 % intervals of a paired bootstrap.
For one system, --scores takes files that `fairseq-mm score --per-item` wrote, or
any JSON lines with "id" and numbers, and --result a file that `fairseq-mm score
--json` wrote.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import REPEATED, Rows
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED

if TYPE_CHECKING:
    from fairseq_mm.cli.report_systems import System
    from fairseq_mm.cli.score_inputs import References
    from fairseq_mm.report.figures import Chart
    from fairseq_mm.report.html_page import Section
    from fairseq_mm.report.report_items import ReportItem
    from fairseq_mm.report.system_scores import ScoreLine

_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
ARGUMENTS: Rows = {
    "--hypotheses": (
        "Generated texts; may be given again, for other systems.",
        {"metavar": "FILE", "required": True, "action": "append"},
    ),
    "--name": (
        "Name of a system, given as often as --hypotheses (default: names of the files).",
        {"metavar": "TEXT", **REPEATED},
    ),
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
    "--figures": (
        "Write the training curves, and the chart of the differences, into this folder as SVG and "
        "as PNG of 300 dots per inch.",
        {"metavar": "DIR"},
    ),
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


_COMPUTED: Rows = {
    "--metrics": (
        "Metrics, as of score, that need no further files (default with several --hypotheses: "
        "bleu,rouge_l,cider).",
        {"metavar": "NAMES"},
    ),
    "--tokenizer": (
        "Tokens, as of score (default: ptb).",
        {"choices": ("ptb", "m_rnn", "wp", "none")},
    ),
    "--bootstrap": (
        "Number of resamples for the intervals (default: 1000).",
        {"type": arguments.positive, "metavar": "N"},
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
    group = parser.add_argument_group("scores that the report computes")
    arguments.add_rows(group, _COMPUTED)
    arguments.add(group, "seed", seed={"default": SEED})


def run(args: argparse.Namespace) -> None:
    from fairseq_mm.cli import report_systems as systems_of
    from fairseq_mm.cli.score_inputs import read_score_references
    from fairseq_mm.report.figures import check_figures_folder, write_figures
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.report_items import items_section
    from fairseq_mm.report.system_scores import difference_chart, glance_section, lines_of_result
    from fairseq_mm.report.training_curves import read_training_log, training_charts

    # before texts are scored and images are read, which takes minutes
    arguments.check_writable("--output", str(args.output))
    systems_of.check_score_options(args)
    if args.figures is not None:
        check_figures_folder(args.figures)
        if args.training_log is None and len(args.hypotheses) == 1:
            raise UserError("--figures: needs --training-log or several --hypotheses.")
    curves = (
        None if args.training_log is None else training_charts(read_training_log(args.training_log))
    )
    references = read_score_references(str(args.data), args.split, None)
    arguments.check_outputs({"output": str(args.output)}, [references.path])
    systems = systems_of.read_systems(args, references)
    lines: list[ScoreLine] = []
    if args.metrics is not None:
        lines = systems_of.compute_scores(args, systems, references)
    systems_of.read_scores(args.scores, systems[0], references)
    if args.result is not None:
        lines = lines_of_result(systems_of.read_result(args.result, systems[0], references))
    items, missing = _make_items(args, references.texts, systems)
    names = [system.name for system in systems]
    is_part = len(items) < len(references.texts)
    first = items_section(items, names, first_of=len(references.texts) if is_part else None)
    differences = difference_chart(lines, names)
    sections = [glance_section(lines, names)] if lines else []
    sections.append(first)
    sections += _later_sections(args, systems, references, lines, differences, curves)
    page = render_page(
        args.title or f"{args.data.resolve().name}, {args.split}",
        sections,
        subtitle=f"{len(systems[0].texts):,} of {len(references.texts):,} items have a hypothesis",
        has_contents=True,
    )
    write_page(args.output, page)
    print(
        f"wrote {args.output}: {len(items):,} items, "
        f"{os.path.getsize(args.output) / 1e6:.1f} MB"
        + (f"; {len(missing):,} images not found, the first is {missing[0]}" if missing else "")
    )
    if args.figures is not None:
        charts = [*([differences] if differences else []), *(curves or ())]
        print(
            f"wrote {args.figures}: {', '.join(write_figures(args.figures, charts)) or 'nothing'}"
        )


def _later_sections(
    args: argparse.Namespace,
    systems: "Sequence[System]",
    references: "References",
    lines: "Sequence[ScoreLine]",
    differences: "Optional[Chart]",
    curves: "Optional[Sequence[Chart]]",
) -> "list[Section]":
    """Return the sections after the cards: scores, training curves, and the command.

    ``lines`` is empty for no scores, ``differences`` None for no chart of differences, and
    ``curves`` None without a training log.
    """
    from fairseq_mm.cli.report_systems import resampling_note
    from fairseq_mm.cli.score_inputs import existing_file
    from fairseq_mm.report.system_scores import scores_section
    from fairseq_mm.report.training_curves import curves_section

    sections = []
    names = [system.name for system in systems]
    if lines:
        note = resampling_note(args) if len(systems) > 1 else ""
        sections.append(scores_section(lines, names, differences, resampling=note))
    if curves is not None:
        sections.append(curves_section(curves))
    files: dict[str, Optional[str]] = {
        f"hypotheses {system.name}".rstrip(): system.path for system in systems
    }
    files["references"] = references.path
    files["dictionary"] = existing_file(args.data, "dict.txt")
    files["result"] = args.result and str(args.result)
    files["training log"] = args.training_log and str(args.training_log)
    command = shlex.join(["fairseq-mm", *sys.argv[1:]])
    # several files may have different decoding settings
    single = systems[0].path if len(systems) == 1 else None
    return [*sections, card_section(command, files, hypotheses=single)]


def card_section(
    command: str, files: dict[str, Optional[str]], *, hypotheses: Optional[str]
) -> "Section":
    """Return the section about the run, hidden until a click.

    It has the command, hashes of files, decoding settings and versions.

    Args:
        command: Command line.
        files: Dict from a label in the section to the path of an input file; None as a path leaves
            the file out.
        hypotheses: Path of the generated texts, whose first lines may name the checkpoint and the
            decoding settings; None for several files.
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
    return section("What was run", "key_values.html", rows=rows)._replace(is_folded=True)


def _make_items(
    args: argparse.Namespace, references: dict[str, list[str]], systems: "Sequence[System]"
) -> "tuple[list[ReportItem], list[str]]":
    """Build the items of the page: images, image sequences or videos, with texts and scores.

    Returns:
        items: Items of the page.
        missing: Ids of the images that are not in the folders of ``--images``.
    """
    from tqdm.auto import tqdm

    from fairseq_mm.cli.score_visual_stories import without_separators
    from fairseq_mm.report.report_items import ReportItem, SystemText
    from fairseq_mm.report.text_faults import find_faults
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
        shown = []
        for system in systems:
            text = system.texts.get(key)
            words = None if text is None else find_faults(without_separators(text))
            shown.append(SystemText(words, system.scores.get(key, {})))
        items.append(ReportItem(key, shown, references[key], images))
    # some missing images are reported, but if all are missing, it is the wrong folder
    if thumbnails is not None and not any(item.images for item in items):
        raise UserError(
            f"--images {' '.join(args.images)}: has none of the {len(missing):,} images, such "
            f"as {missing[0]}."
        )
    return items, missing
