"""The program that measures generation on a GPU, at sizes that say nothing of speed, on a CPU."""

import json
import runpy
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu_generation.py"


def run(monkeypatch, *arguments):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, arguments)])
    runpy.run_path(str(PROGRAM), run_name="__main__")


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """Return a function that measures cases, and returns the rows of its JSON file."""
    file = tmp_path / "rows.json"

    def measure(*names):
        run(monkeypatch, "--small", "--device", "cpu", "--json", file, "--only", *names)
        return json.loads(file.read_text())

    return measure


def test_summaries_are_those_of_hugging_face_with_the_same_weights(rows):
    pytest.importorskip("transformers")
    measured = [x for x in rows("bart", "t5") if x["dtype"] == "float32"]
    compared = {(x["system"], x["engine"].split(",")[0]): x for x in measured if "equal" in x}
    assert {*compared} == {(x, y) for x in ("bart", "t5") for y in ("HF", "ours")}
    assert all(x["equal"] == 1 for x in compared.values())
    assert all(x["x HF"] > 0 for x in compared.values() if x["engine"] == "ours")


def test_stories_have_a_row_in_float32_and_in_half_precision(rows):
    measured = rows("conv_story")
    assert {x["dtype"] for x in measured} == {"float32", "bf16"}
    for row in measured:
        assert row["x limit"] == pytest.approx(row["ms/step"] / row["limit ms"], rel=0.2, abs=0.1)


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run(monkeypatch)
    assert capsys.readouterr().out == "No GPU was found: nothing to measure.\n"
