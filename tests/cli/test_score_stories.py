"""`fairseq-mm score --preset wp`: every layout of stories, what they copy, what is refused."""

import json

import pytest

from fairseq_mm.cli.main import main

TRAIN = ["the dragon read a book <newline> and slept", "a cat said nothing at all", "the end"]
STORIES = {"10": "a dragon read a book", "2": "my cat said <newline> nothing", "3": "the end of it"}
# dragon read a book; cat said; the end
COPIED = {"2": 2, "3": 2, "10": 4}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "wp"
    folder.mkdir()
    lines = [json.dumps({"prompt": "write", "story": text}) + "\n" for text in TRAIN]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "prepare.json").write_text('{"options": {"tokenizer": "story"}}')
    return str(folder)


@pytest.fixture
def score(tmp_path, capsys):
    def run(*arguments):
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        arguments = [str(argument) for argument in arguments]
        status = main(["score", *arguments, "--preset", "wp", "--json", str(out)])
        result = json.loads(out.read_text()) if out.exists() else {}
        printed = capsys.readouterr()
        return status, result, printed.out, printed.err

    return run


def stories_file(stories):
    return "".join(json.dumps({"id": key, "story": text}) + "\n" for key, text in stories.items())


def figures(result):
    return {entry["metric"]: entry["value"] for entry in result["scores"]}


def test_all_layouts_give_the_same_figures(score, write, data):
    generated = "".join(f"H-{key}\t-1.0\t{text}\n" for key, text in STORIES.items())
    hypotheses = stories_file(STORIES).replace('"story"', '"hypothesis"')
    broken = {key: text.replace(" <newline> ", "\n") for key, text in STORIES.items()}
    files = {
        "stories": write("stories.jsonl", stories_file(STORIES)),
        "fairseq-generate": write("generated.txt", generated),
        "jsonl": write("hypotheses.jsonl", hypotheses),
        "text": write("plain.txt", "".join(f"{text}\n" for text in STORIES.values())),
    }
    results = [score(path, "--data", data) for path in files.values()]
    layouts = ["jsonl", "fairseq-generate", "jsonl", "text"]
    assert [result["texts"][0]["layout"] for _, result, _, _ in results] == layouts
    results.append(score(write("broken.jsonl", stories_file(broken)), "--data", data))
    for status, result, _, _ in results:
        assert status == 0
        assert figures(result) == pytest.approx(
            {
                "distinct1": 13 / 14,
                "distinct2": 1,
                "vocabulary": 13,  # only "a" is there twice
                "length": 14 / 3,
                "copied_words": 8 / 3,
                "copied_share": (4 / 5 + 2 / 5 + 2 / 4) / 3,
            }
        )


def test_each_story_says_what_it_copies_from_where(score, write, data, tmp_path):
    path = write("stories.jsonl", stories_file(STORIES))
    score(path, "--data", data, "--per-item", tmp_path / "items.jsonl")
    items = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert {item["id"]: item["copied_words"] for item in items} == COPIED
    assert [item["id"] for item in items] == ["2", "3", "10"]
    assert items[2]["copied"] == "dragon read a book"
    assert items[2]["copied_from"] == "train.jsonl:1"
    assert items[2]["length"] == 5


def test_the_signature_says_what_was_searched_and_resampling_gives_an_interval(score, write, data):
    path = write("stories.jsonl", stories_file(STORIES))
    _, result, out, _ = score(path, "--data", data, "--bootstrap", 40, "--tokenizer", "wp")
    copied = next(entry for entry in result["scores"] if entry["metric"] == "copied_words")
    assert "|tok:wp|case:mixed|punct:yes|run:contiguous|training:16-words|" in copied["signature"]
    assert copied["interval"][0] < copied["value"] < copied["interval"][1]
    assert "2 to 4" in out
