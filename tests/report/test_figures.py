"""Figures are elements of a page, or files of their own, and the same bytes every time."""

from xml.etree import ElementTree

from fairseq_mm.report.figures import COLORS, draw


def plot(axes):
    axes.plot([1, 2, 3], [3, 1, 2], "o-", color=COLORS["accent"], gid="curve")
    (bar,) = axes.bar([2], [1], color=COLORS["second"])
    bar.set_gid("bar")
    axes.set_title("$<é 猫>$ #1f6feb")
    return {"curve": ["<one>", "two", "three"], "bar": ["four"]}


def test_an_element_of_a_page_has_its_colors_titles_and_label():
    text = draw(plot, 4, 3, "a < b")
    svg = ElementTree.fromstring(text)
    assert (svg.tag, svg.get("role"), svg.get("aria-label")) == ("svg", "img", "a < b")
    assert svg.get("viewBox") == "0 0 288 216"
    assert "xmlns" not in text
    assert "metadata" not in text
    titles = [title.text for title in svg.find(".//g[@id='curve']").iter("title")]
    assert titles == ["<one>", "two", "three"]
    assert [title.text for title in svg.find(".//g[@id='bar']").iter("title")] == ["four"]
    assert "var(--accent)" in svg.find(".//g[@id='curve']/path").get("style")
    assert "$<é 猫>$ #1f6feb" in [words.text for words in svg.iter("text")]
    # nothing of the style reaches the rest of the page
    assert all(style.text.startswith("svg ") for style in svg.iter("style"))


def test_a_figure_is_the_same_whatever_was_set_or_drawn_before(monkeypatch):
    import matplotlib

    expected = draw(plot, 4, 3, "label")
    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 9.0)
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 30.0)
    assert draw(plot, 4, 3, "label") == expected
    assert matplotlib.rcParams["lines.linewidth"] == 9.0
