"""Two preparations of one data folder: one is refused, or replaces the other as a whole."""

import io
import json
import multiprocessing
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from toy_processes import needs_fork

from fairseq_mm.cli.main import main
from fairseq_mm.data.folder_lock import locked_folder

SENTENCES = ["alpha one .", "alpha two .", "alpha three .", "alpha four .", "alpha five ."]
RECORDS = {
    "captions": {"image": "alpha{}.jpg", "captions": SENTENCES},
    "prompts": {"prompt": "alpha alpha", "story": "alpha goes on , {} times ."},
    "stories": {"images": [f"alpha{{}}{i}.jpg" for i in range(5)], "sentences": SENTENCES},
    "videos": {"video": "alpha{}.mp4", "transcript": "alpha says {}", "summary": "alpha {} ."},
}


def write_data(path, kind, *, run="alpha", lines=12):
    record = json.dumps(RECORDS[kind]).replace("alpha", run)
    path.write_text("".join(record.replace("{}", str(i)) + "\n" for i in range(lines)))
    return path


def prepare(kind, data, output, *options):
    """Exit status and what stood on stderr."""
    error = io.StringIO()
    threshold = {"prompts": ("--source-threshold", "1", "--target-threshold", "1")}
    options = (*options, *threshold.get(kind, ("--threshold", "1")))
    with redirect_stderr(error), redirect_stdout(io.StringIO()):
        status = main(["prepare", kind, str(data), "--output", str(output), *options])
    lines = [line for line in error.getvalue().splitlines() if not line.startswith("no valid")]
    return status, lines


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_second_preparation_is_refused_while_the_first_one_writes(tmp_path, kind):
    data, output = write_data(tmp_path / "data.jsonl", kind), tmp_path / "out"
    assert prepare(kind, data, output) == (0, [])
    before = contents(output)
    with locked_folder(str(output)):
        status, lines = prepare(kind, data, output, "--overwrite")
    assert status == 2
    assert [line.split(": ", 1)[1] for line in lines] == [
        f"{output}: another process is writing to it."
    ]
    (output / "lock").unlink()
    assert contents(output) == before
    # the file of a lock that no process holds any more is in nobody's way, and does not stay
    (output / "lock").touch()
    assert prepare(kind, data, output, "--overwrite") == (0, [])
    assert sorted(contents(output)) == sorted(before)


def hold(folder, pipe):
    with locked_folder(str(folder)):
        pipe.send("held")
        signal.pause()


@needs_fork
def test_a_killed_preparation_is_in_nobodys_way(tmp_path):
    data, output = write_data(tmp_path / "data.jsonl", "captions"), tmp_path / "out"
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(output, theirs))
    process.start()
    assert ours.poll(60)
    assert prepare("captions", data, output)[0] == 2
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert prepare("captions", data, output) == (0, [])
    assert not (output / "lock").exists()


def race(kind, data, output, start, results):
    sys.stdin.close()
    start.wait(60)
    results.put((data.stem, *prepare(kind, data, output, "--overwrite")))


def run_of(folder):
    """The run whose files they are, all of them."""
    runs = set()
    for name in ("train.jsonl", "dict.txt", "prepare.json"):
        text = (folder / name).read_text()
        runs |= {run for run in ("alpha", "beta") if run in text}
    (run,) = runs
    lines = {"alpha": 60, "beta": 85}[run]
    report = json.loads((folder / "prepare.json").read_text())
    assert report["counts"]["train"]["captions"] == lines
    assert len((folder / "train.jsonl").read_text().splitlines()) == lines // 5
    # fairseq's index: a header with the number of lines at byte 18
    assert np.fromfile(folder / "train.idx", np.int64, 1, offset=18)[0] == lines
    assert not list(folder.glob("**/lock"))
    assert not list(folder.glob("**/.partial"))
    return run


@needs_fork
@pytest.mark.parametrize("count", [2, pytest.param(24, marks=pytest.mark.slow)])
def test_of_two_at_once_the_folder_has_the_files_of_one(tmp_path, count):
    alpha = write_data(tmp_path / "alpha.jsonl", "captions", lines=12)
    beta = write_data(tmp_path / "beta.jsonl", "captions", run="beta", lines=17)
    context = multiprocessing.get_context("fork")
    outcomes = []
    for number in range(count):
        output = tmp_path / f"out{number}"
        start, results = context.Barrier(2), context.Queue()
        processes = [
            context.Process(target=race, args=("captions", data, output, start, results))
            for data in (alpha, beta)
        ]
        for process in processes:
            process.start()
        ended = [results.get(timeout=60) for _ in processes]
        for process in processes:
            process.join(60)
        run = run_of(output)
        winners = [name for name, status, _ in ended if status == 0]
        assert run in winners
        for _, status, lines in ended:
            refusal = f"{output}: another process is writing to it."
            assert (status, [line.split(": ", 1)[1] for line in lines]) in [(0, []), (2, [refusal])]
        outcomes.append(len(winners))
    print(f"{count} races: {outcomes.count(1)} refused one run, {outcomes.count(2)} ran in turn")
    assert sorted(path.name for path in Path(tmp_path).iterdir() if path.is_dir()) == sorted(
        f"out{number}" for number in range(count)
    )
