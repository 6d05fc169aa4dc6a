"""`fairseq-mm demo`: the commands, the verdict, continuing; the whole of it in small."""

import json
from pathlib import Path

import pytest

from fairseq_mm.cli import demo
from fairseq_mm.cli.main import main
from fairseq_mm.demo import step_runner

SMALL = demo.Sizes(train=40, valid=6, test=20, close_ups=64, whole_pictures=64, epochs=1)


class FakeCommands:
    """Writes what the commands of the demo would: ``wrong`` of the captions are false."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong = 0
        self.run: list[str] = []

    def __call__(self, words, log, shown):
        name = words[1] if words[0] == "fairseq-mm" else words[0]
        self.run.append(name)
        log.write_text("")
        records = map(json.loads, (self.folder / "captions.jsonl").read_text().splitlines())
        test = [record for record in records if record["split"] == "test"]
        if name == "prepare":
            data = self.folder / "data"
            data.mkdir()
            ids = [record["image"].split("/")[1] for record in test]
            (data / "test.visual_ids").write_text("".join(f"{key}\n" * 3 for key in ids))
            lines = [
                json.dumps({"id": key, "references": record["captions"]})
                for key, record in zip(ids, test)
            ]
            (data / "test.references.jsonl").write_text("\n".join(lines) + "\n")
        elif name == "fairseq-generate":
            texts = [record["captions"][0] for record in test]
            texts[: self.wrong] = ["only a small red circle and a lie"] * self.wrong
            log.write_text("".join(f"H-{3 * n}\t-1\t{text}\n" for n, text in enumerate(texts)))
        elif name == "score":
            score = {"metric": "bleu4", "value": 0.5, "signature": "", "scored": 20}
            (self.folder / "scores.json").write_text(json.dumps({"scores": [score]}))
        return "done"


@pytest.fixture
def commands(tmp_path, monkeypatch) -> FakeCommands:
    monkeypatch.setattr(demo, "SIZES", SMALL)
    monkeypatch.setattr(demo, "_train_recognizer", lambda weights, seed: "")
    fake = FakeCommands(tmp_path / "demo")
    monkeypatch.setattr(step_runner, "_run", fake)
    return fake


def test_every_command_is_shown_and_the_result_is_a_table(commands, capsys):
    assert main(["demo", "--output", str(commands.folder)]) == 0
    names = ["prepare", "extract", "fairseq-train", "fairseq-generate", "score", "report"]
    assert commands.run == names
    printed = capsys.readouterr().out
    for name in names:
        assert f"{name} " in printed
    assert "--task multimodal_captioning --cpu --arch m_rnn " in printed
    assert "20 of 20  100.0%" in printed
    assert "10 of 10  100.0%" in printed
    assert "bleu4" in printed
    assert str(commands.folder / "page.html") in printed


@pytest.mark.parametrize(("wrong", "status"), [(2, 0), (3, 1)])
def test_nine_of_ten_captions_must_be_right(commands, capsys, wrong, status):
    commands.wrong = wrong
    assert main(["demo", "--output", str(commands.folder)]) == status
    printed = capsys.readouterr().out
    failure = f"failed: {20 - wrong} of 20 captions are right, fewer than 90%"
    assert (failure in printed) == bool(status)
    right = (commands.folder / "right.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["right"] for line in right) == 20 - wrong


def test_a_second_run_repeats_nothing(commands, capsys):
    assert main(["demo", "--output", str(commands.folder)]) == 0
    commands.run.clear()
    assert main(["demo", "--output", str(commands.folder)]) == 0
    assert commands.run == []
    assert capsys.readouterr().out.count("done before") == demo.STEPS


def test_another_seed_is_refused_in_the_same_folder(commands, capsys):
    assert main(["demo", "--output", str(commands.folder)]) == 0
    assert main(["demo", "--output", str(commands.folder), "--seed", "2"]) == 2
    assert "was made with other settings" in capsys.readouterr().err


def test_validations_are_shown_in_short():
    line = (
        "2026-01-02 03:04:05 | INFO | valid | epoch 003 | valid on 'valid' subset | loss 0.654 "
        "| ppl 1.57 | cider 4.5 | rouge_l 0.86 | bleu4 0.82 | num_updates 1000"
    )
    assert demo._validation(line) == "epoch 3 of 3: ppl 1.57, bleu4 0.82, cider 4.5"
    assert demo._validation("epoch 003 | loss 0.7 | ppl 1.6") == ""


@pytest.mark.slow
def test_the_whole_demo_runs_in_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "SIZES", SMALL)
    folder = tmp_path / "demo"
    assert main(["demo", "--output", str(folder)]) in (0, 1)
    page = (folder / "page.html").read_text()
    assert page.count("<article") == 20
    assert page.count("data:image/jpeg") == 20
    assert "20 of 20 items have a hypothesis" in page
    assert (folder / "checkpoints" / "checkpoint_best.pt").is_file()
