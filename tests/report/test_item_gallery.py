"""Cards of images that a query found."""

import json
import re
from html import unescape

from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section


def test_everything_from_the_data_is_escaped():
    nasty = '<script>alert("1")</script>'
    text = ItemText(nasty, {nasty: 1.0}, nasty)
    item = Item(nasty, [text], {nasty: '"><script>'}, {}, [nasty], nasty)
    body = gallery_section([item], heading="Nearest", note=nasty, sortable=True).body
    assert "<script" not in body
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in body


def test_a_sequence_shows_all_its_images():
    images = {"1.jpg": "data:image/jpeg;base64,QQ==", "2.jpg": "data:image/jpeg;base64,Qg=="}
    body = gallery_section([Item("1.jpg\t2.jpg", [ItemText("a story")], images)], heading="").body
    assert re.findall(r'alt="(\S+)"', body) == ["1.jpg", "2.jpg"]
    assert "1.jpg, 2.jpg</div>" in body


def numbers_of(body):
    return [json.loads(unescape(text)) for text in re.findall(r'data-numbers="(.*?)"', body)]


def test_cards_of_two_systems_are_sorted_by_each_score_and_by_the_difference():
    texts = [ItemText("a", {"cider": 0.25}, "x"), ItemText("b", {"cider": 1.0}, "y")]
    items = [Item("1", texts), Item("2", [texts[0], ItemText("c", {}, "y")])]
    body = gallery_section(items, heading="", sortable=True).body
    menu = [unescape(text) for text in re.findall(r'<option value="\d+">(.*?)<', body)]
    assert menu == ["cider x", "cider y", "cider y \u2212 x"]
    assert numbers_of(body) == [[0.25, 1.0, 0.75], [0.25, None, None]]
