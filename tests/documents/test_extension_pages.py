"""The pages "Add a model" and "Add a task" run exactly as they stand."""

import ast
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from forked_shell import ForkedShell

import fairseq_mm

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = {
    "python": "",
    "fairseq-mm": "-m fairseq_mm",
    "fairseq-train": "-m fairseq_cli.train",
    "fairseq-generate": "-m fairseq_cli.generate",
}
LINES, COLUMNS = 60, 80


def read_blocks(page):
    """Language, file name and code of the page's blocks."""
    return BLOCK.findall((ROOT / "docs" / page).read_text())


class Folder:
    """A new folder in which a page's files are written and its commands are run; `printed` is
    their output."""

    def __init__(self, path, page, python):
        self.path, self.printed = path, ""
        shims = path.parent / f"{path.name}-bin"
        shims.mkdir()
        for name, arguments in COMMANDS.items():
            (shims / name).write_text(f'#!/bin/sh\nexec "{python}" {arguments} "$@"\n')
            (shims / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(fairseq_mm.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        }
        path.mkdir()
        shell = ForkedShell(path)
        for language, title, code in read_blocks(page):
            if title:
                (path / title).parent.mkdir(exist_ok=True)
                (path / title).write_text(code)
            elif language == "bash":
                done = shell.run(code)
                assert done.status == 0, f"{code}\n{done.output[-3000:]}"
                self.printed += done.output
        shell.close()

    def run(self, command, status=0):
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, f"{command}\n{done.stderr[-3000:]}"
        return done


@pytest.fixture(scope="module")
def model_folder(started_python, tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("pages") / "model", "add_model.md", started_python)


@pytest.fixture(scope="module")
def task_folder(started_python, tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("pages") / "task", "add_task.md", started_python)


@pytest.mark.parametrize("page", ["add_model.md", "add_task.md"])
def test_the_plugin_is_short_and_needs_public_names_only(page):
    (code,) = [code for _, title, code in read_blocks(page) if title.endswith("__init__.py")]
    lines = code.splitlines()
    assert len(lines) <= LINES
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fairseq_mm"):
            assert (node.module, [name.name for name in node.names]) == (
                "fairseq_mm",
                ["extension"],
            )
    names = set(re.findall(r"extension\.(\w+)", code))
    from fairseq_mm import extension

    assert names <= set(extension.__all__)
    for language, _, block in read_blocks(page):
        if language != "text":
            assert [line for line in block.splitlines() if len(line) > COLUMNS] == []


def test_a_model_of_ones_own_is_trained_scored_reported_and_loaded(model_folder):
    assert re.search(r"^bleu4 +1\.00000", model_folder.printed, re.MULTILINE)
    assert "A dog on" in (model_folder.path / "captions.html").read_text()
    caption = json.loads((model_folder.path / "captions.jsonl").read_text().splitlines()[0])
    expected = caption["captions"][0].lower().strip(".").strip()
    assert model_folder.printed.splitlines()[-1] == expected


def test_the_checkpoint_of_a_plugin_that_is_not_given_names_it(model_folder):
    text = " ".join((ROOT / "docs" / "add_model.md").read_text().split())
    done = model_folder.run("fairseq-mm perplexity data --checkpoint checkpoints", status=2)
    assert " ".join(done.stderr.split()) in text


def test_a_task_of_ones_own_is_trained_scored_reported_and_loaded(task_folder):
    bleu = re.search(r"^bleu4 +(\S+)", task_folder.printed, re.MULTILINE)
    assert float(bleu[1]) > 0.9
    assert (task_folder.path / "captions.html").exists()
    assert re.fullmatch(
        r"a (low|middle|high) tone with (some|no) noise", task_folder.printed.splitlines()[-1]
    )
    # an input that cannot be read is named; the others get captions
    (task_folder.path / "two.jsonl").write_text(
        '{"id": "a", "sound": "captions.jsonl"}\n{"id": "b", "sound": "sounds/1.wav"}\n'
    )
    command = "fairseq-mm generate two.jsonl --checkpoint checkpoints --user-dir my_sounds"
    done = task_folder.run(command, status=2)
    assert "captions.jsonl: is no WAV file" in done.stderr
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["b"]


# a model with the name of another one, which fairseq would train in its place
TAKEN_NAME = """
from fairseq.models import BaseFairseqModel, register_model


@register_model("m_rnn")
class MyModel(BaseFairseqModel):
    pass
"""
TAKEN_MESSAGE = (
    ".MyModel: its name, 'm_rnn', is taken by fairseq_mm.models.m_rnn.MRnnModel; register it under "
    "another name."
)


@pytest.mark.parametrize("is_given", [False, True])
def test_an_installed_plugin_is_loaded_once_by_every_command(model_folder, tmp_path, is_given):
    metadata = tmp_path / "site" / "theirs-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[fairseq_mm.plugins]\ncaptioners = theirs.my_captioners\nbroken = theirs.broken\n"
        "taken = theirs.taken\n"
    )
    package = tmp_path / "site" / "theirs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("import a_library_that_is_missing\n")
    (package / "taken.py").write_text(TAKEN_NAME)
    (package / "my_captioners").symlink_to(model_folder.path / "my_captioners")
    environment = dict(model_folder.environment)
    model_folder.environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'site'}"
    folder = str(package / "my_captioners")
    user_dir = f"--user-dir {folder}" if is_given else ""
    try:
        done = model_folder.run(f"fairseq-mm perplexity data --checkpoint checkpoints {user_dir}")
        broken = "plugin broken (theirs.broken) is not loaded: ModuleNotFoundError"
        assert done.stderr.count(broken) == 1
        assert f"is not loaded: UserError: theirs.taken{TAKEN_MESSAGE}" in done.stderr
        assert "perplexity, all tokens" in done.stdout
        folder = folder if is_given else str(Path(fairseq_mm.__file__).parent)
        done = model_folder.run(
            f"fairseq-train data --user-dir {folder} --task multimodal_captioning --max-update 1 "
            "--arch gru_small --criterion cross_entropy --optimizer adam --no-save "
            "--batch-size 32"
        )
        assert done.stderr.count(broken) == 1
        assert "done training" in done.stdout + done.stderr
    finally:
        model_folder.environment = environment


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "cannot be imported: FileNotFoundError"),
        ("raise RuntimeError('no GPU\\nhere')", "cannot be imported: RuntimeError: no GPU"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        (TAKEN_NAME, TAKEN_MESSAGE),
    ],
    ids=["missing", "broken", "exits", "taken"],
)
def test_a_user_dir_that_cannot_be_imported_is_named(run_command, tmp_path, code, message):
    plugin = tmp_path / "plugin"
    if code is not None:
        plugin.mkdir()
        (plugin / "__init__.py").write_text(code)
    status, _, stderr = run_command("store", "info", "features.h5", "--user-dir", plugin)
    assert status == 2
    (line,) = stderr.splitlines()
    assert message in line
