"""The benchmark of trainings on a GPU runs at tiny sizes on a CPU."""

import json
import runpy
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu_training.py"


def test_it_runs_on_a_cpu(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    command = [str(PROGRAM), "--small", "--device", "cpu", "--only", "m_rnn"]
    command += ["--precisions", "float32", "--json", str(tmp_path / "rows.json")]
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(str(PROGRAM), run_name="__main__")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["system"] for row in rows] == ["m_rnn"]
    assert all(row["words/s"] > 0 and row["limit ms"] > 0 for row in rows)
