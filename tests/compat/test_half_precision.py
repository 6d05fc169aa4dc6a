"""Checkpoints of half precision keep float32 weights and loss scalers, which resumed runs use."""

import logging

import pytest
import torch
from fairseq import optim
from toy_captioner import change_checkpoint
from toy_optimizers import build_optimizer, optimizer_config
from toy_training_states import assert_same, assert_same_training, train_until

KEY = "fairseq_mm_half_precision"
ADAM = {"_name": "adam", "lr": [0.1], "tpu": False}
CAPTIONS = ("--task", "multimodal_captioning", "--arch", "m_rnn_tiny")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A checkpoint of three updates with --bf16."""
    folder = tmp_path_factory.mktemp("trained")
    train_until(data, folder, 3, *CAPTIONS, "--bf16")
    return folder / "checkpoint_last.pt"


def resume_without_learning(data, folder, *options):
    """One update with a learning rate of 0: the float32 weights are saved as they were loaded."""
    options = (*CAPTIONS, "--bf16", "--lr", "0", *options)
    return train_until(data, folder, 4, *options)["last_optimizer_state"][KEY]["weights"]


def rounded_weights(state):
    """The weights in half precision as float32, which fairseq writes them as."""
    weights = [x for x in state["model"].values() if x.is_floating_point()]
    return [x.to(torch.bfloat16).float() for x in weights]


def add_one(weights):
    weights.add_(1)


@pytest.mark.parametrize("edited", [0, 1, 10])
def test_float32_weights_are_used_where_they_round_to_the_checkpoints(
    data, trained, tmp_path, caplog, edited
):
    caplog.set_level(logging.INFO)
    state = torch.load(trained)
    names = [name for name, x in state["model"].items() if x.is_floating_point()]
    assert len(names) == 10
    path = tmp_path / "checkpoint_last.pt"
    change_checkpoint(trained, path, weights=dict.fromkeys(names[:edited], add_one))
    expected = [
        *rounded_weights(torch.load(path))[:edited],
        *state["last_optimizer_state"][KEY]["weights"][edited:],
    ]
    assert_same(resume_without_learning(data, tmp_path), expected)
    line = f"{edited} of 10 float32 weights are made from the checkpoint's weights"
    assert [line in message for message in caplog.messages].count(True) == (edited > 0)
    assert caplog.text.count("float32 weights are made") == (edited > 0)


@pytest.mark.parametrize("change", ["older", "reset", "another count", "another dtype"])
def test_float32_weights_are_made_anew_where_the_checkpoints_cannot_be_used(
    data, trained, tmp_path, caplog, change
):
    caplog.set_level(logging.INFO)
    state = torch.load(trained)
    saved = state["last_optimizer_state"][KEY]
    assert not all(map(torch.equal, saved["weights"], rounded_weights(state)))
    if change == "older":
        del state["last_optimizer_state"][KEY]
    elif change == "another count":
        saved["weights"].pop()
    elif change == "another dtype":
        saved["weights"] = [x.double() for x in saved["weights"]]
    torch.save(state, tmp_path / "checkpoint_last.pt")
    options = ("--reset-optimizer",) * (change == "reset")
    found = resume_without_learning(data, tmp_path, *options)
    assert_same(found, rounded_weights(state))
    is_said = change.startswith("another")
    assert caplog.text.count("10 of 10 float32 weights are made") == is_said


def test_fairseq_alone_reads_the_checkpoints(trained):
    """Its optimizer passes over the entry that the plugin adds."""
    saved = torch.load(trained)["last_optimizer_state"]
    model = torch.nn.ParameterList(
        torch.nn.Parameter(x.to(torch.bfloat16)) for x in saved[KEY]["weights"]
    )
    optimizer = build_optimizer(model, optimizer_config(ADAM, bf16=True))
    optim.FP16Optimizer.load_state_dict.__wrapped__(optimizer, saved)
    for number, state in optimizer.state_dict()["state"].items():
        assert_same(state, saved["state"][number])


@pytest.mark.parametrize("precision", ["--bf16", "--fp16"])
def test_averages_of_the_weights_are_resumed_beside_them(data, tmp_path, precision):
    """--store-ema has a model in half precision, and float32 weights, of its own."""
    options = (*CAPTIONS, precision, "--store-ema", "--ema-fp32", "--ema-decay", "0.5")
    whole = train_until(data, tmp_path / "whole", 5, *options)
    train_until(data, tmp_path / "parts", 2, *options)
    parts = train_until(data, tmp_path / "parts", 5, *options)
    assert_same_training(whole, parts)
    for name in ("ema", "ema_fp32_params"):
        assert_same(whole["extra_state"][name], parts["extra_state"][name])
