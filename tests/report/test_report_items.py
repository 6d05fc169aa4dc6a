"""Cards of a report: texts of several systems, their faults, and numbers to sort by."""

import json
import re
from html import unescape

from fairseq_mm.report.report_items import PAGE_SIZE, ReportItem, SystemText, items_section
from fairseq_mm.report.text_faults import find_faults


def make_item(key, *texts, references=("a dog runs",)):
    shown = [SystemText(None if x is None else find_faults(x), scores) for x, scores in texts]
    return ReportItem(key, shown, references, {})


def numbers_of(body):
    return [json.loads(unescape(text)) for text in re.findall(r'data-numbers="(.*?)"', body)]


def menu_of(body):
    return [unescape(text) for text in re.findall(r'<option value="\d+">(.*?)<', body)]


def test_everything_from_the_data_is_escaped():
    nasty = '<script>alert("1")</script>'
    item = ReportItem(nasty, [SystemText(find_faults(nasty), {nasty: 1.0})], [nasty], {nasty: '">'})
    body = items_section([item], [nasty]).body
    assert "<script" not in body
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;" in body


def test_items_of_one_system_are_sorted_by_every_finite_score():
    items = [
        make_item("a", ("a dog", {"cider": 0.12345678, "bleu4": 0.5})),
        make_item("b", (None, {"cider": float("nan")})),
    ]
    body = items_section(items, [""]).body
    assert menu_of(body) == ["CIDEr-D", "BLEU-4"]
    assert numbers_of(body) == [[0.123457, 0.5], [None, None]]
    assert "no hypothesis" in body
    # BLEU-4 of one caption is 0 or near it, which says nothing
    assert "<b>CIDEr-D</b> 12.3<" in body
    assert "<b>BLEU-4</b>" not in body


def test_items_of_two_systems_are_sorted_by_their_difference_as_well():
    scores = {"cider": 0.25, "bleu4": 0.5, "length": 2.0}
    items = [make_item("a", ("a dog", scores), ("a cat", {**scores, "cider": 1.0}))]
    body = items_section(items, ["x", "y"]).body
    assert menu_of(body) == ["CIDEr-D: y \u2212 x", "CIDEr-D: x", "CIDEr-D: y"]
    assert numbers_of(body) == [[0.75, 0.25, 1.0]]
    assert re.findall(r'class="system">(\w)<', body) == ["x", "y"]


def test_faults_are_marked_and_counted_in_references_too():
    items = [
        make_item("a", ("a dog dog runs", {}), references=["a dog runs", "run run"]),
        make_item("b", ("a dog runs", {})),
        make_item("c", (None, {}), references=[]),
    ]
    body = items_section(items, [""]).body
    assert 'a dog <mark class="repeat" title="repeated">dog</mark> runs' in body
    counted = re.sub(r"<.*?>", "", body)
    assert "repeated texts: 1 of 2 (50.0 %); references: 1 of 3 (33.3 %)" in counted
    assert re.findall(r'data-faults="(.*?)"', body) == ["repeat", "", ""]
    assert '<option value="repeat">' in body


def test_words_that_no_reference_has_are_not_marked():
    body = items_section([make_item("a", ("two cats sleep", {}))], [""]).body
    assert "<mark" not in body
    assert 'id="fault"' not in body


def test_browsers_lay_out_the_first_page_only():
    for number in (1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE):
        body = items_section([make_item("a", ("a dog", {}))] * number, [""]).body
        first, _, further = body.partition('<template id="more">')
        assert first.count("<article") == min(number, PAGE_SIZE)
        assert further.count("<article") == further.partition("</template>")[0].count("<article")
        assert body.count("<article") == body.count("</article>") == number
        assert body.count("</template>") == body.count("<noscript>") == (number > PAGE_SIZE)
