"""Tables of a page: the run and its overall results."""

import json
from collections.abc import Mapping
from typing import Any, Optional

from fairseq_mm.metrics.result_card import result_card
from fairseq_mm.metrics.score_rows import format_figure
from fairseq_mm.report.html_page import Section, section


def card_section(
    *, command: str, files: dict[str, Optional[str]], hypotheses: str, heading: str
) -> Section:
    """Return a section with the command, files with hashes, decode settings and versions.

    Args:
        command: Command line.
        files: Role -> path of an input file; None is left out.
        hypotheses: Path of the generated texts; its head names checkpoint and decode settings.
        heading: Plain text.
    """
    card = result_card(command=command, files=files, generated=hypotheses)
    rows = [("command", command), ("created", str(card["created"]))]
    for role, entry in card["files"].items():
        rows.append((role, _file_line(entry)))
    for role in ("checkpoints", "stores"):
        rows += [(role, _file_line(entry)) for entry in card.get(role, ())]
    if "decoding" in card:
        rows.append(("decoding", json.dumps(card["decoding"], ensure_ascii=False)))
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in card["versions"].items())))
    return section(heading, "key_values.html", rows=rows)


def _file_line(entry: Mapping[str, Any]) -> str:
    parts = [str(entry["path"])]
    if "missing" in entry:
        return f"{parts[0]} ({entry['missing']})"
    parts.append(f"{entry['bytes']:,} bytes")
    if "sha256" in entry:
        parts.append(f"sha256 {entry['sha256'][:16]}")
    return ", ".join(parts)


def figures_section(result: Mapping[str, Any], *, heading: str) -> Section:
    """Return a table of the results of ``fairseq-mm score --json``, one row per result."""
    rows = []
    for entry in result["scores"]:
        number = format_figure(str(entry.get("metric")), entry.get("value"), decimals=4)
        remark = " ".join(str(entry[key]) for key in ("signature", "note") if entry.get(key))
        rows.append((entry.get("metric"), number, remark))
    return section(heading, "scores.html", rows=rows)
