"""The command finds its subcommands, and says what it is."""

import argparse
import ast
import contextlib
import io
import os
import re
import subprocess
import sys

import pytest
from toy_data import PACKAGE, write_store

from fairseq_mm import __version__
from fairseq_mm.cli.main import GONE, SUBCOMMANDS, main

CLI = PACKAGE / "cli"


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fairseq-mm {__version__}\n"


def test_without_arguments_the_subcommands_are_listed_in_groups(capsys):
    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    listed = lines[lines.index("data:") :]
    assert [line.split()[0] for line in listed if line.startswith("  ")] == list(SUBCOMMANDS)
    examples = [line for line in lines if line.startswith("  fairseq-mm ")]
    assert len(examples) == 3


def test_options_of_an_architecture_are_listed_with_its_defaults(capsys):
    assert main(["options", "conv_story_tiny"]) == 0
    listed = dict(zip(*[iter(capsys.readouterr().out.splitlines())] * 2))
    assert listed["--encoder-embed-dim 16"] == "    Dimension of the prompt's token embeddings."
    assert main(["options", "conv_stori"]) == 2
    assert "no such architecture; did you mean conv_story" in capsys.readouterr().err


GONE_NAMES = {
    "plain": ["plain", "x", "--seed", "1"],
    "caption --old": ["caption", "--old=3"],
    "--old": ["store", "info", "--old"],
    "store inspect": ["store", "inspect", "a"],
    "tell beams": ["tell", "--preset", "beams"],
    "old:": ["extract", "a", "--extractor=old:b"],
}


