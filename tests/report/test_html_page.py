"""One file, nothing loaded, nothing unescaped, written whole."""

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.report.html_page import Section, key_value_table, render_page, write_page


def test_title_heading_and_table_are_escaped():
    table = key_value_table([("<key>", "a & b")])
    page = render_page("<script>", [Section("<i>", table)], subtitle="1 < 2")
    assert "<title>&lt;script&gt;</title>" in page
    assert "<h2>&lt;i&gt;</h2>" in page
    assert "1 &lt; 2" in page
    assert "&lt;key&gt;" in page
    assert "a &amp; b" in page
    assert "<script>" not in page


def test_style_and_script_of_a_kind_of_section_stand_once():
    section = Section("", "text", style=".a {}", script="run();")
    page = render_page("title", [section, section])
    assert page.count(".a {}") == 1
    assert page.count("run();") == 1
    assert page.count("<section>text</section>") == 2


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_page(path, "old")

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UserError, match=r"page\.html: cannot be written \(No space left"):
        write_page(path, "new")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "old"


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path):
    write_page(tmp_path / "page.html", "a\ud800b")
    assert (tmp_path / "page.html").read_text() == "a?b"
