"""The page of a small data folder, made by the command."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from fairseq_mm.cli.main import main

NASTY = '<script>alert("gotcha")</script>'


@pytest.fixture
def data(tmp_path) -> Path:
    """Three images with two captions each, hypotheses and scores."""
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    references, hypotheses, scores = [], [], []
    for number, name in enumerate(("a.jpg", "b.png", "c.jpg")):
        Image.new("RGB", (40 + number, 30), (10, 200, 90)).save(folder / "images" / name)
        sentences = [f"a dog number {number}", NASTY]
        references.append(json.dumps({"id": name, "captions": sentences}))
        hypotheses.append(f"H-{2 * number}\t-0.5\ta cat {NASTY}")
        record = {"id": name, "hypothesis": f"a cat {NASTY}", "cider": number / 4, "true": True}
        scores.append(json.dumps(record))
    for name, lines in {
        "test.jsonl": references,
        "generate.txt": hypotheses,
        "scores.jsonl": scores,
        "train.log": ["no JSON"],
    }.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def report(data: Path, *options: object) -> int:
    arguments = ["--data", data, "--output", data / "page.html", *options]
    if "--hypotheses" not in options:
        arguments += ["--hypotheses", data / "generate.txt"]
    return main(["report", "--split", "test", *map(str, arguments)])


class Tags(HTMLParser):
    """All tags with their attributes; fails on one that is closed but not open."""

    void = ("meta", "img", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_images_texts_scores_and_card(data, capsys):
    options = ["--images", data / "images", "--scores", data / "scores.jsonl"]
    options += ["--metrics", "bleu4"]
    assert report(data, *options) == 0
    page = (data / "page.html").read_text()
    tags = Tags(page).tags
    names = [tag for tag, _ in tags]
    assert names.count("article") == 3
    images = [attributes["src"] for tag, attributes in tags if tag == "img"]
    assert len(images) == 3
    assert all(uri.startswith("data:image/jpeg;base64,") for uri in images)
    numbers = [json.loads(unescape(text)) for text in re.findall(r'data-numbers="(.*?)"', page)]
    assert [row[1:] for row in numbers] == [[number / 4, 1.0] for number in range(3)]
    # what is looked at first comes first, and the rest is folded
    headings = re.findall(r"<(?:summary><)?h2>(.*?)<", page)
    assert headings == ["Scores", "Items", "What was run"]
    assert re.findall(r"<summary><h2>(.*?)<", page) == ["What was run"]
    assert "bleu4|refs:2|tok:ptb" in page.partition(">signatures<")[2]
    for text in ("a dog number 2", "generate.txt", "sha256", "3 of 3 items"):
        assert text in page
    assert "The first" not in page
    assert "page.html: 3 items" in capsys.readouterr().out


def test_nothing_is_loaded_and_no_caption_becomes_a_script(data):
    assert report(data, "--images", data / "images") == 0
    page = (data / "page.html").read_text()
    assert NASTY not in page
    assert page.count("<script") == 1
    for tag, attributes in Tags(page).tags:
        for name in ("src", "href", "xlink:href", "action"):
            assert attributes.get(name, "data:").startswith(("data:", "#part")), tag
    assert not re.search(r"https?://|url\(|@import", page)


def test_the_page_does_without_images_and_shows_the_first_items_only(data, capsys):
    assert report(data, "--limit", 2, "--title", "Dogs & cats") == 0
    page = (data / "page.html").read_text()
    names = [tag for tag, _ in Tags(page).tags]
    assert names.count("article") == 2
    assert "img" not in names
    assert "<h1>Dogs &amp; cats</h1>" in page
    assert "The first 2 of 3 items." in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "{data}/no/page.html"], "there is no folder .*/no"),
        (["--scores", "{data}/train.log"], r"train\.log:1: not JSON"),
        (["--scores", "{data}/other.jsonl"], r"other\.jsonl:1: must have scores of an item"),
        (["--images", "{data}/other"], r"has none of the 3 images, such as a\.jpg"),
        (["--scores", "{data}/of_others.jsonl"], r"has those of 'a\.jpg', 'a dog'\."),
        (
            ["--metrics", "bleu5"],
            "--metrics: must be of bleu, .* but has 'bleu5'; did you mean bleu",
        ),
        (["--name", "a", "--name", "b"], "must be given once for each of the 1 --hyp.*but is a, b"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_no_page(data, capsys, options, message):
    (data / "other.jsonl").write_text('{"id": "z.jpg", "cider": 1}\n')
    (data / "of_others.jsonl").write_text('{"id": "a.jpg", "hypothesis": "a dog", "cider": 1}\n')
    (data / "other").mkdir()
    Image.new("RGB", (8, 8)).save(data / "other" / "z.jpg")
    assert report(data, *[option.format(data=data) for option in options]) == 2
    *notes, error = capsys.readouterr().err.splitlines()
    assert re.search(message, error)
    assert all("texts that were not compared with" in note for note in notes)
    assert not list(data.glob("page.html*"))


@pytest.mark.parametrize("name", ["generate.txt", "scores.jsonl", "test"])
def test_a_page_overwrites_no_file_that_is_read(data, capsys, name):
    (path,) = data.glob(f"{name}*")
    before = path.read_text()
    (data / "link").symlink_to(path)
    for output in (path, data / "link"):
        options = ("--scores", data / "scores.jsonl")
        assert report(data, *options, "--output", output) == 2
        message = f"--output {output}: would overwrite a file that is read.\n"
        assert capsys.readouterr().err == f"fairseq-mm report: {message}"
    assert path.read_text() == before


CAPTIONS = {"a.jpg": "a cat sleeps", "b.png": "two cats run", "c.jpg": "no cat"}


def test_sentences_of_stories_are_shown_without_their_separators(data):
    (data / "generate.txt").write_text("H-0\t-0.5\ta dog . <sent> it sleeps .\n")
    assert report(data) == 0
    shown = re.sub(r"<.*?>", "", (data / "page.html").read_text())
    assert "a dog . it sleeps ." in shown


@pytest.fixture
def two(data) -> list[object]:
    """Options of two systems, of which the second is right for one of three images."""
    for name, texts in {
        "a.jsonl": ["two cats sleep", "two cats sleep", "two cats cats sleep"],
        "b.jsonl": ["a dog number 0", "two cats sleep", "two cats sleep on a"],
    }.items():
        lines = [json.dumps({"id": i, "hypothesis": x}) for i, x in zip(CAPTIONS, texts)]
        (data / name).write_text("\n".join(lines))
    hypotheses = ["--hypotheses", data / "a.jsonl", "--hypotheses", data / "b.jsonl"]
    return ["--data", data, "--split", "test", *hypotheses, "--output", data / "page.html"]


def run_two(two, *options) -> int:
    return main(["report", *map(str, [*two, *options])])


def test_two_systems_stand_side_by_side_with_paired_differences(data, two, capsys):
    scored = ["score", data / "b.jsonl", "--compare", data / "a.jsonl", "--data", data]
    scored += ["--split", "test", "--metrics", "bleu,rouge_l,cider", "--json", data / "all.json"]
    assert main([*map(str, scored)]) == 0
    expected = {x["metric"]: x for x in json.loads((data / "all.json").read_text())["comparison"]}
    assert run_two(two) == 0
    page = (data / "page.html").read_text()
    assert re.findall(r'class="system">(\w)<', page) == ["a", "b"] * 3
    rows = re.findall(r'<th scope="row">(bleu1|rouge_l|cider)</th>(.*?)</tr>', page)
    assert len(rows) == 3
    for name, cells in rows:
        entry = expected[name]
        # the interval of the difference, as score computes it with the same seed
        ends = re.search(r"([-+\d.]+) \[(\S+), (\S+)\], p ([\d.]+)<", cells).groups()
        numbers = [f"{x:+.5f}" for x in (entry["difference"], *entry["interval"])]
        assert ends == (*numbers, f"{entry['p']:.3f}")
    assert "seed 1" in page


def test_each_item_has_its_own_scores(data, two):
    expected = []
    for name in ("a", "b"):
        rows = data / f"{name}.items"
        scored = ["score", data / f"{name}.jsonl", "--data", data, "--split", "test"]
        assert main([*map(str, [*scored, "--metrics", "cider", "--per-item", rows])]) == 0
        expected.append([json.loads(line)["cider"] for line in rows.read_text().splitlines()])
    assert len({*expected[1]}) > 1
    assert run_two(two, "--metrics", "cider") == 0
    numbers = re.findall(r'data-numbers="(.*?)"', (data / "page.html").read_text())
    assert [json.loads(text) for text in numbers] == [
        pytest.approx([a, b, b - a], abs=2e-6) for a, b in zip(*expected)
    ]


def test_systems_with_texts_of_other_items_are_refused(data, two, capsys):
    lines = (data / "a.jsonl").read_text().splitlines()
    (data / "a.jsonl").write_text("\n".join(lines[1:]))
    (data / "b.jsonl").write_text("\n".join([*lines[:1], *lines[2:]]))
    assert run_two(two) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "b.jsonl: must have texts for the items of" in error
    assert error.endswith("lacks 2 items of the other, such as a.jpg.")
    assert not (data / "page.html").exists()
