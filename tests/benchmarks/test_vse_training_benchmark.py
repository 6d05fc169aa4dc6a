"""The benchmark of training embeddings runs, at sizes that say nothing of speed."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from toy_data import make_captions_folder

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "vse_training.py"
SMALL = ("--threads", "1", "--rounds", "1", "--steps", "1", "--batch", "4")


@pytest.fixture
def run_benchmark(monkeypatch, capsys):
    def run(*options):
        monkeypatch.setattr(sys, "argv", ["benchmark", *SMALL, *map(str, options)])
        runpy.run_path(str(PROGRAM), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_both_trainings_learn_the_same(run_benchmark):
    archs = ["vse_gru", "vse_lstm", "vse_bow"]
    lines = run_benchmark("--captions", "60", "--archs", *archs)
    assert [line.split(":")[0] for line in lines if line.startswith("vse")] == archs
    differences = [float(line.split()[-1]) for line in lines if "losses differ by" in line]
    assert len(differences) == 3
    assert max(differences) < 1e-4
    ratios = json.loads(lines[-1])
    assert set(ratios) == {f"{arch}_{kind}_ratio" for arch in archs for kind in ("cpu", "wall")}


def test_trains_on_a_prepared_folder(run_benchmark, tmp_path):
    data = make_captions_folder(tmp_path / "data")
    lines = run_benchmark("--data", data, "--archs", "vse_bow", "--negatives", "random")
    assert not any("losses differ" in line for line in lines)
    assert json.loads(lines[-1])["vse_bow_cpu_ratio"] > 0
