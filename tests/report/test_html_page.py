"""One file, nothing loaded, nothing unescaped, written whole."""

from fairseq_mm.report.html_page import render_page, section, write_page


def test_title_heading_and_table_are_escaped():
    table = section("<i>", "key_values.html", rows=[("<key>", "a & b")])
    page = render_page("<script>", [table], subtitle="1 < 2")
    assert "<title>&lt;script&gt;</title>" in page
    assert "<h2>&lt;i&gt;</h2>" in page
    assert "1 &lt; 2" in page
    assert "&lt;key&gt;" in page
    assert "a &amp; b" in page
    assert "<script>" not in page


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path):
    write_page(tmp_path / "page.html", "a\ud800b")
    assert (tmp_path / "page.html").read_text() == "a?b"
