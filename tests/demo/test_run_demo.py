"""The demo: the commands, the verdicts, continuing, the page; all of it in small, and as it is."""

import contextlib
import importlib
import io
import json
import os
import pickle
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import demo_task
import pytest
import run_demo as demo
import step_runner
from demo_task import AllSizes, Sizes
from step_runner import StepRunner

from fairseq_mm.cli.main import Parser
from fairseq_mm.cli.script import run_script

SMALL = AllSizes(
    close_ups=64,
    whole_images=64,
    captions=Sizes(train=40, valid=6, test=20, epochs=1, batch=32),
    stories=Sizes(train=6, valid=2, test=4, epochs=1, batch=16),
    search_epochs=1,
    photos=12,
    queries=10,
    tales=Sizes(train=20, valid=4, test=10, epochs=1, batch=16),
    clips=Sizes(train=20, valid=4, test=10, epochs=1, batch=16),
)
STEPS = 30
NUM_ITEMS = {"captions": 20, "visual_stories": 20, "search": 10, "prompts": 10, "summaries": 10}
LIE = "only a small red circle and a lie"


def read(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]


class FakeCommands:
    """Writes what the commands of the demo would; ``wrong`` of the texts of each task are lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong = dict.fromkeys(NUM_ITEMS, 0)
        self.run: list[list[str]] = []

    def __call__(self, words, log, show):
        log.write_text("")
        if words[0] == "call":
            function, arguments = pickle.loads(bytes.fromhex(words[1]))
            if function not in (
                demo.TRAIN_RECOGNIZER,
                "drawings.clip_collection.join_frames",
            ):
                pkgutil.resolve_name(function)(**arguments)
            return 0, ""
        self.run.append(words)
        if words[0] == "fairseq-mm":
            parser = Parser()
            importlib.import_module(f"fairseq_mm.cli.{words[1]}").add_arguments(parser)
            parser.parse_args(words[2:])
        name = words[1] if words[0] == "fairseq-mm" else words[0]
        if "--output" in words and name in ("caption", "tell", "search", "summarize"):
            output = Path(words[words.index("--output") + 1])
            lines = getattr(self, name)(words, output.parent)
            output.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return 0, "done"

    def caption(self, words, folder):
        test = [r for r in read(folder / "captions.jsonl") if r["split"] == "test"]
        texts = self.with_lies("captions", [record["captions"][0] for record in test])
        for record, text in zip(test, texts):
            yield {"id": record["image"].split("/")[1], "hypothesis": text}

    def tell(self, words, folder):
        if "--prompts" in words:
            test = [r for r in read(folder / "tales.jsonl") if r["split"] == "test"]
            for text in self.with_lies("prompts", [record["story"] for record in test]):
                yield {"hypothesis": text}
            return
        if "--split" not in words:
            assert all(Path(image).is_file() for image in words[2:7])
            yield {"hypothesis": "a lie"}
            return
        test = [r for r in read(folder / "stories.jsonl") if r["split"] == "test"]
        sentences = [sentence for record in test for sentence in record["sentences"]]
        texts = self.with_lies("visual_stories", sentences)
        for number, record in enumerate(test):
            names = [image.split("/")[1] for image in record["images"]]
            story = " <sent> ".join(texts[5 * number : 5 * number + 5])
            yield {"id": "\t".join(names), "hypothesis": story}

    def search(self, words, folder):
        queries = (folder / "queries.txt").read_text().splitlines()
        for number, query in enumerate(queries):
            # of the queries that are answered wrongly, the right image is the second
            ranks = [number, number + 1] if number >= self.wrong["search"] else [number + 1, number]
            for rank, found in enumerate(ranks, 1):
                yield {"id": f"photo-{found + 1:04}.jpg", "rank": rank, "query": query}

    def summarize(self, words, folder):
        summaries = {r["id"]: r["summary"] for r in read(folder / "clips.jsonl")}
        inputs = read(Path(words[2]))
        texts = self.with_lies("summaries", [summaries[record["id"]] for record in inputs])
        for record, text in zip(inputs, texts):
            yield {"id": record["id"], "hypothesis": text}

    def with_lies(self, task, texts):
        number = self.wrong[task]
        return [LIE] * number + texts[number:]


def run_main(folder: Path, *options: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["run_demo.py", "--output", str(folder), *options])
        return run_script(demo.__doc__, [demo.add_arguments], demo.run)


@pytest.fixture
def commands(tmp_path, monkeypatch) -> FakeCommands:
    monkeypatch.setattr(demo_task, "SIZES", SMALL)
    monkeypatch.setattr(step_runner, "available_cores", lambda: 2)
    fake = FakeCommands(tmp_path / "demo")
    monkeypatch.setattr(StepRunner, "_run", lambda runner, *args: fake(*args))
    return fake


class Shown(NamedTuple):
    folder: Path
    run: list[list[str]]
    printed: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Shown:
    """A demo all of whose texts are right; tests leave its folder as it is."""
    fake = FakeCommands(tmp_path_factory.mktemp("right") / "demo")
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as printed:
        patch.setattr(demo_task, "SIZES", SMALL)
        patch.setattr(step_runner, "available_cores", lambda: 2)
        patch.setattr(StepRunner, "_run", lambda runner, *args: fake(*args))
        with contextlib.redirect_stdout(printed):
            assert run_main(fake.folder) == 0
        return Shown(fake.folder, fake.run, printed.getvalue())


def table(printed: str) -> dict[str, list[str]]:
    """Figures of each row of the table by the row's name."""
    rows = {}
    for line in printed.splitlines():
        match = re.match(r"(\S.*?) {2,}(\d.*)", line)
        if match:
            rows[match[1]] = match[2].split()
    return rows


