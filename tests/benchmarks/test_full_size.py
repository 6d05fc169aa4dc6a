"""Full sizes: releases in their layouts, memory of all processes, growth, and equal workers."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import full_size  # noqa: E402
from _synthetic_releases import RELEASES, RandomText  # noqa: E402

from fairseq_mm.cli.main import main as fairseq_mm  # noqa: E402

needs_linux = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from Linux's /proc"
)


def test_the_words_of_a_text_fall_in_frequency_as_in_large_corpora():
    text = RandomText(1, types=50_000, knee=2000)
    words = [word for line in text.sentences([100] * 3000) for word in line.split()[:-1]]
    counts = np.sort(np.unique(words, return_counts=True)[1])[::-1]
    assert 0.05 < counts[0] / len(words) < 0.1
    assert 0.1 < counts[99] / counts[9] < 0.2  # (9 + 2.7) / (99 + 2.7) is .115
    assert len(counts) > 10_000


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_read_as_the_published_one(name, tmp_path):
    release, data = tmp_path / "release", tmp_path / "data"
    release.mkdir()
    RELEASES[name](release, 1e-4)
    run = full_size.Run(release, data, tmp_path, "cpu", updates=1, items=1)
    command = next(full_size.STEPS_OF[name](run)).command.partition(" && ")[0]
    assert fairseq_mm(command.split()[1:]) == 0
    report = json.loads((data / "prepare.json").read_text())
    counts = [next(iter(counts.values())) for counts in report["counts"].values()]
    assert counts == [100] * 3


@needs_linux
def test_memory_and_time_are_of_all_processes(tmp_path):
    held = "import time; x = bytearray({} << 20); time.sleep(1.5)"
    script = " & ".join(f'{sys.executable} -c "{held.format(size)}"' for size in (200, 300))
    found = full_size.measure(["bash", "-c", f"{script}; wait; exit 3"], tmp_path / "log")
    assert found.status == 3
    assert 500 < found.anonymous / (1 << 20) < 600
    assert 1.5 < found.seconds < 30
    assert 0 < found.cpu_seconds < found.seconds


def row(seconds, memory, *, status=0, input_growth=1):
    sizes = ("0.25", "0.5", "1")
    keys = ("cpu_seconds", "anonymous")
    fractions = {
        size: {**dict(zip(keys, figures)), "status": status}
        for size, *figures in zip(sizes, seconds, memory)
    }
    return {"input_growth": input_growth, "fractions": fractions}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (row([10, 20, 40], [1e9, 2e9, 4e9]), []),
        (row([10, 20, 80], [1e9, 2e9, 4e9]), ["cpu_seconds grows too fast"]),
        (row([10, 20, 80], [1e9, 2e9, 4e9], input_growth=2), []),
        (row([1, 2, 8], [1e9, 2e9, 4e9]), []),  # too short to say
        (row([10, 20, 40], [1e9, 2e9, 17e9])["fractions"], None),
    ],
)
def test_growth_above_the_inputs_is_a_fault(given, expected):
    if expected is None:
        given = {"input_growth": 2, "fractions": {"1": given["1"]}}
        assert full_size.faults(given) == ["more than 16 GB at 1"]
    else:
        assert full_size.faults(given) == expected


@needs_linux
@pytest.mark.slow
def test_an_interrupted_table_is_continued(tmp_path, monkeypatch, capfd):
    options = ["--folder", str(tmp_path), "--releases", "coco", "--fraction", "0.001", "0.002"]
    options += ["--json", str(tmp_path / "figures.json"), "--device", "cpu", "--keep"]
    options += ["--updates", "2", "--items", "3"]
    for steps in (["make", "prepare"], ["train", "generate", "rank"]):
        monkeypatch.setattr(sys, "argv", ["full_size.py", *options, "--steps", *steps])
        assert full_size.main() == 0
    rows = [line for line in capfd.readouterr().out.splitlines() if line.startswith("| coco")][2:]
    assert [re.split(r" *\| *", line)[2] for line in rows] == [
        *("make", "prepare", "train m_rnn", "generate m_rnn", "train vse_lstm", "rank vse_lstm"),
    ]
