"""The quickstart notebook: its cells in small, and executed by a kernel as it is."""

import os
import re
import sys
from pathlib import Path

import pytest
from forked_shell import ForkedShell

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
SMALL = """
close_ups, whole_images = 64, 64
captioned = {"train": 24, "valid": 4, "test": 6}
epochs = 1
seed = 1
"""


def read_notebook(settings=None):
    """Read the notebook; ``settings`` replaces the source of the cell of parameters."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())
    ]
    if settings is not None:
        # the names of all settings are replaced, none is added
        names = re.compile(r"^([\w, ]+) =", re.MULTILINE)
        assert names.findall(parameters.source) == names.findall(settings)
        parameters.source = settings
    return notebook


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Executes the notebook in a folder of its own; returns the outputs of each cell, as text."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "demo").symlink_to(NOTEBOOK.parent / "demo")

    def run():
        notebook = read_notebook()
        resources = {"metadata": {"path": str(tmp_path)}}
        client = nbclient.NotebookClient(notebook, timeout=1200, resources=resources)
        client.execute()
        return [
            "\n".join(
                output.get("text") or "\n".join(map(str, output.get("data", {}).values()))
                for output in cell.get("outputs", ())
            )
            for cell in notebook.cells
            if cell.cell_type == "code"
        ]

    return run


@pytest.fixture
def run_cells(tmp_path, monkeypatch, capsys):
    """Runs the cells in this process and in bash; returns everything that they show."""
    ipython = pytest.importorskip("IPython.display")
    monkeypatch.setattr(
        ipython, "display", lambda shown: print(getattr(shown, "_repr_html_", shown.__repr__)())
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("PATH", "EPOCHS", "UPDATES", "PYTHONWARNINGS"):  # which the cells set
        monkeypatch.setenv(name, os.environ.get(name, ""))
    (tmp_path / "demo").symlink_to(NOTEBOOK.parent / "demo")
    monkeypatch.chdir(tmp_path)
    shell = ForkedShell(tmp_path)

    def run(settings):
        variables = {"__name__": "__main__"}
        for cell in read_notebook(settings).cells:
            magic, _, script = cell.source.partition("\n")
            if cell.cell_type == "code" and magic == "%%bash":
                shell.environment = {**os.environ, "PATH": shell.environment["PATH"]}
                done = shell.run(script)
                assert done.status == 0, done.output
                print(done.output)
            elif cell.cell_type == "code":
                exec(cell.source, variables)
        return capsys.readouterr().out

    yield run
    shell.close()


def test_the_notebook_has_no_outputs():
    content = NOTEBOOK.read_text()
    assert content.count('"outputs": []') == content.count('"cell_type": "code"') > 8
    assert content.count('"execution_count": null') == content.count('"outputs": []')


def test_all_cells_run_in_small(run_cells):
    shown = run_cells(SMALL)
    assert shown.count("<img src=") == 5  # four captions, and the own drawing
    assert "of 6 captions are right" in shown
    assert "bleu4" in shown
    assert "epoch 1, valid: perplexity" in shown


@pytest.mark.slow
def test_the_captions_are_mostly_right(execute):
    shown = "\n".join(execute())
    right, total = map(int, re.search(r"(\d+) of (\d+) captions are right", shown).groups())
    assert total == 200
    assert right > 0.8 * total
    assert "IProgress" not in shown
