"""Checkpoints of half precision keep float32 weights and loss scalers, which resumed runs use."""

import logging

import pytest
import torch
from fairseq import optim
from toy_captioner import change_checkpoint
from toy_data import needs_float16_on_cpu
from toy_optimizers import build_optimizer, optimizer_config
from toy_story_models import make_story_folder
from toy_training_states import assert_same, assert_same_training, train_until

from fairseq_mm.errors import UserError

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


def test_a_checkpoint_without_the_optimizers_state_has_no_float32_weights(data, tmp_path):
    state = train_until(data, tmp_path, 1, *CAPTIONS, "--bf16", "--no-save-optimizer-state")
    assert "last_optimizer_state" not in state


@pytest.mark.parametrize("precision", [(), ("--memory-efficient-bf16",)])
def test_checkpoints_without_float32_copies_stay_as_fairseq_writes_them(data, tmp_path, precision):
    state = train_until(data, tmp_path, 1, *CAPTIONS, *precision)
    assert state["last_optimizer_state"].keys() == {"state", "param_groups"}


@needs_float16_on_cpu
def test_checkpoints_of_fairseqs_own_tasks_and_models_stay_as_fairseq_writes_them(tmp_path):
    data = make_story_folder(tmp_path / "data") / "stories"
    options = ("--task", "language_modeling", "--arch", "transformer_lm")
    precision = ("--fp16", "--fp16-no-flatten-grads")
    sizes = ("--decoder-embed-dim", "8", "--decoder-layers", "1", "--decoder-ffn-embed-dim", "8")
    reading = ("--sample-break-mode", "eos", "--tokens-per-sample", "44")
    state = train_until(data, tmp_path, 1, *options, *precision, *sizes, *reading)
    assert state["last_optimizer_state"].keys() == {"state", "param_groups", "loss_scale"}


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


@needs_float16_on_cpu
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


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="has no scaler for the CPU")
def test_the_scale_of_amp_is_resumed(data, tmp_path, monkeypatch):
    """At the first scale all gradients are infinite, and batches are repeated or left out."""
    scaler = torch.amp.GradScaler
    # fairseq reads the first scale as an int, and PyTorch takes none of this size
    monkeypatch.setattr(
        torch.cuda.amp, "GradScaler", lambda init_scale: scaler("cpu", init_scale=2.0**126)
    )
    options = (*CAPTIONS, "--amp")
    whole = train_until(data, tmp_path / "whole", 5, *options)
    first = train_until(data, tmp_path / "parts", 2, *options)["last_optimizer_state"][KEY]
    assert first["amp"]["scale"] < 2**126
    assert first["amp"]["_growth_tracker"] == 2
    assert first["amp_retries"] > 0
    parts = train_until(data, tmp_path / "parts", 5, *options)
    assert_same_training(whole, parts)
    assert parts["last_optimizer_state"][KEY]["amp"]["_growth_tracker"] == 5


PRECISIONS = {
    "float32": (),
    "--bf16": ("--bf16",),
    "--memory-efficient-bf16": ("--memory-efficient-bf16",),
    "--amp": ("--amp",),
    "--fp16": ("--fp16",),
}


@needs_float16_on_cpu
@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="has no scaler for the CPU")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("float32", "--bf16"),
        ("--bf16", "float32"),
        ("--fp16", "--bf16"),
        ("--bf16", "--fp16"),
        ("float32", "--amp"),
        ("--amp", "--fp16"),
        ("--memory-efficient-bf16", "float32"),
        ("float32", "--memory-efficient-bf16"),
    ],
)
def test_a_training_continues_with_another_precision(data, tmp_path, caplog, before, after):
    """With a learning rate of 0, the weights that continue are the float32 weights."""
    caplog.set_level(logging.INFO)
    old = train_until(data, tmp_path, 3, *CAPTIONS, *PRECISIONS[before])
    options = (*PRECISIONS[after], "--lr", "0")
    new = train_until(data, tmp_path, 4, *CAPTIONS, *options)
    assert f"was trained with {before}; the optimizer's state is continued with {after}." in (
        caplog.text
    )
    assert "float32 weights are made from" not in caplog.text
    old_state, new_state = old["last_optimizer_state"], new["last_optimizer_state"]
    assert [x["step"] for x in new_state["state"].values()] == [
        x["step"] + 1 for x in old_state["state"].values()
    ]
    assert new["optimizer_history"][-1]["num_updates"] == 4

    def weights(state):
        if KEY in state["last_optimizer_state"] and "weights" in state["last_optimizer_state"][KEY]:
            return state["last_optimizer_state"][KEY]["weights"]
        return [x for x in state["model"].values() if x.is_floating_point()]

    if after == "--memory-efficient-bf16":
        assert_same(weights(new), rounded_weights(old))
    else:
        assert_same(weights(new), weights(old))


def test_an_optimizer_that_joined_its_weights_is_refused_in_one_line(data, trained, tmp_path):
    """As --fp16 saves it on a GPU, where all weights are one tensor."""
    state = torch.load(trained)
    state["last_optimizer_state"]["param_groups"][0]["params"] = [0]
    torch.save(state, tmp_path / "checkpoint_last.pt")
    expected = (
        r"checkpoint_last\.pt: was trained with --bf16, .* does not fit float32: give --bf16 a"
    )
    with pytest.raises(UserError, match=expected):
        train_until(data, tmp_path, 4, *CAPTIONS)
    train_until(data, tmp_path, 1, *CAPTIONS, "--reset-optimizer")


def test_another_optimizer_is_still_refused(data, trained, tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(trained.read_bytes())
    with pytest.raises(AssertionError, match="FP16Optimizer vs FairseqNAG"):
        train_until(data, tmp_path, 4, *CAPTIONS, "--optimizer", "nag")
