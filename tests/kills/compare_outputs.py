"""What differs between the files of an undisturbed run and those of one that was killed."""

import inspect
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from kill_targets import LOG
from toy_training_states import assert_same, assert_same_training, logged

from fairseq_mm.data.feature_store_checksum import check_metadata

# what a run writes before its files are complete; with `dummy`, fairseq tries whether it can write
WORKING = re.compile(r"(^|/)(lock$|dummy$|preprocess\.log$)|\.partial|\.tmp$|\.moving$")
# replaced as the work goes on
REPLACED = re.compile(r"(^|/)checkpoint_(last|best)\.pt$")
# lines are appended to it as the work goes on, in the order in which it is done
GROWING = re.compile(r"(^|/)likelihoods\.jsonl$")
# removed before the end
PASSING = re.compile(r"(^|/)(checkpoint(_\d+)+\.pt|scores\.blocks)$")
# dates, and durations in a card
TIMES = re.compile(rb'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00|"seconds": [\d.]+')


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def differences(whole: Path, found: Path) -> list[str]:
    """What a finished run's folder has other than that of an undisturbed run.

    A training that is killed between its last save and fairseq's removal of older checkpoints keeps
    one of these: it saves no more, and they are removed by saves alone.

    Args:
        whole: folder of the undisturbed run.
        found: that of the killed and resumed one.
    """
    names = files_in(whole)
    wrong = []
    for name in sorted(files_in(found) - names):
        is_older = LOG in names and PASSING.search(name)
        wrong += _damage(found / name, name) if is_older else [f"{name}: is left"]
    wrong += [f"{name}: is missing" for name in sorted(names - files_in(found))]
    both = sorted(names & files_in(found))
    return wrong + [x for name in both for x in _differs(whole / name, found / name, name)]


def is_whole(whole: Path, found: Path) -> bool:
    """Whether a run was killed when all was written, and had but to tidy up."""
    working = {name for name in files_in(found) if WORKING.search(name)}
    return all(x.partition(":")[0] in working for x in differences(whole, found))


def unfinished(whole: Path, found: Path, given: str = "") -> list[str]:
    """Files that a killed run has left neither whole nor under a name that says so.

    Args:
        whole: folder of an undisturbed run.
        found: that of a killed one.
        given: name of a file that stood in it before.
    """
    wrong = []
    for name in sorted(files_in(found)):
        path, reference = found / name, whole / name
        is_passing = PASSING.search(name) and not reference.exists()
        if WORKING.search(name) or name in (LOG, given):
            continue
        if path.suffix == ".pt" and (is_passing or REPLACED.search(name)):
            wrong += _damage(path, name)
        elif is_passing:
            continue
        elif not reference.exists():
            wrong.append(f"{name}: is none of an undisturbed run's files")
        elif GROWING.search(name):
            if not _lines(path, whole_alone=True) <= _lines(reference):
                wrong.append(f"{name}: has other lines")
        else:
            wrong += _differs(reference, path, name)
    return wrong


def read_checkpoint(path: Path) -> dict:
    """Old versions of PyTorch read all that is pickled, and know no option for it."""
    parameters = inspect.signature(torch.load).parameters
    options = {"weights_only": False} if "weights_only" in parameters else {}
    return torch.load(path, map_location="cpu", **options)


def _damage(path: Path, name: str) -> list[str]:
    try:
        read_checkpoint(path)
    except Exception as error:
        return [f"{name}: cannot be loaded ({type(error).__name__})"]
    return []


def _differs(one: Path, other: Path, name: str) -> list[str]:
    if name == LOG:
        return _differing_losses(one, other)
    if _without_times(one) == _without_times(other):
        return []
    if GROWING.search(name) and _lines(one) == _lines(other):
        return []
    try:
        if one.suffix == ".pt":
            states = [read_checkpoint(x) for x in (one, other)]
            is_training = "last_optimizer_state" in states[0]
            (assert_same_training if is_training else assert_same)(*states)
        elif one.suffix == ".h5":
            assert_same(_store(one), _store(other))
        else:
            return [f"{name}: has other bytes"]
    except Exception as error:
        return [f"{name}: is another ({error!r:.200})"]
    return []


def _store(path: Path) -> dict[str, Any]:
    has_checksum = check_metadata(str(path))
    with h5py.File(path, "r") as file:
        content = {name: np.asarray(file[name]).tolist() for name in sorted(file)}
        attributes = {key: str(value) for key, value in file.attrs.items() if key != "created"}
    return {"content": content, "attributes": attributes, "has_checksum": has_checksum}


def _lines(path: Path, *, whole_alone: bool = False) -> set[bytes]:
    lines = path.read_bytes().split(b"\n")
    return set(lines[:-1] if whole_alone else lines)


def _without_times(path: Path) -> bytes:
    return TIMES.sub(b"", path.read_bytes())


def _differing_losses(whole: Path, found: Path) -> list[str]:
    """Of a log that the killed run began, and the resumed one went on with.

    fairseq writes the checkpoint at the end of an epoch before it logs the epoch's mean: a run that
    is killed between them never logs the latter.
    """
    expected, lines = logged(whole), logged(found)
    wrong = [f"{LOG}: has {line}" for line in lines if line not in expected]
    missing = [x for x in expected if x not in lines and "train_loss" not in x]
    return wrong + [f"{LOG}: lacks {line}" for line in missing]
