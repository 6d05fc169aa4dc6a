"""Steps run once, are shown, continue after an interruption, and run beside each other."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import step_runner
from step_runner import PACKAGE, StepRunner

from fairseq_mm.errors import UserError

SETTINGS = {"seed": 1}
TOUCH = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"
# until the file is there
WAIT = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1] + ".pid").write_text(str(os.getpid()))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
# two tracks wait for a file that nobody makes
INTERRUPTED = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
from pathlib import Path
from fairseq_mm.cli.script import run_script
import step_runner
step_runner._INTERPRETED["wait"] = ["-c", {WAIT!r}]
folder = Path(sys.argv[1])
def run(args):
    runner = step_runner.StepRunner(folder / "demo", {{}}, total=4)
    def track(name):
        runner.command(f"Wait for {{name}}", "wait", folder / name)
        runner.command(f"After {{name}}", "wait", folder / name)
    runner.side_by_side(lambda: track("one"), lambda: track("two"))
    return 0
step_runner.available_cores = lambda: 2
sys.argv = ["run_demo.py"]
sys.exit(run_script("", [], run))
"""


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch):
    """Two commands: one prints its arguments, one fails."""
    monkeypatch.setitem(
        step_runner._INTERPRETED, "echo", ["-c", "import sys; print('\\n'.join(sys.argv[1:]))"]
    )
    monkeypatch.setitem(
        step_runner._INTERPRETED, "fail", ["-c", "print('something'); raise SystemExit(3)"]
    )
    monkeypatch.setitem(step_runner._INTERPRETED, "touch", ["-c", TOUCH])
    monkeypatch.setitem(step_runner._INTERPRETED, "wait", ["-c", WAIT])


def test_a_command_is_shown_and_its_output_kept(tmp_path, capsys):
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=2)
    runner.command("Say it", "echo one two", tmp_path / "a path")
    printed = capsys.readouterr().out
    assert "[1/2] Say it" in printed
    assert f"echo one two '{tmp_path}/a path'" in printed
    assert re.search(r"a path; \d+\.\d s", printed)
    log = tmp_path / "demo" / "logs" / "say-it.log"
    assert log.read_text() == f"one\ntwo\n{tmp_path}/a path\n"


def test_finished_steps_are_not_repeated_and_failed_ones_are(tmp_path, capsys):
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=2)
    runner.command("First", "echo first", output=tmp_path / "first")
    (tmp_path / "first").unlink()
    with pytest.raises(UserError, match="exit status 3"):
        runner.command("Second", "fail")
    again = StepRunner(tmp_path / "demo", SETTINGS, total=2)
    again.command("First", "echo first", output=tmp_path / "first")
    again.command("Second", "echo two")
    assert not (tmp_path / "first").exists()
    assert list(again.seconds) == ["First", "Second"]
    assert capsys.readouterr().out.count("done before") == 1


def test_other_settings_and_foreign_folders_are_refused(tmp_path):
    StepRunner(tmp_path / "demo", SETTINGS, total=1).command("First", "echo one")
    with pytest.raises(UserError, match=r'demo: was made with other settings \({"seed": 1}, now'):
        StepRunner(tmp_path / "demo", {"seed": 2}, total=1)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dog.jpg").write_text("")
    with pytest.raises(UserError, match="photos: holds something else than a demo"):
        StepRunner(tmp_path / "photos", SETTINGS, total=1)
    (tmp_path / "demo" / "demo.json").write_text("{")
    with pytest.raises(UserError, match=r"demo\.json: is damaged"):
        StepRunner(tmp_path / "demo", SETTINGS, total=1)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_failing_track_ends_the_other(tmp_path, monkeypatch, capsys, is_deaf):
    monkeypatch.setattr(step_runner, "available_cores", lambda: 2)
    if is_deaf:  # and is killed
        deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WAIT
        monkeypatch.setitem(step_runner._INTERPRETED, "wait", ["-c", deaf])
        monkeypatch.setattr(step_runner, "_SECONDS_TO_END", 0.1)
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=4)
    pid = tmp_path / "never.pid"

    def fails() -> None:
        runner.command("Wait for the other", "wait", pid)
        runner.command("Fail", "fail")

    def waits() -> None:
        runner.command("Wait for ever", "wait", tmp_path / "never")
        runner.command("Say it", "echo two")

    with pytest.raises(UserError, match=r"^Fail: ended with exit status 3: something"):
        runner.side_by_side(fails, waits)
    assert not is_running(int(pid.read_text()))
    assert list(runner.seconds) == ["Wait for the other"]
    assert "Say it" not in capsys.readouterr().out


def test_a_track_waits_for_a_step_of_an_earlier_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(step_runner, "available_cores", lambda: 2)
    runner = StepRunner(tmp_path / "demo", SETTINGS, total=3)

    def first() -> None:
        runner.command("Wait for the file", "wait", tmp_path / "file")
        runner.command("Say it", "echo one")

    def second() -> None:
        runner.command("Touch the file", "touch", tmp_path / "file")
        runner.wait_for("Wait for the file")
        assert "Wait for the file" in runner.seconds

    runner.side_by_side(first, second)
    # done before, in another run
    StepRunner(tmp_path / "demo", SETTINGS, total=3).wait_for("Say it")
    assert runner.commands["Say it"] == "echo one"


def start_two_tracks(folder: Path) -> tuple[subprocess.Popen, list[Path]]:
    """Start a run whose two steps wait for files; return it with the files of their process ids."""
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{Path(step_runner.__file__).parent}",
        },
    )
    files = [folder / "one.pid", folder / "two.pid"]
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return program, files


@pytest.mark.parametrize("of_all", [False, True])
def test_an_interruption_ends_both_tracks(tmp_path, of_all):
    """Ctrl-C reaches all processes of the terminal, ``kill -INT`` the program alone."""
    program, files = start_two_tracks(tmp_path)
    (os.killpg if of_all else os.kill)(program.pid, signal.SIGINT)
    output, error = program.communicate(timeout=60)
    assert program.returncode == 130
    assert error == "run_demo.py: interrupted\n"
    assert sorted(re.findall("Wait for .*|After .*", output)) == ["Wait for one", "Wait for two"]
    assert not any(is_running(int(file.read_text())) for file in files)


def test_no_run_begins_while_processes_of_a_killed_run_go_on(tmp_path):
    program, files = start_two_tracks(tmp_path)
    program.kill()
    program.communicate()
    again = StepRunner(tmp_path / "demo", {}, total=1)
    with pytest.raises(UserError, match=r"demo: another run, or a process that a killed run has"):
        again.side_by_side(lambda: again.command("Say it", "echo one"))
    for name in ("one", "two"):
        (tmp_path / name).touch()
    deadline = time.monotonic() + 60
    while any(is_running(int(file.read_text())) for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    again = StepRunner(tmp_path / "demo", {}, total=1)
    again.side_by_side(lambda: again.command("Say it", "echo one"))
    assert list(again.seconds) == ["Say it"]
