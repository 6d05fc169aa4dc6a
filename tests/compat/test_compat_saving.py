"""A killed process leaves whole checkpoints; a cut one is answered with the intact one beside."""

import errno
import io
import multiprocessing
import os
import shutil
import signal
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from toy_data import PACKAGE, run_fairseq
from toy_processes import needs_fork

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.compat import saving
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.tasks.multimodal_captioning import MultimodalCaptioningTask

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
    with pytest.raises(UserError, match=r"last\.pt: cannot be written: No space left on device"):
        PathManager.copy(str(tmp_path / "new.pt"), str(tmp_path / "last.pt"), overwrite=True)
    assert (tmp_path / "last.pt").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "new.pt"]


class LimitedFile(io.FileIO):
    """A file on a disk that has room for so many bytes."""

    def __init__(self, path, room, error=errno.ENOSPC):
        super().__init__(path, "wb")
        self.room, self.error = room, error

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            super().write(data[: self.room])
            raise OSError(self.error, os.strerror(self.error))
        return super().write(data)


@pytest.mark.parametrize("room", [0, 100, 3000])
def test_a_full_disk_ends_a_training_in_one_line(trained, data, tmp_path, monkeypatch, room):
    save_dir = tmp_path / "run"
    shutil.copytree(trained, save_dir)
    before = {path.name: path.read_bytes() for path in save_dir.iterdir()}
    opened = PathManager.open
    with monkeypatch.context() as patch:
        patch.setattr(
            PathManager,
            "open",
            lambda path, mode="r": LimitedFile(path, room) if "w" in mode else opened(path, mode),
        )
        with pytest.raises(UserError) as caught:
            train(monkeypatch, data, save_dir, "--max-update", "4")
    assert str(caught.value).startswith(
        f"{save_dir / 'checkpoint_1_4.pt'}: cannot be written: No space left on device. Checkpoints"
    )
    assert {path.name: path.read_bytes() for path in save_dir.iterdir()} == before
    train(monkeypatch, data, save_dir, "--max-update", "4")
    assert updates_of(save_dir / "checkpoint_last.pt") == 4


@pytest.mark.parametrize("failures", [2, 3])
def test_a_disk_that_fails_for_a_while_gets_three_attempts(tmp_path, monkeypatch, failures):
    """Each is a whole file: fairseq appends the next one to what is there."""
    attempts = []

    def open_file(path, mode):
        attempts.append(path)
        return LimitedFile(path, 600 if len(attempts) <= failures else 10**9, errno.EIO)

    monkeypatch.setattr(PathManager, "open", open_file)
    monkeypatch.setattr(saving.time, "sleep", lambda seconds: None)
    path = tmp_path / "checkpoint.pt"
    state = {"weight": torch.arange(1000.0)}
    if failures == 3:
        with pytest.raises(UserError, match="cannot be written: Input/output error"):
            checkpoint_utils.torch_persistent_save(state, str(path))
        assert list(tmp_path.iterdir()) == []
    else:
        checkpoint_utils.torch_persistent_save(state, str(path))
        expected = io.BytesIO()
        torch.save(state, expected)
        assert path.stat().st_size == len(expected.getvalue())
        assert torch.load(path)["weight"].equal(state["weight"])
    assert len(attempts) == 3


def test_a_save_dir_that_cannot_be_made_is_named(tmp_path, monkeypatch, data):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--save-dir .*file/run: cannot be written: Not a dir"):
        train(monkeypatch, data, tmp_path / "file" / "run", "--max-update", "1")


