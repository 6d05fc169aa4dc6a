"""Tables of precision and of processes: every system learns in each, and two processes are one."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from toy_data import needs_float16_on_cpu
from toy_processes import needs_fork

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import processes  # noqa: E402
from _system_training import SYSTEMS, unpack_data  # noqa: E402

# the others are run by `make soak`
QUICK = ("conv_story_fusion",)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("systems")
    unpack_data(folder)
    return folder


@needs_fork
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in SYSTEMS]
)
def test_two_processes_train_as_one(root, name):
    figures = processes.measure(root, SYSTEMS[name], updates=6)
    assert list(figures) == ["gradient", *processes.available_backends()]
    if figures.get("fully_sharded", {}).get("failed", "").startswith("UserError: refused"):
        assert name == "conv_story_fusion"
        del figures["fully_sharded"]
    for column, found in figures.items():
        assert "failed" not in found, (column, found)
        assert found["distance"] < 1e-5, column
        assert found["loss"] <= 0.001, column  # fairseq rounds to three digits


@needs_float16_on_cpu
def test_each_precision_has_a_column(monkeypatch, capsys):
    options = ["--systems", "m_rnn", "--updates", "12"]
    monkeypatch.setattr(sys, "argv", ["precision.py", *options])
    runpy.run_path(str(FOLDER / "precision.py"), run_name="__main__")
    head, _, row = capsys.readouterr().out.splitlines()
    # --amp needs CUDA
    assert head.count("|") == row.count("|") == 7 + torch.cuda.is_available()
    name, *cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert name == "m_rnn"
    losses = [abs(float(cell.split()[0])) for cell in cells[1:]]
    assert max(losses) < 0.05


def run_gpu_check(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *map(str, options)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "gpu_check.py"), run_name="__main__")
    return ended.value.code


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_there_is_nothing_to_check(monkeypatch, capsys, tmp_path):
    assert run_gpu_check(monkeypatch, "--json", tmp_path / "x.json") == 0
    assert capsys.readouterr().out == "No GPU was found: nothing to check.\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--systems", "m_rnn", "nope"), "--systems: must be of m_rnn, .*, but has 'nope'."),
        (("--updates", "0"), "argument --updates: must be a number of 1 or more, but is '0'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(
    monkeypatch, capsys, options, message
):
    assert run_gpu_check(monkeypatch, "--device", "cpu", *options) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.slow
@needs_float16_on_cpu
def test_each_precision_and_output_is_checked(monkeypatch, tmp_path):
    path = tmp_path / "found.json"
    options = ("--device", "cpu", "--systems", "m_rnn", "--updates", "4", "--json", path)
    assert run_gpu_check(monkeypatch, *options) == 0
    found = json.loads(path.read_text())
    assert [row["precision"] for row in found["training"]][:2] == ["float32", "fp16"]
    assert found["training"][0]["distance"] == 0
    outputs = {row["outputs"]: (row["run"], row["equal"]) for row in found["outputs"]}
    assert outputs["captions"][0] > 5
    assert all(run == equal for run, equal in outputs.values())
