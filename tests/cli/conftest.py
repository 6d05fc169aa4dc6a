"""Fixtures shared by the tests of commands."""

import json

import pytest

from fairseq_mm.cli import doctor_environment
from fairseq_mm.cli.main import main


@pytest.fixture
def write(tmp_path):
    def write_file(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_file


@pytest.fixture
def run_for_json(run_command):
    """Runs a command: exit status, content of the file that it writes, stdout, stderr."""

    def run(path, *arguments):
        status, out, err = run_command(*arguments)
        return status, json.loads(path.read_text()) if path.exists() else {}, out, err

    return run


@pytest.fixture
def examine(capsys, monkeypatch):
    """Runs the command without its checks of the environment: exit status, lines, problems."""
    for name in ("check_torchvision_fits", "check_fairseq"):
        monkeypatch.setattr(doctor_environment, name, list)

    def run(*arguments):
        capsys.readouterr()
        status = main(["doctor", *map(str, arguments)])
        lines = capsys.readouterr().out.splitlines()
        problems = [line for line in lines if line.startswith("PROBLEM")]
        remedied = [line for line in lines if line.startswith(("PROBLEM", "note"))]
        assert all(" -> " in line for line in remedied)
        assert status == (2 if problems else 0)
        assert lines[-1].startswith(str(len(problems)) if problems else "no problem found")
        return status, lines, problems

    return run
