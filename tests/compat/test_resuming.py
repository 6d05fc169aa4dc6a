"""Wrong values in the training state of a checkpoint are refused in one line when it is loaded."""

import math
import re

import pytest
import torch
from toy_data import needs_float16_on_cpu
from toy_training_states import train_until

from fairseq_mm.compat.half_precision import check_added_state
from fairseq_mm.errors import UserError

CAPTIONS = ("--task", "multimodal_captioning", "--arch", "m_rnn_tiny")
KEY = "fairseq_mm_half_precision"


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    return train_until(data, tmp_path_factory.mktemp("trained"), 2, *CAPTIONS)


@pytest.fixture(scope="module")
def trained_in_float16(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_until(data, folder, 2, *CAPTIONS, "--fp16", "--fp16-no-flatten-grads")
    return torch.load(folder / "checkpoint_last.pt")


def resume(data, folder, state, path, value, *options):
    """Train one more update from a checkpoint in which one entry is replaced."""
    copied = torch.load(save(state, folder / "checkpoint_last.pt"))
    entry = copied
    for key in path[:-1]:
        entry = entry[key]
    assert path[-1] in entry or isinstance(entry, list)
    entry[path[-1]] = value
    save(copied, folder / "checkpoint_last.pt")
    train_until(data, folder, 3, *CAPTIONS, *options)


def save(state, path):
    torch.save(state, path)
    return path


FIRST = ("last_optimizer_state", "state", 0)
HISTORY, POSITION = ("optimizer_history", -1, "num_updates"), ("extra_state", "train_iterator")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((*FIRST, "exp_avg"), None, r"exp_avg of its .* must be a tensor, but is a NoneType; give"),
        ((*FIRST, "exp_avg_sq"), "x", r"exp_avg_sq of its .* must be a tensor, but is a str; give"),
        ((*FIRST, "exp_avg"), torch.ones(2, 5), r"must have this shape, but has \(2, 5\); give"),
        ((*FIRST, "step"), None, r"step of its .* must be a finite number, but is a NoneType"),
        ((*FIRST, "step"), "x", r"step of its .* must be a finite number, but is a str"),
        ((*FIRST, "step"), math.nan, r"step of its .* must be a finite number, but is a float"),
        (HISTORY, math.nan, "num_updates .* must be an integer of 0 or more, but is nan"),
        (HISTORY, -1, "num_updates .* must be an integer of 0 or more, but is -1"),
        (POSITION, {"epoch": "x"}, "epoch of its train_iterator must be .* but is 'x'"),
        ((*POSITION, "iterations_in_epoch"), 2.5, "iterations_in_epoch of its .* but is 2.5"),
        (("last_optimizer_state",), [], "its last_optimizer_state must be a dictionary; give"),
    ],
)
def test_wrong_values_are_refused(data, trained, tmp_path, path, value, message):
    with pytest.raises(UserError, match=rf"^{tmp_path}/checkpoint_last\.pt: .*{message}"):
        resume(data, tmp_path, trained, path, value)


def test_moments_that_are_not_finite_are_refused_until_the_optimizer_is_reset(
    data, trained, tmp_path
):
    path = (*FIRST, "exp_avg_sq")
    value = torch.full_like(trained[FIRST[0]]["state"][0]["exp_avg_sq"], math.nan)
    with pytest.raises(UserError, match=r"exp_avg_sq .* must be finite, .* --reset-optimizer"):
        resume(data, tmp_path, trained, path, value)
    resume(data, tmp_path, trained, path, value, "--reset-optimizer")


@needs_float16_on_cpu
@pytest.mark.parametrize(
    "scale", [math.nan, math.inf, 0.0, -1.0, "x", None, True, torch.ones(3)], ids=repr
)
def test_a_wrong_loss_scale_is_refused(data, trained_in_float16, tmp_path, scale):
    path = ("last_optimizer_state", "loss_scale")
    options = ("--fp16", "--fp16-no-flatten-grads")
    with pytest.raises(UserError, match=r"loss_scale .* must be a finite number above 0, but is"):
        resume(data, tmp_path, trained_in_float16, path, scale, *options)


COUNTERS = {
    "_iter": 4,
    "_last_overflow_iter": -1,
    "_last_rescale_iter": 3,
    "_overflows_since_rescale": 0,
}
AMP = {"scale": 128.0, "_growth_tracker": 2}


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("abc", "must be a dictionary, but is 'abc'"),
        ([], r"must be a dictionary, but is \[\]"),
        ({"weights": "abc"}, "weights must be a list of tensors"),
        ({"counters": 7}, "counters must be integers, but are 7"),
        ({"counters": {**COUNTERS, "_iter": "7"}}, "counters must be integers"),
        ({"counters": {**COUNTERS, "_iter": -1}}, "counters must not be negative"),
        ({"counters": {**COUNTERS, "_last_rescale_iter": 5}}, "must not be .* above _iter"),
        ({"amp": AMP}, "amp_retries is None"),
        ({"amp": {**AMP, "scale": math.nan}, "amp_retries": 0}, "must have a finite scale above 0"),
        ({"amp": {**AMP, "_growth_tracker": -2}, "amp_retries": 0}, "counters of 0 or more"),
    ],
)
def test_wrong_state_of_half_precision_is_refused(added, message):
    with pytest.raises(UserError, match=rf"^a\.pt: {KEY} of its optimizer state.*{message}"):
        check_added_state({KEY: added}, "a.pt")


def test_right_state_of_half_precision_is_accepted():
    check_added_state({}, "a.pt")
    check_added_state({KEY: {"weights": [torch.ones(3)], "counters": COUNTERS}}, "a.pt")
    check_added_state({KEY: {"amp": AMP, "amp_retries": 0}}, "a.pt")


def test_the_state_of_half_precision_is_checked_when_it_is_loaded(data, trained, tmp_path):
    state = {**trained, "last_optimizer_state": {**trained["last_optimizer_state"], KEY: {}}}
    with pytest.raises(UserError, match=re.escape(f"{KEY} of its optimizer state must be a dict")):
        resume(data, tmp_path, state, ("last_optimizer_state", KEY), "abc")
