"""The report in headless Chromium: order, filter, narrow and wide screens."""

import json

import pytest
from browser import Page

from fairseq_mm.cli.report import ScoreLine, scores_section
from fairseq_mm.report.html_page import Section, render_page
from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section

NUM_ITEMS = 60
UNSCORED = (3, 50)
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    items = []
    for n in range(NUM_ITEMS):
        # many items have equal differences
        scores = (n % 10 / 99, n * 7 % 10 / 99)
        texts = [
            ItemText(f"item {n} of {name}", {} if n in UNSCORED else {"cider": score}, name)
            for name, score in zip(("one", "two"), scores)
        ]
        items.append(Item(f"{n}.jpg", texts, {f"{n}.jpg": PIXEL}, {}, ["a long reference " * 4]))
    lines = [
        ScoreLine(
            "cider",
            [0.5, 0.4],
            [{"difference": -0.1, "interval": (-0.2, 0.05), "p": 0.2}],
            "cider|" * 40,
        )
    ]
    sections = [
        scores_section(lines, ["one", "two"]),
        gallery_section(items, heading="Items", sortable=True),
        Section("What was run", "<p>a command</p>", is_folded=True),
    ]
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_page("Report", sections))
    return path


@pytest.fixture
def page(chromium_port, path):
    page = Page(chromium_port)
    page.open(f"file://{path}")
    yield page
    problems = page.problems
    page.close()
    assert problems == []


def keys(page):
    return page.run(
        "[...document.querySelectorAll('.item:not([hidden]) .key')].map((key) => key.textContent)"
    )


def choose(page, name, value):
    field = f"document.getElementById({json.dumps(name)})"
    kind = "input" if name == "words" else "change"
    page.run(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('{kind}'))")


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_its_screen(page, path, width):
    page.open(f"file://{path}", width)
    page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width


def test_items_are_sorted_in_both_directions(page):
    def difference(n):
        return n * 7 % 10 - n % 10

    # items with equal differences keep their order, and items without scores come last
    scored = [n for n in range(NUM_ITEMS) if n not in UNSCORED]
    rising = [*sorted(scored, key=difference), *UNSCORED]
    falling = [*sorted(scored, key=lambda n: -difference(n)), *UNSCORED]
    choose(page, "order", "2")
    for expected in (rising, falling):
        assert keys(page) == [f"{n}.jpg" for n in expected]
        page.run("document.querySelector('#direction').click()")
    choose(page, "order", "-1")
    assert keys(page) == [f"{n}.jpg" for n in range(NUM_ITEMS)]


def test_items_are_filtered_by_words(page):
    for words, expected in (("ITEM 43", ["43.jpg"]), ("7.JPG long", None), ("no such word", [])):
        choose(page, "words", words)
        assert keys(page) == expected if expected is not None else len(keys(page)) == 6
    assert page.run("document.getElementById('shown').textContent") == f"0 of {NUM_ITEMS} items"
