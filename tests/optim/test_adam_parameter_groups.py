"""Two learning rates in every precision, as two optimizers would have them."""

import logging
from argparse import Namespace

import pytest
import torch
from numerics import assert_close
from torch import nn
from toy_optimizers import (
    PRECISIONS,
    build_optimizer,
    check_resuming,
    optimizer_config,
    run_updates,
)

from fairseq_mm.errors import UserError
from fairseq_mm.models._video_guided import ADDED, mark_added
from fairseq_mm.optim import adam_parameter_groups
from fairseq_mm.optim.adam_parameter_groups import AdamParameterGroupsConfig

LR, ADDED_LR = 3e-3, 1.5e-2


def toy_model(*, has_added=True):
    """A zero bias among the pretrained parameters, and an equal one among the added."""
    torch.manual_seed(3)
    model = nn.ModuleDict({"pretrained": nn.Linear(4, 3), "added": nn.Linear(3, 3)})
    for name in model:
        nn.init.zeros_(model[name].bias)
    if has_added:
        mark_added(model["added"])
    return model


def config(**common):
    optimizer = {
        "_name": "adam_parameter_groups",
        "lr": [LR],
        "added_lr": ADDED_LR,
        "adam_betas": "(0.9, 0.98)",
        "weight_decay": 0.01,
        "tpu": False,
    }
    return optimizer_config(optimizer, **common)


def build(model):
    return build_optimizer(model, config())


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    dtype = model["added"].weight.dtype
    x = torch.randn(5, 4, generator=generator).to(dtype)
    return model["added"](torch.tanh(model["pretrained"](x))).float().pow(2).sum()


def test_rate_of_zero_trains_added_parameters_alone():
    config_of_zero = config()
    config_of_zero.optimizer.lr = [0.0]
    optimizer = build_optimizer(toy_model(), config_of_zero)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, ADDED_LR]


def test_steps_are_those_of_two_adams():
    model, expected = toy_model(), toy_model()
    optimizer = build(model)
    groups = [
        {"params": list(expected["pretrained"].parameters()), "lr": LR},
        {"params": list(expected["added"].parameters()), "lr": ADDED_LR},
    ]
    # fairseq's Adam decays weights as AdamW does
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01)
    run_updates(model, optimizer, range(4), loss_of)
    optimizer.set_lr(LR / 2)
    for group in adam.param_groups:
        group["used"] = group["lr"]
    for step in range(6):
        if step == 4:
            for group in adam.param_groups:
                group["lr"] /= 2
        adam.zero_grad()
        loss_of(expected, step).backward()
        adam.step()
    run_updates(model, optimizer, range(4, 6), loss_of)
    for name, weight in expected.named_parameters():
        assert_close(model.get_parameter(name), weight)


def test_groups_are_by_name_not_by_value():
    model = toy_model()
    optimizer = build(model)
    pretrained, added = optimizer.param_groups
    assert [p.shape for p in pretrained["params"]] == [(3, 4), (3,)]
    assert pretrained["params"][1] is model["pretrained"].bias
    assert added["params"][1] is model["added"].bias
    assert adam_parameter_groups.ADDED == ADDED


def test_the_scheduler_changes_both_rates():
    optimizer = build(toy_model())
    assert [group["lr"] for group in optimizer.param_groups] == [LR, ADDED_LR]
    optimizer.set_lr(0.95 * LR)
    assert optimizer.get_lr() == 0.95 * LR
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.95 * ADDED_LR, rel=1e-12)
    optimizer.set_lr(0.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0, 0]


@pytest.mark.parametrize(("dtype", "common"), PRECISIONS)
def test_groups_survive_copies_in_single_precision_and_resuming(dtype, common):
    cfg = config(**common)
    optimizer = build_optimizer(toy_model().to(dtype), cfg)
    assert [group["lr"] for group in optimizer.param_groups] == [LR, ADDED_LR]
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    check_resuming(toy_model, loss_of, cfg, dtype, lr=LR)


def test_joined_parameters_are_refused():
    message = "joined to one cannot have two learning rates: give --fp16-no-flatten-grads"
    with pytest.raises(UserError, match=message):
        _ = build(toy_model()).supports_flat_params


def test_a_model_without_added_parameters_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        optimizer = build(toy_model(has_added=False))
    assert "the model has no added parameter, and --added-lr changes nothing" in caplog.text
    assert [len(group["params"]) for group in optimizer.param_groups] == [4, 0]


def test_rates_out_of_range_are_refused():
    cfg = Namespace(**{**vars(AdamParameterGroupsConfig()), "lr": [LR], "added_lr": -1.0})
    with pytest.raises(UserError, match=r"^--added-lr must be 0 or more, but is -1\.0\."):
        adam_parameter_groups.AdamParameterGroups(cfg, toy_model().parameters())
