"""The benchmark of trainings on a GPU runs at tiny sizes on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu_training.py"


def test_it_runs_on_a_cpu(tmp_path):
    cases = ["conv_story_gated, one pass", "fconv_self_att_wp", "transtory_xl", "m_rnn"]
    command = [sys.executable, str(PROGRAM), "--small", "--device", "cpu", "--only", *cases]
    command += ["--precisions", "float32", "--json", str(tmp_path / "rows.json")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["system"] for row in rows] == cases
    assert all(row["words/s"] > 0 and row["limit ms"] > 0 for row in rows)
