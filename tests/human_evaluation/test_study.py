"""The human evaluation: sheets, key and figures, from the stories to the score."""

import csv
import json
import random

import pytest
import study as study_program

from fairseq_mm.cli.script import run_script


@pytest.fixture
def stories(tmp_path):
    def write(name, count):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        lines = [
            {"id": i, "prompt": f"[ WP ] prompt {i}", "story": f"{name} tells {i}"}
            for i in range(count)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    return write


@pytest.fixture
def study(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["study.py", *map(str, arguments)])
        status = run_script(study_program.__doc__, [study_program.add_arguments], study_program.run)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def write_answers(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header, *rows])


HEADER = ["annotator", "question", "story_1", "story_2", "story_3"]


def test_pairing_from_stories_to_figures(stories, study, tmp_path):
    files = [stories("good.jsonl", 12), stories("poor.jsonl", 11)]
    folder = tmp_path / "sheets"
    status, _, err = study("pairing", "--stories", *files, "--count", 9, "--output", folder)
    assert status == 0
    assert (
        "6 questions in questions.csv and questions.html, and template.html for crowd platforms; "
        "key.json is not for the annotators" in err
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "key.json",
        "questions.csv",
        "questions.html",
        "template.html",
    ]
    key = json.loads((folder / "key.json").read_text())["questions"]
    rows, right_pairs = [], 0
    generator = random.Random(1)
    for judge in range(5):
        for name, question in key.items():
            answer = list(question["answer"])
            if question["system"] == "poor":
                generator.shuffle(answer)
                right_pairs += sum(a == b for a, b in zip(answer, question["answer"]))
            rows.append([judge, name, *answer])
    lost = rows.pop()
    write_answers(tmp_path / "a.csv", HEADER, [*rows, ["9", "nothing", "A", "B", "C"]])
    out_file = tmp_path / "figures.json"
    status, out, err = study(
        "score",
        folder,
        tmp_path / "a.csv",
        "--annotators",
        5,
        "--json",
        out_file,
        "--bootstrap",
        50,
    )
    assert status == 0
    assert "a.csv:31: nothing is no question of this study; left out" in err
    assert f"1 of 6 questions have fewer than 5 answers: {lost[1]}" in err
    result = json.loads(out_file.read_text())
    good, poor = result["systems"]["good"], result["systems"]["poor"]
    if key[lost[1]]["system"] == "poor":
        right_pairs -= sum(a == b for a, b in zip(lost[2:], key[lost[1]]["answer"]))
    assert good["all_three"] == {"value": 1.0, "interval": [1.0, 1.0]}
    assert good["pairs"]["value"] == 1.0
    assert poor["pairs"]["value"] == pytest.approx(right_pairs / (3 * poor["answers"]))
    assert poor["all_three"]["value"] < poor["pairs"]["value"] < 1
    assert good["fleiss_kappa"] > poor["fleiss_kappa"]
    assert result["chance"] == {"all_three": 1 / 6, "pairs": 1 / 3}
    assert (result["answers"], result["left_out"], result["annotators"]) == (29, 1, 5)
    assert "chance   16.7%" in out
    assert "100.0% [100.0%, 100.0%]" in out
