"""A shell completes subcommands, options, choices and file names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_mm.cli import completion
from fairseq_mm.cli.main import SUBCOMMANDS, Parser, main

pytest.importorskip("argcomplete", reason="argcomplete is not installed")
ROOT = Path(__file__).resolve().parents[2]
# as readline calls the function; COMPREPLY are the completions
COMPLETE = """
complete_line() {
    COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
    COMPREPLY=()
    _python_argcomplete fairseq-mm
    local IFS='|'
    echo "${COMPREPLY[*]}"
}
"""
LINES = {
    "fairseq-mm ca": ["caption"],
    "fairseq-mm sc": ["score"],
    "fairseq-mm caption --be": ["--beam"],
    "fairseq-mm caption --weights-dtype ": ["float32", "bfloat16", "int8"],
    # a number
    "fairseq-mm caption --beam ": [],
    # files of the folder, and folders
    "fairseq-mm caption --checkpoint mo": ["models/", "model.pt"],
    "fairseq-mm prepare captions lines.jsonl --output mo": ["models/"],
    "fairseq-mm caption 'my ima": ["my images/"],
    "fairseq-mm prepare flickr3": ["flickr30k"],
    "fairseq-mm prepare flickr8k --strict --thr": ["--threshold"],
    "fairseq-mm store in": ["info"],
    "fairseq-mm score --preset w": ["wp"],
    "fairseq-mm score --metrics bleu,me": ["bleu,meteor", "bleu,meteor_vist"],
    "fairseq-mm extract --model resnet": ["resnet50", "resnet152"],
    "fairseq-mm rank --split v": ["valid"],
    # the default action of `retrieve` can be left out
    "fairseq-mm retrieve p": ["prompts", "plot"],
    "fairseq-mm retrieve --checkp": ["--checkpoint"],
    "fairseq-mm retrieve vectors.h5 --mi": ["--minus"],
    "fairseq-mm retrieve plot --mi": [],
    "fairseq-mm completion f": ["fish"],
    "fairseq-mm --ver": ["--version"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the program ``fairseq-mm`` and files to complete."""
    folder = tmp_path_factory.mktemp("completion")
    program = folder / "bin" / "fairseq-mm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fairseq_mm "$@"\n')
    program.chmod(0o755)
    for name in ("models", "my images"):
        (folder / name).mkdir()
    (folder / "model.pt").write_text("")
    return folder


def ask(folder, line, shell, **variables):
    """Run the program as the function of a shell does; return its answer and stderr."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": shell,
        "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "answer"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        **variables,
    }
    command = [sys.executable, "-X", "importtime", "-m", "fairseq_mm"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    return (folder / "answer").read_text(), done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_lines(folder):
    script = 'eval "$(fairseq-mm completion bash)"\n' + COMPLETE
    script += "".join(f"complete_line {line!r}\n" for line in LINES if "'" not in line)
    quoted = [line for line in LINES if "'" in line]
    script += "".join(f'complete_line "{line}"\n' for line in quoted)
    done = subprocess.run(
        ["bash", "-c", script],
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    order = [*(line for line in LINES if "'" not in line), *quoted]
    answers = [line.split("|") if line else [] for line in done.stdout.splitlines()]
    found = {
        line: sorted(word.replace("\\", "").strip() for word in words)
        for line, words in zip(order, answers, strict=True)
    }
    assert found == {line: sorted(words) for line, words in LINES.items()}


def test_other_shells_get_descriptions_of_every_subcommand(folder):
    answer, _ = ask(folder, "fairseq-mm ", "fish", _ARGCOMPLETE_DFS="\t", _ARGCOMPLETE_IFS="\n")
    found = dict(line.split("\t") for line in answer.splitlines())
    assert found == SUBCOMMANDS


@pytest.mark.parametrize("line", ["fairseq-mm score --pre", "fairseq-mm caption --be"])
def test_completing_imports_neither_torch_nor_fairseq(folder, line):
    answer, imports = ask(folder, line, "bash")
    assert answer.strip() in ("--preset", "--beam")
    modules = {row.rpartition("|")[2].strip() for row in imports.splitlines()}
    assert "argcomplete" in modules
    assert not modules & {"torch", "fairseq", "torchvision"}


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("bash", "complete -o nospace -o default -o bashdefault -F _python_argcomplete"),
        ("zsh", "#compdef fairseq-mm"),
        ("fish", "complete --command fairseq-mm"),
    ],
)
def test_prints_the_script_of_each_shell(run_command, shell, words):
    status, out, err = run_command("completion", shell)
    assert (status, err) == (0, "")
    assert words in out
    assert "fairseq-mm" in out


def test_every_metavar_of_a_number_is_known():
    """An option that takes an integer offers no files, whatever its parsing function is."""
    import importlib

    numbers = set()
    for name in SUBCOMMANDS:
        module = importlib.import_module(f"fairseq_mm.cli.{name.replace('-', '_')}")
        parser = Parser(prog=name)
        module.add_arguments(parser)
        for action in completion._actions(parser):
            if isinstance(action.default, (int, float)) and action.nargs is None:
                numbers.add(action.metavar)
    unknown = {metavar for metavar in numbers - completion._PLAIN if metavar is not None}
    assert unknown == set()


def test_without_argcomplete_nothing_runs(monkeypatch, run_command):
    for name in ("argcomplete", "argcomplete.shell_integration"):
        monkeypatch.setitem(sys.modules, name, None)
    status, out, err = run_command("completion", "bash")
    assert (status, out) == (2, "")
    assert "pip install 'fairseq-mm[completion]'" in err
    assert len(err.splitlines()) == 1
    # the shell calls the program: a subcommand on its line must not run
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setattr(sys, "argv", ["fairseq-mm", "user-dir"])
    assert main() == 1
