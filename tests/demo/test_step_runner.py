"""Steps run once, are shown, and continue after an interruption."""

import json
import re

import pytest

from fairseq_mm.demo import step_runner
from fairseq_mm.demo.step_runner import StepRunner
from fairseq_mm.errors import UserError

SETTINGS = {"seed": 1}


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch):
    """Two commands: one prints its arguments, one fails."""
    monkeypatch.setitem(
        step_runner._INTERPRETED, "echo", ["-c", "import sys; print('\\n'.join(sys.argv[1:]))"]
    )
    monkeypatch.setitem(
        step_runner._INTERPRETED, "fail", ["-c", "print('something'); raise SystemExit(3)"]
    )


def test_a_command_is_shown_and_its_output_kept(tmp_path, capsys):
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=2)
    runner.command("Say it", "echo one two", tmp_path / "a path")
    printed = capsys.readouterr().out
    assert "[1/2] Say it" in printed
    assert f"echo one two '{tmp_path}/a path'" in printed
    assert re.search(r"a path; \d+\.\d s", printed)
    log = tmp_path / "demo" / "logs" / "say-it.log"
    assert log.read_text() == f"one\ntwo\n{tmp_path}/a path\n"


def test_chosen_lines_are_shown_while_a_command_runs(tmp_path, capsys):
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=1)
    runner.command("Say it", "echo one two", shown=lambda line: "TWO" if "two" in line else "")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[2] == "TWO"
    assert re.fullmatch(r"\d+\.\d s", lines[3])


def test_output_goes_to_a_file_only_when_the_command_succeeds(tmp_path):
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=2)
    runner.command("Say it", "echo one", output=tmp_path / "said.txt")
    assert (tmp_path / "said.txt").read_text() == "one\n"
    with pytest.raises(UserError, match=r"fail ended with exit status 3: something \(all of it"):
        runner.command("Fail", "fail", output=tmp_path / "failed.txt")
    assert not (tmp_path / "failed.txt").exists()


def test_finished_steps_are_not_repeated_and_failed_ones_are(tmp_path, capsys):
    calls = []
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=2)
    runner.call("First", lambda: calls.append("first"))
    with pytest.raises(UserError, match="exit status 3"):
        runner.command("Second", "fail")
    again = StepRunner(tmp_path / "demo", SETTINGS, total=2)
    again.call("First", lambda: calls.append("first again"))
    again.command("Second", "echo two")
    assert calls == ["first"]
    assert list(again.seconds) == ["First", "Second"]
    assert "done before" in capsys.readouterr().out


def test_other_settings_and_foreign_folders_are_refused(tmp_path):
    StepRunner(tmp_path / "demo", SETTINGS, total=1).call("First", lambda: None)
    with pytest.raises(UserError, match=r'demo: was made with other settings \({"seed": 1}, now'):
        StepRunner(tmp_path / "demo", {"seed": 2}, total=1)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dog.jpg").write_text("")
    with pytest.raises(UserError, match="photos: holds something else than a demo"):
        StepRunner(tmp_path / "photos", SETTINGS, total=1)
    (tmp_path / "demo" / "demo.json").write_text("{")
    with pytest.raises(UserError, match=r"demo\.json: is damaged"):
        StepRunner(tmp_path / "demo", SETTINGS, total=1)


def test_the_commands_that_are_shown_are_those_that_exist(tmp_path):
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=2)
    runner.command("Where", "fairseq-mm user-dir")
    shown = (tmp_path / "demo" / "logs" / "where.log").read_text().strip()
    assert shown == str(step_runner._PACKAGE)
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["settings"] == SETTINGS
