"""Write the table of repairs to docs/compatibility.md; --check only compares."""

import argparse
from pathlib import Path

from fairseq_mm.compat.activation import Repair, Scope
from fairseq_mm.compat.repairs import REPAIRS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
BEGIN, END = "<!-- repairs: written by scripts/list_repairs.py -->\n", "<!-- end of repairs -->\n"
# a longer list of names with an equal last part mentions the last part once
MOST_SINGLE_NAMES = 4
HEADINGS = {scope: f"### {scope.value[0].upper()}{scope.value[1:]}" for scope in Scope}


def format_names(repair: Repair) -> str:
    last_parts = {name.rpartition(".")[2] for name in repair.replaces}
    if len(repair.replaces) <= MOST_SINGLE_NAMES or len(last_parts) > 1:
        return ", ".join(f"`{name}`" for name in repair.replaces)
    modules = ", ".join(f"`{name.rpartition('.')[0]}`" for name in repair.replaces)
    return f"`{last_parts.pop()}` in {modules}"


def format_table() -> str:
    lines = []
    for scope, heading in HEADINGS.items():
        lines += [heading, "", "| replaced | without it | needed until |", "|---|---|---|"]
        for repair in REPAIRS:
            if repair.scope is scope:
                lines.append(f"| {format_names(repair)} | {repair.defect} | {repair.goes_when} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only compare; status 1 if they differ"
    )
    is_check = parser.parse_args().check
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    expected = f"{page[:start]}\n{format_table()}{page[end:]}"
    if is_check:
        if page != expected:
            print(f"{PAGE}: is not what the table of repairs says; run {Path(__file__).name}.")
        return int(page != expected)
    PAGE.write_text(expected)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
