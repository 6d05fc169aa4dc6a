"""One file, nothing loaded, nothing unescaped, written whole."""

import sys

import numpy as np
import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.report import html_page
from fairseq_mm.report.html_page import plain_number, render_page, section, write_page


def test_title_heading_and_table_are_escaped():
    table = section("<i>", "key_values.html", rows=[("<key>", "a & b")])
    page = render_page("<script>", [table], subtitle="1 < 2")
    assert "<title>&lt;script&gt;</title>" in page
    assert "<h2>&lt;i&gt;</h2>" in page
    assert "1 &lt; 2" in page
    assert "&lt;key&gt;" in page
    assert "a &amp; b" in page
    assert "<script>" not in page


def test_without_jinja2_the_extra_is_named(monkeypatch):
    html_page._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        UserError, match=r"an HTML page needs the package jinja2.*fairseq-mm\[report"
    ):
        render_page("title", [])


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path):
    write_page(tmp_path / "page.html", "a\ud800b")
    assert (tmp_path / "page.html").read_text() == "a?b"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(
            (1e-05, "0.00001"),
            (165.0, "165"),
            (1234567.0, "1234567"),
            (0.0, "0"),
            (23.4567, "23.5"),
        ),
        *((0.5, "0.5"), (-0.00123456, "-0.00123"), (3, "3"), (1e-30, "1e-30"), (np.inf, "inf")),
    ],
)
def test_numbers_are_written_for_people(value, text):
    assert plain_number(value) == text
