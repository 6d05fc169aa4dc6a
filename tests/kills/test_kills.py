"""A killed command that writes files: run again, it ends as an undisturbed one does.

Each command runs in a forked child, which counts the files that it opens for writing, renames or
removes in its output folder, and is killed (SIGKILL) just before a chosen one of them.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Optional

import h5py
import numpy as np
import pytest
import torch
from forked_shell import import_once
from toy_captioner import EMBEDDER, save_images, train_captioner
from toy_data import write_store
from toy_processes import needs_fork
from toy_training_states import assert_same_training

import fairseq_mm
from fairseq_mm.cli.main import main

pytestmark = needs_fork

# what a run writes before its files are complete; with `dummy`, fairseq tries whether it can write
WORKING = re.compile(r"(^|/)(lock$|dummy$|preprocess\.log$)|\.partial|\.tmp$|\.moving$")
# complete files that a training replaces as it goes on, or removes before its end
PASSING = re.compile(r"(^|/)checkpoint[^/]*\.pt$|(^|/)likelihoods\.jsonl$")
TIMES = re.compile(rb'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00|"seconds": [\d.]+|"stamps": \{[^}]*\}')
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

EXTRACT = "--model squeezenet1_1 --weights captioner/squeezenet.pth --resize squash --size 33"
TRAIN = (
    "train captioner/data.moved --task multimodal_captioning --arch m_rnn_tiny --max-epoch 2 "
    "--batch-size 12 --optimizer adam --cpu --num-workers 0 --log-format none "
    "--save-interval-updates 1 --keep-interval-updates 2 --save-dir {out}/training"
)
# name -> command; {out} is the folder that it writes to
COMMANDS = {
    "prepare": "prepare captions data.jsonl --threshold 1 --valid-size 2 --output {out}/made",
    "prepare --overwrite": "prepare captions data.jsonl --threshold 1 --output {out}/made "
    "--overwrite",
    "extract": f"extract photos {EXTRACT} --batch-size 2 --device cpu --workers 0 "
    "--output {out}/o.h5",
    "store merge": "store merge a.h5 b.h5 --output {out}/o.h5",
    "index": "index photos --checkpoint embedder --device cpu --batch-size 2 --output {out}/o.h5",
    "caption": "caption photos/image0.png photos/image1.png --checkpoint captioner --device cpu "
    "--output {out}/o.txt",
    "score": "score hypotheses.jsonl --data captioner/data.moved --split valid --metrics bleu "
    "--json {out}/s.json --per-item {out}/items.jsonl",
    "rank": "rank captioner/data.moved --checkpoint captioner --split valid --device cpu "
    "--marginal-images 3 --shortlist 2 --output {out}",
    "fairseq-train": TRAIN,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with all that the commands read; the packages that they need are imported here."""
    root = tmp_path_factory.mktemp("kills")
    fairseq_mm.register()
    import_once()
    for name, model in (("captioner", "--arch m_rnn_tiny --eval-gen"), ("embedder", EMBEDDER)):
        (root / name).mkdir()
        train_captioner(root / name, root / name / "data", model)
    save_images(root / "photos")
    lines = [{"image": f"{i}.jpg", "captions": [f"dog {i} runs", "a dog"]} for i in range(8)]
    (root / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in "ab":
        write_store(root / f"{name}.h5", [f"{name}{i}" for i in range(4)])
    hypotheses = [{"id": f"valid{i}.jpg", "hypothesis": "a dog runs"} for i in range(7)]
    (root / "hypotheses.jsonl").write_text("".join(json.dumps(x) + "\n" for x in hypotheses))
    return root


def run(root: Path, out: Path, command: str, kill_at: Optional[int] = None) -> tuple[int, int]:
    """Run a command in a forked child; return its exit status (minus the signal that ended it) and
    the number of its writes."""
    log = out.parent / "log"
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, int((out.parent / "writes").read_text()) if status == 0 else 0
    status = 70
    try:
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
        os.chdir(root)
        count = _watch_writes(str(out), kill_at)
        words = command.format(out=out).split()
        status = _train(words[1:]) if words[0] == "train" else main(words) or 0
        (out.parent / "writes").write_text(str(count[0]))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _train(words: list[str]) -> int:
    from fairseq_cli import train

    sys.argv = ["fairseq-train", *words, "--user-dir", str(Path(fairseq_mm.__file__).parent)]
    train.cli_main()
    return 0


def _watch_writes(out: str, kill_at: Optional[int]) -> list[int]:
    process, count = os.getpid(), [0]

    def watch(event: str, args: tuple) -> None:
        if not (event == "open" and args[2] & WRITING) and event not in CHANGES:
            return
        if not isinstance(args[0], (str, bytes, os.PathLike)) or os.getpid() != process:
            return
        if os.path.abspath(os.fsdecode(args[0])).startswith(out):
            count[0] += 1
            if count[0] == kill_at:
                os.kill(process, signal.SIGKILL)

    sys.addaudithook(watch)
    return count


def files_in(folder: Path) -> dict[str, Path]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def content(path: Path) -> object:
    """Content of a file, without times."""
    if path.suffix == ".h5":
        with h5py.File(path, "r") as file:
            attributes = {x: str(file.attrs[x]) for x in file.attrs if x != "created"}
            return attributes, {name: np.asarray(file[name]).tolist() for name in file}
    return TIMES.sub(b"", path.read_bytes())


def assert_equal(one: Path, other: Path) -> None:
    if one.suffix == ".pt":
        assert_same_training(*(torch.load(x, weights_only=False) for x in (one, other)))
    else:
        assert content(one) == content(other), one.name


def lay_out(root: Path, out: Path, name: str) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    if name == "prepare --overwrite":
        run(root, out, COMMANDS["prepare"])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_loses_nothing(inputs, tmp_path, name):
    out, whole, command = tmp_path / "out", tmp_path / "whole", COMMANDS[name]
    lay_out(inputs, out, name)
    earlier = {path: content(file) for path, file in files_in(out).items()}
    status, writes = run(inputs, out, command)
    assert status == 0, (tmp_path / "log").read_text()
    out.rename(whole)
    expected = files_in(whole)
    wanted = {path: content(file) for path, file in expected.items()}
    for kill_at in sorted({2, writes // 2, writes - 1}):
        lay_out(inputs, out, name)
        status, _ = run(inputs, out, command, kill_at)
        assert status == -signal.SIGKILL, (tmp_path / "log").read_text()
        for path, file in files_in(out).items():  # nothing is half-written under its own name
            if PASSING.search(path) and file.suffix == ".pt":
                torch.load(file, weights_only=False)
            elif not WORKING.search(path) and not PASSING.search(path):
                assert content(file) in (wanted.get(path), earlier.get(path)), path
        status, _ = run(inputs, out, command)
        # a command that was killed when all was written may refuse to replace it
        assert status in (0, 2), (tmp_path / "log").read_text()
        found = files_in(out)
        left = {x for x in found.keys() - expected.keys() if not PASSING.search(x)}
        if status == 2:  # a writer that was killed while it removed its folder
            left = {x for x in left if ".h5.partial/" not in x}
        assert (kill_at, left, expected.keys() - found.keys()) == (kill_at, set(), set())
        for path in expected:
            assert_equal(expected[path], found[path])
