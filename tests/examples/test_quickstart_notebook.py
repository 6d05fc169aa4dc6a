"""The quickstart notebook: executed in small, and as it is."""

import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
SMALL = """
close_ups, whole_images = 64, 64
captioned = {"train": 24, "valid": 4, "test": 6}
epochs = 1
seed = 1
"""


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Executes the notebook in a folder of its own; returns the outputs of each cell, as text."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "demo").symlink_to(NOTEBOOK.parent / "demo")

    def run(settings=None):
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        (parameters,) = [
            cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())
        ]
        if settings is not None:
            # the names of all settings are replaced, none is added
            names = re.compile(r"^([\w, ]+) =", re.MULTILINE)
            assert names.findall(parameters.source) == names.findall(settings)
            parameters.source = settings
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


def test_the_notebook_has_no_outputs():
    content = NOTEBOOK.read_text()
    assert content.count('"outputs": []') == content.count('"cell_type": "code"') > 8
    assert content.count('"execution_count": null') == content.count('"outputs": []')


def test_all_cells_run_in_small(execute):
    outputs = execute(SMALL)
    shown = "\n".join(outputs)
    assert shown.count("<img src=") == 5  # four captions, and the own drawing
    assert "of 6 captions are right" in shown
    assert "bleu4" in shown
    assert "epoch 1, valid: perplexity" in shown
    assert "IProgress" not in shown


@pytest.mark.slow
def test_the_captions_are_mostly_right(execute):
    shown = "\n".join(execute())
    right, total = map(int, re.search(r"(\d+) of (\d+) captions are right", shown).groups())
    assert total == 200
    assert right > 0.8 * total