def test_temporary_files_of_other_shards_stay(tmp_path):
    """Each process of a sharded training writes a checkpoint of its own."""
    names = [f"checkpoint_last-shard{i}.pt.tmp" for i in (1, 11)] + ["other.tmp"]
    for name in names:
        (tmp_path / name).touch()
    trainer = Namespace(
        should_save_checkpoint_on_current_rank=True,
        checkpoint_suffix="-shard1",
        data_parallel_rank=1,
        consolidate_optimizer=lambda: None,
        get_num_updates=lambda: 1,
    )
    cfg = Namespace(
        save_dir=str(tmp_path),
        no_save=False,
        no_last_checkpoints=True,
        no_epoch_checkpoints=True,
        save_interval=1,
        save_interval_updates=0,
        keep_best_checkpoints=0,
        keep_interval_updates=-1,
        keep_last_epochs=-1,
        maximize_best_checkpoint_metric=False,
    )
    epoch = Namespace(epoch=1, end_of_epoch=lambda: True, state_dict=dict)
    trainer.task = MultimodalCaptioningTask.from_provenance(["a"], {}, 3)
    checkpoint_utils.save_checkpoint(cfg, trainer, epoch, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def cut(trained, folder, name, newest, share=0.5):
    """A copy of the folder with one file cut and another one the newest of the rest."""
    shutil.copytree(trained, folder)
    for path in folder.iterdir():
        os.utime(path, (10**9, 10**9 + (path.name == newest)))
    path = folder / name
    os.truncate(path, int(path.stat().st_size * share))
    return path


@pytest.mark.parametrize("share", [0, 0.9999])
def test_resuming_from_a_cut_checkpoint_names_the_intact_one(
    trained, tmp_path, data, monkeypatch, share
):
    path = cut(trained, tmp_path / "run", "checkpoint_last.pt", "checkpoint_1_2.pt", share)
    with pytest.raises(UserError) as caught:
        train(monkeypatch, data, tmp_path / "run", "--max-update", "4")
    size = path.stat().st_size
    assert str(caught.value) == (
        f"{path}: is cut off after {size:,} bytes, as by a kill of the process that wrote it; the "
        f"newest intact checkpoint beside it is {path.with_name('checkpoint_1_2.pt')}: give that "
        "one, or copy it over checkpoint_last.pt."
    )
    shutil.copy(path.with_name("checkpoint_1_2.pt"), path)
    train(monkeypatch, data, tmp_path / "run", "--max-update", "4")
    assert updates_of(path) == 4


def test_every_loader_names_the_intact_checkpoint(trained, tmp_path, capsys):
    path = cut(trained, tmp_path / "run", "checkpoint_best.pt", "checkpoint_last.pt")
    expected = f"beside it is {path.with_name('checkpoint_last.pt')}: give that one"
    for load in (fairseq_mm.from_pretrained, lambda folder: Checkpoint.open(path)):
        with pytest.raises(UserError, match="cut off after") as caught:
            load(tmp_path / "run")
        assert expected in str(caught.value)
    assert main(["caption", "--checkpoint", str(tmp_path / "run"), str(PACKAGE)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_of_cut_checkpoints_alone_none_is_named(trained, tmp_path):
    shutil.copy(trained / "checkpoint_last.pt", tmp_path)
    path = tmp_path / "checkpoint_last.pt"
    os.truncate(path, 1000)
    shutil.copy(path, tmp_path / "checkpoint_best.pt")
    (tmp_path / "checkpoint_last-shard0.pt").write_bytes(b"\x80\x02 a shard is no whole model")
    with pytest.raises(UserError, match="there is no intact checkpoint beside it"):
        Checkpoint.open(path)


STARTS = ("--finetune-from-model", "--restore-file")


@pytest.mark.parametrize("option", STARTS)
def test_a_training_does_not_start_from_a_folder(trained, tmp_path, data, monkeypatch, option):
    """fairseq begins with random weights if --restore-file is none of a file."""
    os.utime(trained / "checkpoint_best.pt", (2 * 10**9, 2 * 10**9))
    with pytest.raises(UserError) as caught:
        train(monkeypatch, data, tmp_path / "new", "--max-update", "1", option, trained)
    start = f"{option} {trained}: must be a checkpoint, but is a folder, which has checkpoint_best"
    assert str(caught.value).startswith(start)
    (tmp_path / "new.pt").mkdir()
    with pytest.raises(
        UserError, match=r"new\.pt: must be .* a folder, which has no checkpoint\.$"
    ):
        train(monkeypatch, data, tmp_path / "new", "--max-update", "1", option, tmp_path / "new.pt")


@pytest.mark.parametrize("option", STARTS)
def test_a_training_does_not_start_from_a_missing_file(tmp_path, data, monkeypatch, option):
    absent = tmp_path / "absent.pt"
    with pytest.raises(UserError, match=f"^{option} {absent}: there is no such file"):
        train(monkeypatch, data, tmp_path / "new", "--max-update", "1", option, absent)


def test_a_script_may_restore_its_own_last_checkpoint(tmp_path, data, monkeypatch):
    last = tmp_path / "checkpoint_last.pt"
    for updates in (1, 2):
        train(monkeypatch, data, tmp_path, "--max-update", updates, "--restore-file", last)
        assert updates_of(last) == updates


@pytest.mark.parametrize("name", ["folder", "empty", "missing"])
def test_generation_names_what_is_no_checkpoint(trained, tmp_path, data, monkeypatch, name):
    path = {"folder": trained, "empty": tmp_path / "empty.pt", "missing": tmp_path / "none.pt"}[
        name
    ]
    (tmp_path / "empty.pt").touch()
    lines = {
        "folder": f"{path}: must be a checkpoint, but is a folder, which has checkpoint_",
        "empty": f"{path}: is cut off after 0 bytes",
        "missing": f"Model file not found: {path}",
    }
    options = ("--task", "multimodal_captioning", "--gen-subset", "valid", "--cpu", "--path", path)
    with pytest.raises(UserError) as caught:
        run_fairseq(monkeypatch, "generate", data, *options)
    assert str(caught.value).startswith(lines[name])


def test_ignored_validation_subsets_are_named(tmp_path, data, monkeypatch):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    for path in folder.glob("valid.*"):
        shutil.copy(path, folder / path.name.replace("valid", "valid1"))
    with pytest.raises(UserError, match=r"^--valid-subset valid: .* also has valid1; name them th"):
        train(monkeypatch, folder, tmp_path / "new", "--max-update", "1")
    train(
        monkeypatch, folder, tmp_path / "new", "--max-update", "1", "--valid-subset", "valid,valid1"
    )


def test_a_pipe_or_a_device_is_no_checkpoint(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(UserError, match=rf"^{path}: is a device or a pipe, but must be a file"):
            checkpoint_utils.load_checkpoint_to_cpu(path)
