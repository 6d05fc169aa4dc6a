"""``score --constant``: one text for every item equals a file that says the same of each."""

import json
from collections import Counter

import pytest

from fairseq_mm.cli.main import main
from fairseq_mm.data.records import open_split
from tests.toy_data import make_captions_folder, make_videos_folder, make_visual_stories_folder


@pytest.fixture
def score(tmp_path, capsys):
    """Runs the command; returns exit status, the JSON result and stderr."""

    def run(*arguments):
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        status = main(["score", *map(str, arguments), "--json", str(out)])
        result = json.loads(out.read_text()) if out.exists() else {}
        return status, result, capsys.readouterr().err

    return run


def readable_lines(folder, split="train"):
    records = open_split(folder, split)
    return [records.decode(" ".join(x), i) for i, x in enumerate(records.iterate_tokens())]


def figures(result):
    return {entry["metric"]: entry["value"] for entry in result["scores"]}


@pytest.mark.parametrize("make", [make_captions_folder, make_videos_folder])
def test_without_text_the_most_frequent_training_text_is_scored(score, tmp_path, make):
    data = make(tmp_path / "data")
    lines = readable_lines(data)
    frequent = Counter(lines).most_common(1)[0][0]
    items = open_split(data, "valid").references()
    file = tmp_path / "same.jsonl"
    file.write_text("".join(json.dumps({"id": i, "hypothesis": frequent}) + "\n" for i in items))
    options = ("--data", data, "--metrics", "bleu,cider,rouge_l,diversity")
    _, expected, _ = score(file, *options)
    status, result, err = score("--constant", *options)
    assert status == 0, err
    assert figures(result) == figures(expected)
    assert result["scores"][0]["scored"] == len(items)
    assert frequent in result["texts"][0]["path"]
    assert figures(score("--constant", frequent, *options)[1]) == figures(expected)


def test_a_visual_story_has_the_most_frequent_sentence_of_each_place(score, tmp_path):
    data = make_visual_stories_folder(tmp_path / "data")
    stories = [line.split(" <sent> ") for line in readable_lines(data)]
    assert {len(story) for story in stories} == {5}
    frequent = [Counter(sentences).most_common(1)[0][0] for sentences in zip(*stories)]
    options = ("--data", data, "--preset", "vist", "--metrics", "bleu,sentences")
    status, result, err = score("--constant", *options)
    assert status == 0, err
    assert " <sent> ".join(frequent) in result["texts"][0]["path"]
    assert figures(result)["words_per_sentence"] == sum(len(s.split()) for s in frequent) / 5


def test_a_system_is_compared_with_a_constant(score, tmp_path):
    data = make_captions_folder(tmp_path / "data")
    items = open_split(data, "valid").references()
    file = tmp_path / "best.jsonl"
    file.write_text(
        "".join(json.dumps({"id": i, "hypothesis": x[0]}) + "\n" for i, x in items.items())
    )
    options = ("--data", data, "--metrics", "bleu4", "--bootstrap", 20)
    status, result, err = score("--constant", "a dog", *options, "--compare", file)
    assert status == 0, err
    (row,) = result["comparison"]
    assert row["values"][0] < row["values"][1]
