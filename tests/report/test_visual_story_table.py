"""The strip of a story, and the table of several systems' stories."""

import re

from fairseq_mm.report.visual_story_sections import StoryRow, Strip, stories_section

KEYS = ["a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"]
URI = "data:image/jpeg;base64,QQ=="


def sentences_of(word):
    return [f"{word} {number}." for number in range(5)]


def test_each_image_stands_above_its_sentence():
    strip = Strip("my holiday", KEYS, [URI] * 5, [StoryRow("", sentences_of("We walked"))])
    body = stories_section([strip]).body
    head, rows = body.split("<tbody>")
    assert re.findall(r'alt="(\S+?)"', head) == KEYS
    assert re.findall(r"<figcaption>(\d)<", head) == ["1", "2", "3", "4", "5"]
    assert re.findall(r"<td>(.*?)</td>", rows) == sentences_of("We walked")
    # nothing but the five columns where no row has a name
    assert body.count("<col>") == 5
    assert "scope=row" not in body.replace('"', "")
    assert "<b>my holiday</b>" in body


def test_systems_are_rows_with_names_under_a_corner_that_is_empty():
    rows = [
        StoryRow("people", sentences_of("p"), by_people=True),
        StoryRow("glac", sentences_of("g"), note="-1.25"),
    ]
    body = stories_section([Strip("", KEYS, [URI] * 5, rows)]).body
    assert '<col class="name">' in body
    head, rows = body.split("<tbody>")
    assert head.count("<th ") == 5
    assert "<tr><td></td><th" in head
    rows = rows.split("</tr>")[:2]
    assert [re.findall(r'<th scope="row">(.*?)</th>', row) for row in rows] == [
        ["people"],
        ["glac<small>-1.25</small>"],
    ]
    assert [re.findall(r"<td>(.*?)</td>", row) for row in rows] == [
        sentences_of("p"),
        sentences_of("g"),
    ]
    assert ["class=people" in row for row in rows] == [True, False]
    assert "<header>" not in body


def test_everything_from_the_data_is_escaped():
    nasty = '"><script>'
    row = StoryRow(nasty, [nasty] * 5, note=nasty)
    body = stories_section([Strip(nasty, [nasty] * 5, [nasty, None] * 2 + [nasty], [row])]).body
    assert "<script" not in body
    assert 'src="">' not in body
