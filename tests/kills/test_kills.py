"""Killed commands and trainings, run again, end as undisturbed ones do; `make soak` has many kills.

KILLS and KILLS_SEED say how many the long run has, and which.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from compare_outputs import differences, read_checkpoint, unfinished
from kill_targets import LOG, TARGETS, Target
from run_kills import Counts, Killer, Plan, prepare, run_numbers
from toy_processes import needs_fork

pytestmark = needs_fork

SAMPLE = 6
SOAK = int(os.environ.get("KILLS", "300"))
SEED = int(os.environ.get("KILLS_SEED", "1"))
BY_NAME = {target.name: target for target in TARGETS}
QUICK = [BY_NAME[f"fairseq-mm {name}"] for name in ("extract images", "rank by likelihood")]
QUICK += [BY_NAME[f"fairseq-train {name}"] for name in ("until no gain, m_rnn", "m_rnn")]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root = tmp_path_factory.mktemp("kills") / "inputs"
    prepare(root)
    return root


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    """The folder of an undisturbed training."""
    killer = Killer(inputs, tmp_path_factory.mktemp("trained"), seed=SEED)
    return killer.undisturbed(QUICK[-1]).folder


def losses_of(killer, number):
    counts, losses = Counts(), []
    for outcome in run_numbers(killer, range(number)):
        counts.add(outcome)
        losses += [f"{outcome.target.name}: {loss}" for loss in outcome.losses]
    print(counts.table())
    return counts, losses


def test_a_sample_of_kills_loses_nothing(inputs, tmp_path):
    counts, losses = losses_of(Killer(inputs, tmp_path, seed=SEED, targets=QUICK), SAMPLE)
    assert losses == []
    assert sum(row[1] for row in counts.by_target.values()) >= SAMPLE / 4


@pytest.mark.slow
def test_many_kills_lose_nothing(inputs, tmp_path):
    assert losses_of(Killer(inputs, tmp_path, seed=SEED), SOAK)[1] == []


@pytest.mark.parametrize(
    "name",
    [
        *("prepare captions", "prepare how2", "prepare join", "store merge", "embed"),
        *("extract in this process", "study preference"),
    ],
)
def test_a_kill_while_files_move_into_place_loses_nothing(inputs, tmp_path, name):
    killer = Killer(inputs, tmp_path, seed=SEED)
    target = BY_NAME[f"fairseq-mm {name}"]
    last = killer.undisturbed(target).writes
    for write in range(last, max(0, last - 16), -3):
        assert_kill_loses_nothing(killer, target, [write])


def assert_kill_loses_nothing(killer, target, writes):
    """Kills before a write, and before another one when it resumes."""
    outcome = killer.kill(target, [Plan(None, write, 0.0, False) for write in writes])
    assert outcome.is_killed
    assert outcome.losses == [], f"before writes {writes}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prepare videos", "prepare how2", "embed", "extract videos"])
def test_a_kill_before_any_write_loses_nothing(inputs, tmp_path, name):
    killer = Killer(inputs, tmp_path, seed=SEED)
    target = BY_NAME[f"fairseq-mm {name}"]
    for write in range(1, killer.undisturbed(target).writes + 1):
        assert_kill_loses_nothing(killer, target, [write, write])


WRITE_IN_PLACE = """
with open(out / "a.txt", "w") as file:
    file.write("a")
with open(out / "a.txt", "a") as file:
    file.write("b")
"""
LEAVE_PARTIAL = """
partial = out / f"a.txt.{os.getpid()}.partial"
partial.write_text("a")
partial.rename(out / "a.txt")
"""
REFUSE_PARTIAL = """
partial = out / "a.txt.partial"
partial.touch(exist_ok=False)
partial.rename(out / "a.txt")
"""
WRITE_ANEW = """
partial = out / "a.txt.partial"
partial.write_text("a")
partial.rename(out / "a.txt")
"""


@pytest.mark.parametrize(
    ("code", "losses"),
    [
        (WRITE_IN_PLACE, ["a.txt: has other bytes"]),
        (LEAVE_PARTIAL, ["at the end a.txt.N.partial: is left"]),
        (
            REFUSE_PARTIAL,
            [
                "at the end a.txt.partial: is left",
                "at the end a.txt: is missing",
                "status 1: FileExistsError: [Errno N] File exists",
            ],
        ),
        (WRITE_ANEW, []),
    ],
)
def test_losses_are_seen(tmp_path, monkeypatch, code, losses):
    killer = Killer(tmp_path, tmp_path, seed=SEED)
    names = {"out": killer.out, "os": os, "Path": Path}

    def run(name, words):
        try:
            exec(code, dict(names))
        except OSError as error:
            print(f"{type(error).__name__}: {error}".partition(": '")[0])
            return 1
        return 0

    monkeypatch.setattr("run_kills.call_program", run)
    outcome = killer.kill(Target("code", "code"), [Plan(None, 2, 0.0, False)])
    assert outcome.is_killed
    assert [re.sub(r"\d\d+", "N", loss) for loss in outcome.losses] == losses


def test_of_older_checkpoints_only_cut_ones_are_losses(trained, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    shutil.copy(other / "checkpoint_last.pt", other / "checkpoint_1_1.pt")
    assert differences(trained, other) == []
    (other / "checkpoint_1_1.pt").write_bytes(b"PK")
    (other / "checkpoint_last.pt.tmp").touch()
    found = differences(trained, other)
    assert [x.partition(" (")[0] for x in found] == [
        "checkpoint_1_1.pt: cannot be loaded",
        "checkpoint_last.pt.tmp: is left",
    ]


def test_the_probe_of_a_training_is_to_be_removed_by_the_next(trained, tmp_path):
    """fairseq opens and removes a file, to see whether it can write."""
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    (other / "dummy").touch()
    assert unfinished(trained, other) == []
    assert differences(trained, other) == ["dummy: is left"]


@pytest.mark.parametrize("key", ["model", "exp_avg", "log"])
def test_another_training_is_seen(trained, tmp_path, key):
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    assert differences(trained, other) == []
    path = other / LOG if key == "log" else other / "checkpoint_last.pt"
    if key == "log":
        path.write_text(path.read_text().replace('"loss": "', '"loss": "1', 1))
    else:
        state = read_checkpoint(path)
        values = state["model"] if key == "model" else state["last_optimizer_state"]["state"][0]
        name = key if key in values else next(iter(values))
        values[name].view(-1)[0] += 1e-6
        torch.save(state, path)
    assert {x.partition(":")[0] for x in differences(trained, other)} == {path.name}
