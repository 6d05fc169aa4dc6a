"""The benchmark of video summaries runs, at sizes that say nothing of speed."""

import runpy
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "video_summarization.py"


@pytest.mark.parametrize(
    ("what", "systems"),
    [
        ("training", ["bart", "vg_bart", "vg_bart, one layer, dot product, no gate"]),
        ("generation", ["bart", "vg_bart, decoder layer 2"]),
    ],
)
def test_each_system_has_a_row(monkeypatch, capsys, what, systems):
    options = ["--small", "--threads", "1", "--rounds", "1", "--batch", "2", "--systems"]
    monkeypatch.setattr(sys, "argv", ["benchmark", what, *options, *systems])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    rows = [x.split(" | ")[0] for x in capsys.readouterr().out.splitlines() if x.startswith("| ")]
    assert rows == ["| system", *(f"| {name}" for name in systems)]


def test_hugging_face_writes_with_the_same_weights(monkeypatch, capsys):
    pytest.importorskip("transformers")
    systems = ["bart", "bart, Hugging Face"]
    options = ["generation", "--small", "--threads", "1", "--rounds", "1", "--systems"]
    monkeypatch.setattr(sys, "argv", ["benchmark", *options, *systems])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    assert "| bart, Hugging Face | " in capsys.readouterr().out
