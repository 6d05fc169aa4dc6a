"""Damaged inputs of every reader and command: refused with one line, or read; `make soak` has many.

FUZZ_INPUTS and FUZZ_SEED say how many the long run has, and which.
"""

import os
import random

import pytest
from fuzz_targets import TARGETS
from mutations import mutate
from run_fuzz import Counts, Fuzzer
from toy_processes import needs_fork

SAMPLE = 120
SOAK = int(os.environ.get("FUZZ_INPUTS", "3000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    return Fuzzer(tmp_path_factory.mktemp("fuzz"), seed=SEED)


def damage(fuzzer, numbers):
    """Counts and the lines of the faults."""
    counts, faults = Counts(), []
    for number in numbers:
        outcome = fuzzer.run(number)
        target, name, *_ = fuzzer.damaged(number)
        if counts.add(target, outcome):
            faults.append(f"{number}: {target.name}: {name}: {outcome.verdict}: {outcome.message}")
    print(counts.table())
    return counts, faults


@needs_fork
def test_a_sample_of_damaged_inputs_gives_no_fault(fuzzer):
    slow = sum(target.is_slow for target in TARGETS)
    counts, faults = damage(fuzzer, range(len(TARGETS), len(TARGETS) + SAMPLE))
    assert faults == []
    assert len(counts.by_target) > 0.8 * (len({target.name for target in TARGETS}) - slow)
    assert sum(found["refused"] for found in counts.by_target.values()) > SAMPLE / 4


@needs_fork
@pytest.mark.slow
def test_many_damaged_inputs_give_no_fault(fuzzer):
    assert damage(fuzzer, range(SOAK))[1] == []


@needs_fork
@pytest.mark.slow
def test_every_command_accepts_its_good_inputs(fuzzer):
    outcomes = {target.name: fuzzer.run_target(target) for target in TARGETS}
    assert {name: x.output for name, x in outcomes.items() if x.verdict != "accepted"} == {}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.idx", "a.npy", "a.npz", "a.h5"])
def test_damage_depends_on_the_seed_alone(name):
    content = b'{"a": [1, {"b": "c d"}]}\n' * 3
    first, again, other = (
        [mutate(content, name, random.Random(f"{seed} {i}")) for i in range(40)]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert content not in first


def test_damage_changes_a_file():
    contents = [b"", b"a", b"MMIDIDX\0\0" + bytes(range(1, 90))]
    for content in contents:
        for name in ("a.idx", "a.bin"):
            damaged = [mutate(content, name, random.Random(f"1 {i}")) for i in range(3000)]
            assert content not in damaged


def judged(fuzzer, monkeypatch, code):
    """The verdict on a command of this code."""
    monkeypatch.setattr("fairseq_mm.cli.main.main", lambda words: exec(code, {}) or 0)
    return fuzzer.run_target(TARGETS[0]).verdict


@needs_fork
@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("print('done')", "accepted"),
        ("import sys; print('x: no', file=sys.stderr); sys.exit(2)", "refused"),
        ("import sys; sys.exit(2)", "traceback"),
        ("{}['a']", "traceback"),
        ("import os; os.abort()", "killed"),
        ("x = b'1' * (1950 << 20)", "memory"),
        ("import time; time.sleep(60)", "hang"),
    ],
)
def test_faults_are_seen(fuzzer, monkeypatch, code, verdict):
    if verdict == "hang":
        monkeypatch.setattr("run_fuzz.LIMIT_SECONDS", 0.3)
    if verdict == "memory":
        # A forked process does not count the libraries that its parent has mapped, up to 1 GB.
        monkeypatch.setattr("run_fuzz.LIMIT_BYTES", 1 << 30)
    assert judged(fuzzer, monkeypatch, code) == verdict
