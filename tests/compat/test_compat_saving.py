"""A killed process leaves whole checkpoints; a cut one is named."""

import multiprocessing
import os
import re
import shutil
import signal

import pytest
import torch
from fairseq.file_io import PathManager
from toy_data import PACKAGE, run_fairseq
from toy_processes import needs_fork

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint

OPTIONS = (
    *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--criterion", "cross_entropy"),
    *("--optimizer", "adam", "--lr", "0.01", "--batch-size", "12", "--num-workers", "0", "--cpu"),
    *("--log-format", "none", "--seed", "3", "--save-interval-updates", "1"),
)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A folder of checkpoints of three updates."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as monkeypatch:
        train(monkeypatch, data, folder, "--max-update", "3")
    return folder


def train(monkeypatch, data, save_dir, *options):
    run_fairseq(monkeypatch, "train", data, *OPTIONS, "--save-dir", save_dir, *options)


def updates_of(path):
    return torch.load(path, map_location="cpu")["optimizer_history"][-1]["num_updates"]


def train_until_copying(data, save_dir, name, pipe):
    """Writes half of the second copy whose name begins so, says so, and hangs."""
    copyfile, seen = shutil.copyfile, []

    def copy_half(source, destination, **kwargs):
        if os.path.basename(destination).startswith(name):
            seen.append(destination)
            if len(seen) == 2:
                with open(source, "rb") as file, open(destination, "wb") as copy:
                    copy.write(file.read(os.path.getsize(source) // 2))
                pipe.send(destination)
                signal.pause()
        return copyfile(source, destination, **kwargs)

    shutil.copyfile = copy_half
    with pytest.MonkeyPatch.context() as monkeypatch:
        train(monkeypatch, data, save_dir, "--max-update", "2")
    pipe.send(None)


@needs_fork
@pytest.mark.parametrize("name", ["checkpoint_last.pt", "checkpoint_best.pt"])
def test_a_kill_while_a_checkpoint_is_copied_leaves_the_one_before(
    data, tmp_path, monkeypatch, name
):
    save_dir = tmp_path / "checkpoints"
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=train_until_copying, args=(data, save_dir, name, theirs)
    )
    process.start()
    assert ours.poll(120)
    assert ours.recv() is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert updates_of(save_dir / name) == 1
    assert updates_of(save_dir / "checkpoint_1_2.pt") == 2
    # the training goes on, and leaves nothing of the killed process behind
    train(monkeypatch, data, save_dir, "--max-update", "3")
    assert updates_of(save_dir / "checkpoint_last.pt") == 3
    assert not list(save_dir.glob("*.tmp"))


def test_a_copy_that_fails_leaves_the_one_before_and_no_other_file(tmp_path, monkeypatch):
    (tmp_path / "new.pt").write_text("new")
    (tmp_path / "last.pt").write_text("old")

    def fill_disk(source, destination, **kwargs):
        with open(destination, "w") as file:
            file.write("ne")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fill_disk)
    with pytest.raises(OSError, match="No space left on device"):
        PathManager.copy(str(tmp_path / "new.pt"), str(tmp_path / "last.pt"), overwrite=True)
    assert (tmp_path / "last.pt").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "new.pt"]


@pytest.mark.parametrize("share", [0, 0.9999])
def test_a_cut_checkpoint_is_named_by_every_loader(
    trained, tmp_path, data, monkeypatch, capsys, share
):
    path = tmp_path / "checkpoint_last.pt"
    shutil.copy(trained / path.name, path)
    os.truncate(path, int(path.stat().st_size * share))
    message = f"{path}: cannot be loaded safely (with weights only): "
    for load in (fairseq_mm.from_pretrained, Checkpoint.open):
        with pytest.raises(UserError, match=re.escape(message)):
            load(path)
    with pytest.raises(UserError, match=re.escape(message)):
        train(monkeypatch, data, tmp_path, "--max-update", "4")
    assert main(["caption", "--checkpoint", str(path), str(PACKAGE)]) == 2
    assert message in capsys.readouterr().err


STARTS = ("--finetune-from-model", "--restore-file")


@pytest.mark.parametrize("option", STARTS)
def test_a_training_starts_from_files_only(trained, tmp_path, data, monkeypatch, option):
    """fairseq begins with random weights if --restore-file is none of a file."""
    for path in (trained, tmp_path / "absent.pt"):
        with pytest.raises(ValueError, match=f"^{option} {path}"):
            train(monkeypatch, data, tmp_path / "new", "--max-update", "1", option, path)
