"""The demo: the commands, the verdict, continuing; the whole of it in small."""

import json
import pickle
import pkgutil
from pathlib import Path

import pytest
import run_demo as demo
import step_runner
from step_runner import StepRunner

from fairseq_mm.cli.script import run_script

SMALL = demo.Sizes(train=40, valid=6, test=20, epochs=1, batch=32)
SMALL_STORIES = demo.Sizes(train=6, valid=2, test=4, epochs=1, batch=16)
COMMANDS = ["prepare", "extract", "fairseq-train", "fairseq-generate", "score"]


def read(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]


class FakeCommands:
    """Writes what the commands of the demo would: ``wrong`` of the captions are false, and
    ``wrong_sentences`` of the stories' sentences."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong = self.wrong_sentences = 0
        self.run: list[tuple[str, str]] = []  # (of what, command), in their order

    def of(self, noun: str) -> list[str]:
        return [name for of_what, name in self.run if of_what == noun]

    def __call__(self, words, log, show):
        log.write_text("")
        if words[0] == "call":
            function, arguments = pickle.loads(bytes.fromhex(words[1]))
            if function == demo.TRAIN_RECOGNIZER:
                self.run.append(("network", "train"))
            else:
                pkgutil.resolve_name(function)(**arguments)
            return 0, ""
        name = words[1] if words[0] == "fairseq-mm" else words[0]
        of_stories = any(str(self.folder / "stories") in word for word in words)
        self.run.append(("stories" if of_stories else "captions", name))
        if of_stories:
            self.of_stories(name, words, log)
        else:
            self.of_captions(name, log)
        return 0, "done"

    def of_captions(self, name, log):
        records = read(self.folder / "captions.jsonl")
        test = [record for record in records if record["split"] == "test"]
        ids = [record["image"].split("/")[1] for record in test]
        if name == "prepare":
            references = [record["captions"] for record in test]
            self.write_data(self.folder / "data", ids, references, lines=3)
        elif name == "fairseq-generate":
            texts = [record["captions"][0] for record in test]
            texts[: self.wrong] = ["only a small red circle and a lie"] * self.wrong
            log.write_text("".join(f"H-{3 * n}\t-1\t{text}\n" for n, text in enumerate(texts)))
        elif name == "score":
            self.write_score(self.folder, "bleu4")

    def of_stories(self, name, words, log):
        folder = self.folder / "stories"
        test = [record for record in read(folder / "stories.jsonl") if record["split"] == "test"]
        if name == "prepare":
            ids = ["\t".join(map(file_name, record["images"])) for record in test]
            references = [[" ".join(record["sentences"])] for record in test]
            self.write_data(folder / "data", ids, references, lines=1)
        elif name == "fairseq-generate":
            stories = [record["sentences"] for record in test]
            generated = [sentence for sentences in stories for sentence in sentences]
            generated[: self.wrong_sentences] = ["a lie"] * self.wrong_sentences
            lines = [" <sent> ".join(generated[5 * n : 5 * n + 5]) for n in range(len(test))]
            log.write_text("".join(f"H-{n}\t-1\t{line}\n" for n, line in enumerate(lines)))
        elif name == "score":
            self.write_score(folder, "repeated_2")
        elif name == "tell":
            (fresh,) = read(folder / "fresh" / "stories.jsonl")
            images = [folder / "fresh" / image for image in fresh["images"]]
            assert words[2:7] == list(map(str, images))
            assert all(image.is_file() for image in images)
            hypothesis = " <sent> ".join([*fresh["sentences"][:4], "a lie"])
            log.write_text(f"a warning\n{json.dumps({'hypothesis': hypothesis})}\n")

    def write_data(self, data, ids, references, *, lines):
        data.mkdir()
        (data / "test.visual_ids").write_text("".join(f"{key}\n" * lines for key in ids))
        entries = [{"id": key, "references": texts} for key, texts in zip(ids, references)]
        (data / "test.references.jsonl").write_text("\n".join(map(json.dumps, entries)) + "\n")

    def write_score(self, folder, metric):
        score = {"metric": metric, "value": 0.5, "signature": "", "scored": 20}
        (folder / "scores.json").write_text(json.dumps({"scores": [score]}))


def run_main(folder: Path, *options: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["run_demo.py", "--output", str(folder), *options])
        return run_script(demo.__doc__, [demo.add_arguments], demo.run)


def file_name(path: str) -> str:
    return path.split("/")[-1]


@pytest.fixture
def commands(tmp_path, monkeypatch) -> FakeCommands:
    monkeypatch.setattr(demo, "CAPTIONS", SMALL)
    monkeypatch.setattr(demo, "STORIES", SMALL_STORIES)
    monkeypatch.setattr(step_runner, "available_cores", lambda: 2)
    fake = FakeCommands(tmp_path / "demo")
    monkeypatch.setattr(StepRunner, "_run", lambda runner, *args: fake(*args))
    return fake


def test_every_command_is_shown_and_the_result_is_a_table(commands, capsys):
    assert run_main(commands.folder) == 0
    assert commands.of("captions") == [*COMMANDS, "report"]
    assert commands.of("stories") == [*COMMANDS, "tell"]
    assert sorted(commands.run[:2]) == [("captions", "prepare"), ("stories", "prepare")]
    assert commands.run[2:4] == [("network", "train"), ("stories", "extract")]
    printed = capsys.readouterr().out
    for name in [*COMMANDS, "report", "tell"]:
        assert f"{name} " in printed
    assert "--task multimodal_captioning --cpu --arch m_rnn " in printed
    assert "--task visual_storytelling --cpu --arch glac_non_local " in printed
    assert "20 of  20  100.0%" in printed
    assert "10 of  10  100.0%" in printed
    assert "bleu4" in printed
    assert "sentences that say what their image shows     20 of  20  100.0%" in printed
    assert "  what is there at first                       4 of   4  100.0%" in printed
    assert "repeated_2" in printed
    assert str(commands.folder / "page.html") in printed
    assert str(commands.folder / "stories" / "page.html") in printed


def test_the_fresh_story_is_printed_and_its_wrong_sentences_are_marked(commands, capsys):
    assert run_main(commands.folder) == 0
    (fresh,) = read(commands.folder / "stories" / "fresh" / "stories.jsonl")
    generated = "".join(f"  {sentence}\n" for sentence in fresh["sentences"][:4])
    assert f"five fresh images:\n{generated}  a lie   (wrong)\n" in capsys.readouterr().out


@pytest.mark.parametrize(("wrong", "status"), [(2, 0), (3, 1)])
def test_nine_of_ten_sentences_must_be_right(commands, capsys, wrong, status):
    commands.wrong_sentences = wrong
    assert run_main(commands.folder) == status
    failure = f"failed: {20 - wrong} of 20 sentences are right, fewer than 90%"
    assert (failure in capsys.readouterr().out) == bool(status)


@pytest.mark.parametrize(("wrong", "status"), [(2, 0), (3, 1)])
def test_nine_of_ten_captions_must_be_right(commands, capsys, wrong, status):
    commands.wrong = wrong
    assert run_main(commands.folder) == status
    printed = capsys.readouterr().out
    failure = f"failed: {20 - wrong} of 20 captions are right, fewer than 90%"
    assert (failure in printed) == bool(status)
    right = (commands.folder / "right.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["right"] for line in right) == 20 - wrong


def test_a_second_run_repeats_nothing(commands, capsys):
    assert run_main(commands.folder) == 0
    commands.run.clear()
    assert run_main(commands.folder) == 0
    assert commands.run == []
    assert capsys.readouterr().out.count("done before") == demo.STEPS


def test_another_seed_is_refused_in_the_same_folder(commands, capsys):
    assert run_main(commands.folder) == 0
    assert run_main(commands.folder, "--seed", "2") == 2
    assert "was made with other settings" in capsys.readouterr().err


def test_validations_are_shown_in_short():
    line = (
        "2026-01-02 03:04:05 | INFO | valid | epoch 003 | valid on 'valid' subset | loss 0.654 "
        "| ppl 1.57 | cider 4.5 | rouge_l 0.86 | bleu4 0.82 | num_updates 1000"
    )
    assert demo.shorten_validation(line, 3) == "epoch 3 of 3: ppl 1.57, bleu4 0.82, cider 4.5"
    assert demo.shorten_validation(line.partition(" | cider")[0], 9) == "epoch 3 of 9: ppl 1.57"
    assert demo.shorten_validation("epoch 003 | loss 0.7 | ppl 1.6", 3) == ""


def test_of_the_image_networks_training_no_warning_is_shown():
    assert demo.shorten_recognition("close-ups: 20%, loss 3.10\n") == "close-ups: 20%, loss 3.10"
    assert demo.shorten_recognition("recognises everything in 99% of new images\n").endswith(
        "images"
    )
    assert demo.shorten_recognition("KeyboardInterrupt\n") == ""


@pytest.mark.slow
def test_the_whole_demo_runs_in_small(tmp_path, monkeypatch, capsys):
    for name, value in (("CAPTIONS", SMALL), ("STORIES", SMALL_STORIES)):
        monkeypatch.setattr(demo, name, value)
    for name in ("CLOSE_UPS", "WHOLE_IMAGES"):
        monkeypatch.setattr(demo, name, 64)
    folder = tmp_path / "demo"
    assert run_main(folder) in (0, 1)
    page = (folder / "page.html").read_text()
    assert page.count("<article") == 20
    assert page.count("data:image/jpeg") == 20
    assert "20 of 20 items have a hypothesis" in page
    assert (folder / "checkpoints" / "checkpoint_best.pt").is_file()
    assert (folder / "stories" / "page.html").read_text().count("data:image/jpeg") == 5
