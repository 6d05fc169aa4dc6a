"""The report in headless Chromium: pages of items, order, filter, keyboard, narrow and wide."""

import json

import pytest
from browser import Page

from fairseq_mm.report.html_page import Section, render_page
from fairseq_mm.report.report_items import PAGE_SIZE, ReportItem, SystemText, items_section
from fairseq_mm.report.system_scores import Difference, ScoreLine, difference_chart, scores_section
from fairseq_mm.report.text_faults import find_faults

NUM_ITEMS = 2 * PAGE_SIZE + 7
UNSCORED = (3, 60)
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


def scores_of(n):
    """Return an item's scores of both systems times 99; many items have equal differences."""
    return n % 10, n * 7 % 10


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    items = []
    for n in range(NUM_ITEMS):
        words = [f"item {n} of one{' one' if n == 90 else ''}", f"item {n} of two"]
        texts = [
            SystemText(find_faults(text), {} if n in UNSCORED else {"cider": score / 99})
            for text, score in zip(words, scores_of(n))
        ]
        items.append(ReportItem(f"{n}.jpg", texts, ["a long reference " * 4], {f"{n}.jpg": PIXEL}))
    systems = ["one", "two"]
    lines = [ScoreLine("cider", [0.5, 0.4], [Difference(-0.1, (-0.2, 0.05), 0.2)], "cider|" * 40)]
    chart = difference_chart(lines, systems)
    sections = [
        items_section(items, systems),
        scores_section(lines, systems, chart),
        Section("Training", "<p>curves</p>", is_folded=True),
    ]
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_page("Report", sections, has_contents=True))
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
        "[...document.querySelectorAll('.gallery > .item .key')].map((key) => key.textContent)"
    )


def shown(page):
    return page.run("document.getElementById('shown').textContent")


def choose(page, name, value):
    field = f"document.getElementById({json.dumps(name)})"
    kind = "input" if name == "words" else "change"
    page.run(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('{kind}'))")


def click(page, selector):
    page.run(f"document.querySelector({json.dumps(selector)}).click()")


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_its_screen(page, path, width):
    page.open(f"file://{path}", width)
    page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width


def test_items_have_pages_and_only_one_is_in_the_document(page):
    assert keys(page) == [f"{n}.jpg" for n in range(PAGE_SIZE)]
    assert shown(page) == f"1\u2013{PAGE_SIZE} of {NUM_ITEMS} items"
    assert page.run("document.images.length") == PAGE_SIZE
    assert page.run("document.querySelector('[data-turn=\"-1\"]').disabled")
    click(page, '.turn [data-turn="1"]')
    click(page, '.turn [data-turn="1"]')
    assert keys(page) == [f"{n}.jpg" for n in range(2 * PAGE_SIZE, NUM_ITEMS)]
    assert shown(page) == f"{2 * PAGE_SIZE + 1}\u2013{NUM_ITEMS} of {NUM_ITEMS} items"
    assert page.run("document.querySelector('.turn [data-turn=\"1\"]').disabled")
    page.wait_for("[...document.images].every((image) => image.naturalWidth === 1)")
    click(page, '[data-turn="-1"]')
    assert keys(page)[0] == f"{PAGE_SIZE}.jpg"


def test_items_are_sorted_over_all_pages_in_both_directions(page):
    def difference(n):
        one, two = scores_of(n)
        return two - one

    # items with equal differences keep their order, and items without scores come last
    scored = [n for n in range(NUM_ITEMS) if n not in UNSCORED]
    rising = [*sorted(scored, key=difference), *UNSCORED]
    falling = [*sorted(scored, key=lambda n: -difference(n)), *UNSCORED]
    choose(page, "order", "0")
    for expected in (rising, falling):
        found = keys(page)
        for _ in range(2):
            click(page, '[data-turn="1"]')
            found += keys(page)
        assert found == [f"{n}.jpg" for n in expected]
        click(page, "#direction")
    choose(page, "order", "-1")
    assert keys(page)[0] == "0.jpg"


def test_items_are_filtered_over_all_pages_by_words_and_faults(page):
    choose(page, "words", "ITEM 103")
    page.wait_for("document.querySelectorAll('.gallery > .item').length === 1")
    assert keys(page) == ["103.jpg"]
    assert shown(page) == f"1\u20131 of 1 item ({NUM_ITEMS} in all)"
    assert page.run("[...document.querySelectorAll('[data-turn]')].every((turn) => turn.hidden)")
    choose(page, "words", "77.JPG long")
    page.wait_for("document.querySelector('.gallery > .item .key').textContent === '77.jpg'")
    choose(page, "words", "no such word")
    page.wait_for("document.querySelectorAll('.gallery > .item').length === 0")
    assert shown(page) == f"0 items ({NUM_ITEMS} in all)"
    choose(page, "words", "")
    page.wait_for(f"document.querySelectorAll('.gallery > .item').length === {PAGE_SIZE}")
    choose(page, "fault", "repeat")
    assert keys(page) == ["90.jpg"]


def test_everything_is_reached_and_worked_by_the_keyboard(page):
    reached = []
    for _ in range(14):
        page.press("Tab")
        reached.append(
            page.run("document.activeElement.id || document.activeElement.textContent.trim()")
        )
    controls = ["Items", "Scores", "Training", "words", "fault", "order", "next", "next"]
    assert reached[: len(controls)] == controls
    page.run("document.querySelector('.bar [data-turn=\"1\"]').focus()")
    page.press("Enter")
    assert keys(page)[0] == f"{PAGE_SIZE}.jpg"


def test_a_link_opens_its_folded_section(page):
    assert not page.run("document.querySelector('#part3 details').open")
    click(page, 'nav a[href="#part3"]')
    page.wait_for("document.querySelector('#part3 details').open")


def test_a_page_that_is_opened_at_a_folded_section_shows_it(chromium_port, path):
    page = Page(chromium_port)
    page.open(f"file://{path}#part3")
    page.wait_for("document.querySelector('#part3 details').open")
    page.close()
