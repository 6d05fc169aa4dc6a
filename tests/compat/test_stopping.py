"""A finished training stays as it is; one with a larger limit goes on as if it had never ended."""

import hashlib
import logging
import re
import shutil

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq_cli import train as fairseq_train
from toy_data import make_captions_folder, run_fairseq
from toy_processes import needs_fork, train_by, training_configuration
from toy_training_states import assert_same_training

# six updates an epoch
OPTIONS = (
    *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--criterion", "cross_entropy"),
    *("--optimizer", "adam", "--lr", "0.01", "--batch-size", "7", "--num-workers", "0", "--cpu"),
    *("--log-format", "none", "--seed", "3", "--required-batch-size-multiple", "1"),
)
# the validation loss is smallest after the second epoch, and again after the sixth
UNSTABLE = ("--lr", "0.1", "--clip-norm", "0", "--max-epoch", "9")
BY_UPDATES = ("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "1", "--warmup-init-lr", "0.01")
PLATEAU = ("--lr-scheduler", "reduce_lr_on_plateau", "--lr-shrink", "0.5")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_captions_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture
def train(data, tmp_path, monkeypatch, caplog):
    """Trains in a folder, and returns the last checkpoint."""

    def run(folder, *options):
        save_dir = tmp_path / folder
        caplog.clear()
        with caplog.at_level(logging.INFO):
            run_fairseq(monkeypatch, "train", data, *OPTIONS, "--save-dir", save_dir, *options)
        return torch.load(save_dir / "checkpoint_last.pt")

    return run


def content(folder):
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
    }


def updates_of(state):
    return state["optimizer_history"][-1]["num_updates"]


def reasons_in(caplog):
    """Return the reasons of each line that says that there is nothing to do."""
    pattern = re.compile(r"nothing to do: .*checkpoint_last\.pt is finished \((.*)\)\. Larger lim")
    return [match[1] for match in map(pattern.match, caplog.messages) if match]


FINISHED = {
    "within an epoch": (("--max-update", "3"), 3, "3 updates, --max-update 3"),
    "epochs": (("--max-epoch", "2"), 12, "2 epochs, --max-epoch 2"),
    "patience": (
        ("--patience", "2", *UNSTABLE),
        None,
        "2 validations without gain, --patience 2",
    ),
    "plateau": (
        (*PLATEAU, *UNSTABLE, "--stop-min-lr", "0.06"),
        None,
        "learning rate 0.05, --stop-min-lr 0.06",
    ),
    "rate by updates": (
        (*BY_UPDATES, "--stop-min-lr", "0.004"),
        12,
        "learning rate 0.00288675, --stop-min-lr 0.004",
    ),
    "time": (("--stop-time-hours", "1e-9"), 1, r"[\d.e-]+ hours, --stop-time-hours 1e-09"),
    "without the optimizer's state": (
        ("--max-update", "3", "--no-save-optimizer-state"),
        3,
        "3 updates, --max-update 3",
    ),
}


@pytest.mark.parametrize("name", FINISHED)
def test_repeating_a_finished_training_does_nothing(train, tmp_path, caplog, name):
    options, updates, reason = FINISHED[name]
    state = train("saved", *options)
    assert updates in (None, updates_of(state))
    assert reasons_in(caplog) == []
    before = content(tmp_path / "saved")
    for _ in range(2):
        train("saved", *options)
        assert content(tmp_path / "saved") == before
        (found,) = reasons_in(caplog)
        assert re.fullmatch(reason, found)
        assert not [line for line in caplog.messages if "validation" in line and "begin" in line]


RAISED = {
    "updates within an epoch": (("--max-update", "3"), ("--max-update", "13")),
    "epochs": (("--max-epoch", "1"), ("--max-epoch", "3")),
    "patience and updates": (
        ("--patience", "2", "--max-update", "8", *UNSTABLE),
        ("--patience", "2", *UNSTABLE),
    ),
    "plateau and rate": (
        (*PLATEAU, *UNSTABLE, "--stop-min-lr", "0.06"),
        (*PLATEAU, *UNSTABLE, "--stop-min-lr", "0.03"),
    ),
    "validation in every second epoch": (
        (*PLATEAU, *UNSTABLE, "--validate-interval", "2", "--max-update", "18"),
        (*PLATEAU, *UNSTABLE, "--validate-interval", "2", "--max-update", "36"),
    ),
}


