"""Fixtures shared by the tests of commands."""

import json
import shutil

import pytest
from toy_captioner import EMBEDDER, save_images, train_captioner

from fairseq_mm.cli import doctor
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
    monkeypatch.setattr(doctor, "check_fairseq", list)

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


@pytest.fixture(scope="session")
def trained_embedder(tmp_path_factory):
    """A folder with a checkpoint of an image-sentence embedding and its extractor's weights."""
    folder = tmp_path_factory.mktemp("embedder")
    train_captioner(folder, folder / "data", EMBEDDER)
    return folder


@pytest.fixture(scope="session")
def trained_captioner(tmp_path_factory):
    """A folder with a checkpoint of a captioner and its extractor's weights."""
    folder = tmp_path_factory.mktemp("captioner")
    train_captioner(folder, folder / "data")
    return folder


@pytest.fixture(scope="session")
def indexed(trained_embedder, tmp_path_factory):
    """A folder with five images, two of them in a subfolder, and its index."""
    folder = tmp_path_factory.mktemp("indexed") / "photos"
    save_images(folder)
    (folder / "sub").mkdir()
    for name in ("image3.png", "image4.png"):
        (folder / name).rename(folder / "sub" / name)
    arguments = [folder, "--checkpoint", trained_embedder, "--device", "cpu"]
    assert main(["index", *map(str, arguments)]) == 0
    return folder


@pytest.fixture
def photos(indexed, tmp_path):
    """A copy of the folder with its index, which a test may change."""
    return shutil.copytree(indexed, tmp_path / "photos")


@pytest.fixture
def index(run_command):
    """Runs ``fairseq-mm index``: exit status, stdout, stderr."""

    def run(*arguments):
        return run_command("index", *arguments, "--device", "cpu")

    return run


@pytest.fixture
def search(run_command):
    """Runs ``fairseq-mm search``: exit status, stdout, stderr."""

    def run(*arguments):
        return run_command("search", *arguments)

    return run
