"""L2 regularisation in Adam, as PyTorch's own optimizer has it."""

import math
from argparse import Namespace

import pytest
import torch
from torch import nn
from toy_optimizers import (
    PRECISIONS,
    build_optimizer,
    check_resuming,
    optimizer_config,
    run_updates,
)

from fairseq_mm.errors import UserError
from fairseq_mm.optim.adam_l2 import AdamL2Config, FairseqAdamL2

LR = 3e-3


class ToyModel(nn.Module):
    """Two layers; ``unused`` never has a gradient, that of ``ignored`` is always zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 3)
        self.unused, self.ignored = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    dtype = model.first.weight.dtype
    x = torch.randn(5, 4, generator=generator).to(dtype)
    out = model.second(torch.tanh(model.first(x))).float().pow(2).sum()
    return out + 0 * model.ignored.float().sum()


def config(common=None, **options):
    optimizer = {
        "_name": "adam_l2",
        "lr": [LR],
        "adam_betas": "(0.9, 0.98)",
        "adam_eps": 1e-8,
        "weight_decay": 0.01,
        "amsgrad": False,
        **options,
    }
    return optimizer_config(optimizer, **(common or {}))


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-5, 0.1])
def test_fifty_updates_are_those_of_pytorchs_adam(weight_decay, amsgrad):
    model, expected = ToyModel(), ToyModel()
    optimizer = build_optimizer(model, config(weight_decay=weight_decay, amsgrad=amsgrad))
    adam = torch.optim.Adam(
        expected.parameters(), LR, (0.9, 0.98), weight_decay=weight_decay, amsgrad=amsgrad
    )
    for step in range(50):
        rate = LR / (1 + step // 20)
        optimizer.set_lr(rate)
        run_updates(model, optimizer, [step], loss_of)
        adam.param_groups[0]["lr"] = rate
        adam.zero_grad()
        loss_of(expected, step).backward()
        adam.step()
        for name, weight in expected.named_parameters():
            torch.testing.assert_close(model.get_parameter(name), weight, msg=name)
    first = ToyModel()
    assert torch.equal(model.unused, first.unused)  # no gradient: skipped
    assert torch.equal(model.ignored, first.ignored) is (weight_decay == 0)  # a gradient of zero


@pytest.mark.parametrize("name", ["adam_l2", "sgd"])
def test_weight_decay_of_2_ln_2_lambda_is_the_term_of_a_cost_in_bits(name):
    """Mao et al. 2015, equation 6: bits a word + lambda |theta|^2, where fairseq's cost is in nats.

    The scale of the cost changes the rate of SGD, and of Adam the constant in the denominator.
    """
    penalty = 0.03  # lambda
    model, expected = ToyModel(), ToyModel()
    decay = {"weight_decay": 2 * math.log(2) * penalty}
    if name == "sgd":
        cfg = optimizer_config({"_name": "sgd", "lr": [LR / math.log(2)], "momentum": 0.0, **decay})
        on_bits = torch.optim.SGD(expected.parameters(), LR)
    else:
        cfg = config(**decay)
        on_bits = torch.optim.Adam(expected.parameters(), LR, (0.9, 0.98), 1e-8 / math.log(2))
    run_updates(model, build_optimizer(model, cfg), range(9), loss_of)
    # a weight without gradient is left alone, and no model has one
    penalised = [weight for weight in expected.parameters() if weight is not expected.unused]
    for step in range(9):
        on_bits.zero_grad()
        squares = sum(weight.pow(2).sum() for weight in penalised)
        (loss_of(expected, step) / math.log(2) + penalty * squares).backward()
        on_bits.step()
    for weight_name, weight in expected.named_parameters():
        torch.testing.assert_close(model.get_parameter(weight_name), weight, msg=weight_name)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize(("dtype", "common"), [(torch.float32, {}), *PRECISIONS])
def test_resumed_training_ends_at_the_same_weights(dtype, common, amsgrad):
    check_resuming(ToyModel, loss_of, config(common, amsgrad=amsgrad), dtype)


@pytest.mark.parametrize(("dtype", "common"), PRECISIONS)
def test_penalty_of_half_precision_weights_is_computed_in_single_precision(dtype, common):
    """1e-5 of a weight is lost beside it in float16 and bfloat16."""

    def zero(model, step):
        return sum(0 * parameter.float().sum() for parameter in model.parameters())

    model, expected = ToyModel().to(dtype), ToyModel().to(dtype).float()
    for module, settings in ((model, common), (expected, {})):
        run_updates(module, build_optimizer(module, config(settings, weight_decay=1e-5)), [0], zero)
    before = ToyModel().to(dtype)
    for name, weight in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), weight.to(dtype)), name
        assert not torch.equal(model.get_parameter(name), before.get_parameter(name)), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_decay": -1.0}, r"^--weight-decay must be 0 or more, but is -1\.0"),
        ({"adam_eps": 0.0}, r"^--adam-eps must be above 0, but is 0\.0\.$"),
        (
            {"adam_betas": "(0.9, 1.0)"},
            r"^--adam-betas must be .* is \(0\.9, 1\.0\)\.$",
        ),
        ({"adam_betas": "__import__('os')"}, "^--adam-betas must be two numbers"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    cfg = Namespace(**{**vars(AdamL2Config()), "lr": [LR], **options})
    with pytest.raises(UserError, match=message):
        FairseqAdamL2(cfg, ToyModel().parameters())
