"""The benchmark of extraction runs on a CPU, with small images and a small network."""

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_case_has_a_row(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    output = tmp_path / "found.json"
    options = ["--small", "--device", "cpu", "--json", str(output)]
    monkeypatch.setattr(sys, "argv", ["gpu_extraction.py", *options])
    # the program replaces the check for a GPU; this restores it
    for module in ("gpu_decoding", "extractor"):
        name = f"fairseq_mm.extract.{module}.check_gpu_decoding"
        monkeypatch.setattr(name, lambda device: None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "gpu_extraction.py"), run_name="__main__")
    assert ended.value.code == 0
    *rows, cosines = json.loads(output.read_text())
    whats = [row["what"] for row in rows]
    assert whats.count("extraction, decoded by GPU") == 4
    assert {"network alone", "decoding alone", "reading alone"} < set(whats)
    assert all(row["images/s"] > 0 for row in rows)
    assert cosines["smallest cosine"] > 0.999
    assert capsys.readouterr().out.count("\n| ") == len(rows) + 2
