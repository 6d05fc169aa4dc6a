"""Heat maps of words' attention: every weight in its cell, images once, everything escaped."""

import re

import numpy as np

from fairseq_mm.report.html_page import render_page
from fairseq_mm.report.visual_story_sections import (
    EmbeddedImage,
    SentenceAttention,
    attention_section,
    story_section,
)

URI = "data:image/jpeg;base64,QQ=="
IMAGES = [EmbeddedImage(URI, 40, 30), None, *[EmbeddedImage(URI, 40, 30)] * 3]


def looking(number, *, columns, words=("a", "dog"), known=(True, False)):
    """Weights whose percentages are all different: word t of sentence k gives t + 1 parts of
    ten to column k, and the rest to the next."""
    weights = np.zeros((len(words) + 1, columns))
    for t in range(len(weights)):
        weights[t, number] = (t + 1) / 10
        weights[t, (number + 1) % columns] = 1 - (t + 1) / 10
    log_probs = np.log(np.full(len(weights), 0.25))
    return SentenceAttention(
        " ".join(words), [*words, "<sent>"], [*known, True], log_probs, weights
    )


def rows_of(html):
    """Label and numbers of the rows of the tables of words."""
    rows = re.findall(r"<tr[^>]*><th scope=\"row\">(.*?)</th>(.*?)</tr>", html, re.DOTALL)
    return [
        (re.sub("<.*?>", "", label), [int(x) for x in re.findall(r">(\d+)</td>", cells)])
        for label, cells in rows
    ]


def test_each_weight_stands_under_its_word_and_beside_its_image():
    sentences = [looking(k, columns=5) for k in range(5)]
    body = attention_section(sentences, IMAGES, image_padding_mask=[0, 1, 0, 0, 0]).body
    overview, *blocks = re.split(r"<div><h3>Sentence \d", body)
    assert len(blocks) == 5
    for k, block in enumerate(blocks):
        heads = re.findall(r'<th scope="col" class="(.*?)" title="(.*?)">(.*?)</th>', block)
        assert [head[2] for head in heads] == ["a", "dog", "end"]
        assert [head[0] for head in heads] == ["word", "word unknown", "word end"]
        assert heads[0][1] == "probability 0.25"
        expected = np.zeros((5, 3), dtype=int)
        expected[k], expected[(k + 1) % 5] = [10, 20, 30], [90, 80, 70]
        labels, numbers = zip(*rows_of(block))
        assert labels == ("1", "2", "3", "4", "5")
        assert list(numbers) == expected.tolist()
        own = re.findall(r'<tr class="own"><th scope="row">.*?(\d)', block.replace("image ", ""))
        assert len(own) == 1
    # the mean leaves the end out: of 10 and 20 per cent
    assert re.findall(r"<br>(.*?)</th>", overview) == ["1", "2 (missing)", "3", "4", "5"]
    labels, numbers = zip(*rows_of(overview))
    assert set(labels) == {"a dog"}
    assert [row[k] for k, row in enumerate(numbers)] == [15] * 5
    assert [row[(k + 1) % 5] for k, row in enumerate(numbers)] == [85] * 5
    rows = [re.findall("<td.*?>", row) for row in overview.split("<tbody>")[1].split("</tr>")[:5]]
    assert [["mine" in cell for cell in row] for row in rows] == np.eye(5, dtype=bool).tolist()


def test_slices_are_rows_and_images_heads():
    sentences = [looking(k, columns=6) for k in range(5)]
    body = attention_section(sentences, IMAGES).body
    blocks = re.split(r"<div><h3>", body)[1:]
    for k, block in enumerate(blocks):
        assert f"Sentence {k + 1}, of image {k + 1}</h3>" in block
        labels, numbers = zip(*rows_of(block))
        assert labels == tuple(f"slice {n}" for n in range(1, 7))
        assert list(numbers)[k] == [10, 20, 30]
        assert list(numbers)[k + 1] == [90, 80, 70]
        assert ("var(--image" in block) == (k != 1)


def test_a_image_stands_in_the_page_once_and_nothing_is_loaded():
    sentences = [looking(k, columns=5) for k in range(5)]
    part = attention_section(sentences, IMAGES, image_padding_mask=[0] * 5)
    section = story_section("Line 1", IMAGES, [part._replace(heading="<Looks>")])
    page = render_page("title", [section])
    assert page.count(URI) == 4
    assert re.findall(r"--image(\d):url", page) == ["1", "3", "4", "5"]
    assert "&lt;Looks&gt;" in page
    assert "http" not in page.replace("http-equiv", "")


def test_everything_from_the_data_is_escaped():
    nasty = '"><script>'
    sentences = [looking(k, columns=5, words=(nasty, nasty)) for k in range(5)]
    sentences = [sentence._replace(text=nasty) for sentence in sentences]
    for section in (
        attention_section(sentences, IMAGES, image_padding_mask=[0] * 5),
        attention_section(sentences, IMAGES),
    ):
        assert "<script" not in section.body
        assert '"">' not in section.body