@pytest.mark.parametrize("name", GONE_NAMES)
def test_what_is_gone_says_what_to_use(capsys, monkeypatch, name):
    monkeypatch.setitem(GONE, name, "this")
    with contextlib.suppress(SystemExit):
        main(GONE_NAMES[name])
    err = capsys.readouterr().err
    assert err.endswith(f" {name.split()[-1]} is gone in 0.3.0: use this.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paint"], "fairseq-mm: argument SUBCOMMAND: there is no 'paint'"),
        (["captoin"], "there is no 'captoin'; did you mean caption?"),
        (["caption", "--chekpoint", "x"], "no option --chekpoint; did you mean --checkpoint?"),
        (["store", "inof", "x"], "; did you mean info?"),
        (["score", "h.txt", "--json", ""], "score: --json must be a path, but is empty (fair"),
        (["score", "h.txt", "--compare="], "score: --compare must be a path, but is empty ("),
        (
            ["report", "--data", "d", "--output", "o", "--hypotheses", ""],
            "--hypotheses must be a p",
        ),
        (["store", "info", ""], "store info: PATH must be a path, but is empty ("),
        (["tell", "--preset", "gredy"], "; did you mean greedy?"),
        (
            ["store", "merge", "a.h5", "b.h5", "--overwirte"],
            "store merge: there is no option --overwirte;",
        ),
        (
            ["store", "merge", "a.h5", "--output", "b", "--zzz"],
            "store merge: unrecognized arguments: --zzz (fair",
        ),
        (
            ["prepare", "captions", "a", "--output", "b", "--zzz"],
            "mm prepare captions: unr",
        ),
        (["caption", "--checkpoint", "x", "--num-beams", "3"], "--num-beams; did you mean --beam?"),
        (["tell", "--top-p", ".9"], "there is no option --top-p; did you mean --sampling-topp?"),
        (["caption", "p.jpg"], "required: --checkpoint (fairseq-mm caption --help)."),
        (["caption", "--beam", "x"], "fairseq-mm caption: argument --beam: invalid int value: 'x'"),
    ],
)
def test_what_is_misspelt_or_missing_is_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_the_package_runs_as_a_module(tmp_path):
    command = [sys.executable, "-m", "fairseq_mm", "user-dir"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (0, f"{PACKAGE.resolve()}\n"), done.stderr


@pytest.mark.parametrize(
    "command",
    [
        *("caption a.jpg --checkpoint {}", "rank d --split v", "inspect d --checkpoint {}"),
        *("tell --prompts-only 3 --prompt-model {}", "tell d --split v --compare a={}"),
        "embed d --of images --output v.h5 --checkpoint {}",
    ],
)
def test_a_missing_checkpoint_is_refused_before_torch_is_imported(command, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    program = (
        "import sys; from fairseq_mm.cli.main import main; status = main(sys.argv[1:]);"
        "print(status, *{'torch', 'fairseq', 'numpy'}.intersection(sys.modules))"
    )
    words = command.format("none.pt").split()
    if "none.pt" not in command.format("none.pt"):
        words += ["--checkpoint", "none.pt"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.split()[0] == "2", done.stderr
    assert not {"torch", "fairseq"} & set(done.stdout.split())
    assert done.stderr.endswith(": none.pt: no such checkpoint or folder.\n")


def parsers_of(*names):
    """A subcommand's parser, then those of its own subcommands, with their names."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "print_help", lambda self: found.append(self))
        with pytest.raises(SystemExit):
            main([*names, "--help"])
    yield names, found[0]
    for action in found[0]._actions:
        if names and isinstance(action, argparse._SubParsersAction):
            for name in action.choices:
                yield from parsers_of(*names, name)


@pytest.mark.parametrize("names", [(), *((name,) for name in SUBCOMMANDS)], ids=" ".join)
def test_help_fits_a_terminal_and_is_written_in_sentences(monkeypatch, names):
    monkeypatch.setenv("COLUMNS", "80")
    for path, parser in parsers_of(*names):
        lines = parser.format_help().splitlines()
        assert [line for line in lines if len(line) > 80] == []
        # one backslash continues a command of a shell; two would end it
        assert [line for line in lines if line.endswith("\\\\")] == []
        if len(path) == 1:
            assert any(re.match(rf"  .*fairseq-mm {path[0]}\b", line) for line in lines)
        if path:
            helps = [
                action.help
                for action in parser._actions
                if action.dest != "help"
                and action.help is not argparse.SUPPRESS
                and not isinstance(action, argparse._SubParsersAction)
            ]
            assert [text for text in helps if not re.match(r"[A-Z].*[.)]$", text)] == []


def test_help_waits_for_neither_torch_nor_fairseq():
    code = (
        "import argparse, importlib, sys\n"
        "from fairseq_mm.cli.main import SUBCOMMANDS\n"
        "for name in SUBCOMMANDS:\n"
        '    module = importlib.import_module(f\'fairseq_mm.cli.{name.replace("-", "_")}\')\n'
        "    module.add_arguments(argparse.ArgumentParser())\n"
        "    print(name, *{'torch', 'fairseq'}.intersection(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == list(SUBCOMMANDS), done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_reported_in_one_line(monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["user-dir"]) == 2
    message = "fairseq-mm user-dir: the output: No space left on device.\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_fairseq_is_imported_after_its_warnings_were_silenced(path):
    """What is imported before ``register_quietly`` may import fairseq, which warns and logs."""
    light = ("cli", "errors", "metrics", "data.record_split", "retrieval.pair_scores")

    def is_light(module):
        return module.startswith(tuple(f"fairseq_mm.{name}" for name in light))

    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "register_quietly"
        ]
        for node in ast.walk(function):
            if calls and isinstance(node, ast.ImportFrom) and not is_light(node.module):
                assert node.lineno > min(calls), f"{function.name} imports {node.module}"


def test_no_command_prints_debugging_of_libraries(started_python):
    """fairseq's import sets the log to debugging; score and report import its modules alone."""
    code = """
import logging
from fairseq_mm.cli.main import main
main(["user-dir"])
import fairseq.tasks
logging.getLogger("matplotlib.font_manager").debug("a font")
"""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [started_python, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_terminal_cannot_show_is_printed_as_codes(monkeypatch, tmp_path):
    folder = tmp_path / "h\u00e4user"
    folder.mkdir()
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    write_store(folder / "features.h5", ["h\u00e4user.jpg"])
    assert main(["store", "info", str(folder / "features.h5")]) == 0
    assert b"h\\xe4user" in printed.getvalue()


def test_an_interrupted_import_of_a_plugin_ends_the_command(tmp_path, monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("fairseq.utils.import_user_module", interrupt)
    (tmp_path / "__init__.py").write_text("")
    assert main(["store", "info", "a.h5", "--user-dir", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "fairseq-mm store: interrupted\n"
