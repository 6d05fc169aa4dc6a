"""The program that runs all benchmarks: its table, its file, and its comparison."""

import json
import runpy
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "run.py"


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    program = runpy.run_path(str(PROGRAM))
    names = program["main"].__globals__
    monkeypatch.setitem(
        names, "run_apart", lambda name, args: names["run_here"](name, small(names))
    )
    monkeypatch.setitem(names, "measure_machine", lambda setting: {"GB/s": 1.5})
    return names


def small(names):
    return names["Setting"](1, 1, True)


def run(program, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
    return program["main"]()


def test_a_benchmark_that_became_slower_is_named(program, monkeypatch, capsys, tmp_path):
    row = program["Row"]
    seconds = [1.0]

    def fake(setting):
        yield row("of a limit", 2 * seconds[0], limit=1.0)
        yield row("of a peer", seconds[0] ** 2, {"peer": 4.0})

    monkeypatch.setitem(program["BENCHMARKS"], "fake", fake)
    file = tmp_path / "before.json"
    assert run(program, monkeypatch, "fake", "--json", file) == 0
    assert "| fake | of a limit | 2 s |  | 1 s (2.00) |" in capsys.readouterr().out
    assert json.loads(file.read_text())["machine"] == {"GB/s": 1.5}
    seconds[0] = 1.06
    assert run(program, monkeypatch, "fake", "--compare", file) == 1
    worse = [x for x in capsys.readouterr().out.splitlines() if x.startswith("WORSE")]
    assert worse == ["WORSE of a peer: 0.281 of its limit or peer, 0.25 before"]
    seconds[0] = 1.04
    assert run(program, monkeypatch, "fake", "--compare", file) == 0


@pytest.mark.parametrize("content", ["{", "[]", '{"results": []}', '{"results": {"a": {}}}'])
def test_a_file_of_another_program_is_no_earlier_run(
    program, monkeypatch, capsys, tmp_path, content
):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(SystemExit) as end:
        run(program, monkeypatch, "ranking", "--compare", tmp_path / "a.json")
    assert end.value.code == 2
    assert "a.json: must be a file that --json wrote" in capsys.readouterr().err


def test_a_small_run_has_a_limit_and_its_peak_memory(program, monkeypatch, capsys):
    assert run(program, monkeypatch, "clip_extraction", "--small", "--rounds", "1") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("| clip_extraction | resnext101_3d, a clip | ")
    assert last.endswith(" MB |")
    assert float(last.split("(")[1].split(")")[0]) > 0


def test_fixed_batches_are_the_peer_of_continuous_batching(program, monkeypatch, capsys):
    assert run(program, monkeypatch, "continuous_batching", "--small", "--rounds", "1") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("| continuous_batching | conv_story_tiny, 6 texts of mixed lengths | ")
    assert "fixed batches: " in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no benchmark 'nothing'; there are summaries_bart, "),
        (["ranking", "--rounds", "0"], "--rounds and --threads must be 1 or more"),
        (["ranking", "--compare", "missing.json"], "--compare missing.json: must be a file that"),
    ],
)
def test_wrong_arguments_are_one_line(program, monkeypatch, capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        run(program, monkeypatch, *arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
