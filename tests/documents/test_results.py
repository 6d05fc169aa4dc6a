"""Figures on the pages are those of docs/results/*.json, wherever a comment names a result.

In a table, `<!-- FILE.RESULT -->` is in the first cell of a row. A column is compared if its title
is a figure of the result, and a column "here" by the figure that the column "measure" names.
Elsewhere, `<!-- FILE.RESULT FIGURE -->` follows the figure.
"""

import json
import re

from pages import DOCS, PAGES

RESULTS = {
    f"{path.stem}.{name}": result
    for path in sorted((DOCS / "results").glob("*.json"))
    for name, result in json.loads(path.read_text("utf-8")).items()
}
ROW = re.compile(r"<!-- ([\w.]+) -->")
FIGURE = re.compile(r"(\S+)<!-- ([\w.]+) (.+?) -->")


def cells(line):
    return [ROW.sub("", cell).strip() for cell in line.strip().strip("|").split("|")]


def quoted_figures(text):
    """Yield the name of a result, a figure's name and its value on the page."""
    for value, name, figure in FIGURE.findall(text):
        yield name, figure, value
    titles = []
    for line, following in zip(text.splitlines(), [*text.splitlines()[1:], ""], strict=True):
        if following.startswith("|---"):
            titles = cells(line)
        name = ROW.search(line) if line.startswith("|") else None
        if name is None:
            continue
        row = dict(zip(titles, cells(line), strict=True))
        if "measure" in row:
            yield name[1], row["measure"], row["here"]
            continue
        for title in sorted(row.keys() & RESULTS[name[1]]["figures"].keys()):
            yield name[1], title, row[title]


QUOTED = [found for page in PAGES for found in quoted_figures(page.read_text("utf-8"))]


def test_pages_have_the_figures_of_the_results():
    assert len(QUOTED) > 100
    wrong = [x for x in QUOTED if RESULTS[x[0]]["figures"][x[1]] != x[2]]
    assert wrong == []


def test_every_result_is_quoted_and_says_how_it_was_measured():
    assert sorted(RESULTS.keys() - {name for name, *_ in QUOTED}) == []
    for result in RESULTS.values():
        assert {"system", "split", "command", "figures"} <= result.keys()
