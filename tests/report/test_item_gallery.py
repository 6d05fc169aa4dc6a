"""Cards of images that a query found."""

import re

from fairseq_mm.report.item_gallery import Item, gallery_section


def test_everything_from_the_data_is_escaped():
    nasty = '<script>alert("1")</script>'
    item = Item(key=nasty, text=nasty, scores={nasty: 1.0}, images={nasty: '"><script>'})
    body = gallery_section([item], heading="Nearest", note=nasty).body
    assert "<script" not in body
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in body


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