def test_every_command_is_shown_and_every_task_has_a_row(shown):
    printed = shown.printed
    for words in shown.run:
        assert f"\n      {shlex.join(words)}\n" in printed
    names = {words[1] if words[0] == "fairseq-mm" else words[0] for words in shown.run}
    assert names == {
        *("prepare", "extract", "fairseq-train", "caption", "tell", "score", "report"),
        *("index", "search", "store", "summarize"),
    }
    assert f"[{STEPS}/{STEPS}]" in printed
    assert f"[{STEPS + 1}/" not in printed
    rows = table(printed)
    assert rows["captions"][:3] == ["20", "of", "20"]
    assert rows["sentences of visual stories"][:3] == ["20", "of", "20"]
    for name in ("images found first", "stories of prompts", "summaries of clips"):
        assert rows[name][:4] == ["10", "of", "10", "100.0%"]
    assert "  in combinations that it did not show" in printed
    assert "  what is there at first" in printed
    assert "Everything on a page: " in printed
    for words in demo.next_commands(shown.folder):
        assert f"  {shlex.join(words)}\n" in printed


@pytest.mark.parametrize("tasks", [["search"], [*NUM_ITEMS]], ids=["one task", "all tasks"])
def test_fewer_than_nine_of_ten_items_of_a_task_are_a_failure(commands, capsys, tasks):
    for task in tasks:
        commands.wrong[task] = NUM_ITEMS[task] // 10 + 1
    assert run_main(commands.folder) == 1
    failures = re.findall("failed: .*", capsys.readouterr().out)
    assert len(failures) == len(tasks)
    assert all("are right, fewer than 90%" in failure for failure in failures)
    totals = [re.match(r"failed: (\d+) of (\d+) ", failure).groups() for failure in failures]
    expected = [(NUM_ITEMS[task] - commands.wrong[task], NUM_ITEMS[task]) for task in tasks]
    assert sorted((int(right), int(total)) for right, total in totals) == sorted(expected)


def test_what_a_summary_takes_from_the_transcript_and_from_the_frames_is_counted(shown):
    rows = table(shown.printed.replace("\n    ", "\n").replace("\n  ", "\n"))
    # the fake reads the frames alone: its summaries are those of the clip whose frames are shown
    assert rows["with the transcript of another clip"][0] == "10"
    assert rows["what happens in these other frames"][0] == "10"
    assert int(rows["who and where, as the transcript tells"][0]) < 5
    assert int(rows["with the frames of another clip"][0]) < 5


def test_the_page_shows_all_tasks_their_items_and_their_commands(commands, capsys):
    commands.wrong = dict.fromkeys(NUM_ITEMS, 1)
    assert run_main(commands.folder) == 0
    page = (commands.folder / "page.html").read_text()
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings == [
        "Captions of images",
        "Visual stories",
        "Images found by a sentence",
        "Stories of prompts",
        "Summaries of clips",
    ]
    # 6 captioned images, 4 stories of 5, 6 searches with 2 found, 6 prompts, 6 clips of 4 frames
    assert page.count("<article") == 6 + 4 + 6 + 6 + 6
    assert page.count("data:image/jpeg") == 6 + 4 * 5 + 6 * 2 + 6 * 4
    assert page.count(f"{LIE} (wrong)") == 4
    assert page.count("not true") == 6
    for words in commands.run:
        assert page.count(f">{shlex.join(words)}</p>".replace("'", "&#39;")) == 1
    assert "://" not in page


def test_a_second_run_repeats_nothing(shown, commands, capsys):
    page = (shown.folder / "page.html").read_text()
    commands.folder = shown.folder
    assert run_main(shown.folder) == 0
    assert commands.run == []
    assert capsys.readouterr().out.count("done before") == STEPS
    assert (shown.folder / "page.html").read_text() == page


@pytest.mark.slow
def test_the_whole_demo_runs_in_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo_task, "SIZES", SMALL)
    folder = tmp_path / "demo"
    assert run_main(folder) in (0, 1)
    page = (folder / "page.html").read_text()
    assert page.count("<article") == 6 + 4 + 6 + 6 + 6
    captions = (folder / "captions" / "page.html").read_text()
    assert captions.count("<article") == 20
    assert "20 of 20 items have a hypothesis" in captions
    assert (folder / "visual_stories" / "page.html").read_text().count("data:image/jpeg") == 5
    # the commands that are printed at the end
    for words in demo.next_commands(folder):
        run = "import sys; from fairseq_mm.cli import main; sys.exit(main.main())"
        done = subprocess.run(
            [sys.executable, "-c", run, *words[1:]],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(step_runner.PACKAGE.parent)},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.slow
def test_nine_of_ten_items_of_every_task_are_right_and_no_answer_is_the_most_common(
    tmp_path, capsys
):
    assert run_main(tmp_path / "demo") == 0
    rows = table(capsys.readouterr().out.replace("\n  ", "\n"))
    for name in (
        *("captions", "sentences of visual stories", "images found first"),
        *("stories of prompts", "summaries of clips"),
    ):
        right, _, total, _, common = rows[name]
        assert int(right) >= 0.9 * int(total)
        assert float(common.rstrip("%")) < 25
    for name in ("with the frames of another clip", "with the transcript of another clip"):
        assert int(rows[name][0]) < 0.25 * int(rows[name][2])