@pytest.mark.parametrize("name", RAISED)
def test_a_larger_limit_continues_as_without_an_end(train, caplog, name):
    shorter, longer = RAISED[name]
    whole = train("whole", *longer)
    first = train("raised", *shorter)
    raised = train("raised", *longer)
    assert updates_of(first) < updates_of(raised)
    assert reasons_in(caplog) == []
    # the shorter training validates where it ends, and may find the best checkpoint there
    for state in (whole, raised):
        state["extra_state"]["best"] = None
    assert_same_training(whole, raised)


@pytest.mark.parametrize("epoch", [2, 3, 4])
def test_a_killed_training_keeps_its_patience(train, tmp_path, epoch):
    whole = train("whole", "--patience", "3", *UNSTABLE)
    (tmp_path / "killed").mkdir()
    source = tmp_path / "whole" / f"checkpoint{epoch}.pt"
    shutil.copy(source, tmp_path / "killed" / "checkpoint_last.pt")
    killed = train("killed", "--patience", "3", *UNSTABLE)
    assert_same_training(whole, killed)


@pytest.fixture
def stopped(train, tmp_path):
    """A checkpoint of a training that --patience 1 has ended after its third epoch."""
    state = train("stopped", "--patience", "1", *UNSTABLE)
    assert state["extra_state"]["stopping"]["patience"]["num_runs"] == 1
    return tmp_path / "stopped" / "checkpoint_last.pt"


NEW_STARTS = {
    "a fine-tuning": ("--finetune-from-model", "{checkpoint}"),
    "a restored file": (
        *("--restore-file", "{checkpoint}", "--reset-optimizer", "--reset-lr-scheduler"),
        *("--reset-meters", "--reset-dataloader"),
    ),
}


@pytest.mark.parametrize("name", NEW_STARTS)
def test_a_new_start_inherits_neither_patience_nor_time(train, stopped, name):
    """Its first validation is the first that counts, and it has an hour for itself."""
    state = torch.load(stopped)
    state["extra_state"]["previous_training_time"] = 7200
    torch.save(state, stopped)
    options = [option.format(checkpoint=stopped) for option in NEW_STARTS[name]]
    begun = train("new", *options, *UNSTABLE, *("--patience", "1", "--max-update", "6"))
    assert updates_of(begun) == 6
    assert begun["extra_state"]["previous_training_time"] < 3600
    losses = begun["extra_state"]
    assert losses["stopping"]["patience"] == {"best": losses["val_loss"], "num_runs": 0}


def test_trainings_of_one_process_do_not_share_scores(train, tmp_path):
    one = train("one", "--max-epoch", "1")
    checkpoint_utils.save_checkpoint.best = fairseq_train.should_stop_early.best = 0.0
    fairseq_train.should_stop_early.num_runs = 5
    other = train("other", "--max-epoch", "1")
    assert_same_training(one, other)
    assert (tmp_path / "other" / "checkpoint_best.pt").exists()


@needs_fork
def test_two_processes_stop_and_continue_together(data, tmp_path):
    configuration = training_configuration(*(data, *OPTIONS, *UNSTABLE, "--patience", "2"))
    whole = train_by(2, configuration, tmp_path / "whole")
    before = content(tmp_path / "whole")
    del before["log"]
    train_by(2, configuration, tmp_path / "whole")
    repeated = content(tmp_path / "whole")
    del repeated["log"]
    assert repeated == before
    log = (tmp_path / "whole" / "log").read_text()
    assert log.count("nothing to do") == 1
    shorter = {"optimization": {"max_update": 5}}
    first = train_by(2, configuration, tmp_path / "raised", **shorter)
    assert updates_of(first) == 5
    raised = train_by(2, configuration, tmp_path / "raised")
    for state in (whole, raised):
        state["extra_state"]["best"] = None
    assert_same_training(whole, raised)


def test_a_training_that_fails_says_why_and_saves_its_crash(train, tmp_path, monkeypatch):
    """fairseq saves this checkpoint without a position in the data."""

    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(CrossEntropyCriterion, "forward", fail)
    with pytest.raises(ZeroDivisionError):
        train("failed", "--max-update", "1")
    assert "stopping" not in torch.load(tmp_path / "failed" / "crash.pt")["extra_state"]
