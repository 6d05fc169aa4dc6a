"""Cards of items."""

import json
import re
from html import unescape

from fairseq_mm.report.item_gallery import Item, gallery_section


def test_everything_from_the_data_is_escaped():
    nasty = '<script>alert("1")</script>'
    item = Item(
        key=nasty,
        hypothesis=nasty,
        references=[nasty],
        scores={nasty: 1.0},
        images={nasty: '"><script>'},
    )
    body = gallery_section([item], heading="Items", note=nasty).body
    assert "<script" not in body
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in body


def test_words_that_no_reference_has_are_marked():
    item = Item("a.jpg", "A red dog, running", ["a dog runs", "The red one."])
    body = gallery_section([item], heading="").body
    assert "A red dog, <mark>running</mark>" in body


def test_without_references_nothing_is_marked():
    assert "<mark>" not in gallery_section([Item("a.jpg", "a dog")], heading="").body


def test_scores_can_be_sorted_by_and_are_valid_json():
    items = [
        Item("a.jpg", "a", scores={"cider": 0.5, "true": 1}),
        Item("b.jpg", None, scores={"cider": float("nan")}),
    ]
    body = gallery_section(items, heading="").body
    attributes = [json.loads(unescape(text)) for text in re.findall(r'data-scores="(.*?)"', body)]
    assert attributes == [{"cider": 0.5, "true": 1}, {}]
    choices = [json.loads(unescape(text)) for text in re.findall(r"<option value=.(.*?).>", body)]
    assert choices == [None, ["cider", False], ["cider", True], ["true", False], ["true", True]]
    assert "no hypothesis" in body


def test_scores_have_the_decimals_of_the_other_figures_and_no_exponent():
    scores = {"bleu4": 4.813e-05, "length": 12, "words": 123456.0, "true": 1}
    body = gallery_section([Item("a.jpg", "a", scores=scores)], heading="").body
    shown = re.findall(r"<b>(\w+)</b> (\S+)</span>", body)
    assert shown == [
        ("bleu4", "0.0000"),
        ("length", "12.00"),
        ("words", "123456.0000"),
        ("true", "1.0000"),
    ]


def test_a_sequence_shows_all_its_images():
    images = {"1.jpg": "data:image/jpeg;base64,QQ==", "2.jpg": "data:image/jpeg;base64,Qg=="}
    body = gallery_section([Item("1.jpg\t2.jpg", "a story", images=images)], heading="").body
    assert re.findall(r'alt="(\S+)"', body) == ["1.jpg", "2.jpg"]
    assert "1.jpg, 2.jpg</div>" in body
