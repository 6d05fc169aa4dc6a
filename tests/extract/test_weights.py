"""State dict files load safely and fit, or say in one line why not."""

import pytest
import torch
from torch import nn

from fairseq_mm.errors import UserError
from fairseq_mm.extract.weights import load_state_dict, read_state_dict


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 5))


def load(model, state_dict, needed=None):
    needed = list(model.state_dict()) if needed is None else needed
    load_state_dict(model, state_dict, needed=needed, origin="w.pt")


class Harmful:
    def __reduce__(self):
        return print, ("harm",)


def test_code_in_a_file_is_not_run(tmp_path, capsys):
    torch.save({"x": Harmful()}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"w\.pt: cannot be loaded safely"):
        read_state_dict(str(tmp_path / "w.pt"))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("wrap", ["state_dict", "model"])
def test_wrapped_state_dicts_are_unwrapped(wrap, model, tmp_path):
    content = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save({wrap: content, "epoch": 3}, tmp_path / "w.pt")
    assert list(read_state_dict(str(tmp_path / "w.pt"))) == list(model.state_dict())


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, torch.zeros(2), b"<html>404", None])
def test_what_is_no_state_dict_is_refused(content, tmp_path):
    path = tmp_path / "w.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(
        UserError, match=r"w\.pt: (is no state dict of tensors|cannot be loaded safe)"
    ):
        read_state_dict(str(path))


def test_half_precision_is_cast_and_the_step_count_not_needed(model):
    state_dict = {name: value.half() for name, value in model.state_dict().items()}
    del state_dict["1.num_batches_tracked"]
    state_dict["0.weight"] += 1
    load(model, state_dict)
    assert model[0].weight.dtype == torch.float32
    torch.testing.assert_close(model[0].weight.data, state_dict["0.weight"].float())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"2.weight": None}, "it lacks 2.weight."),
        (
            {"2.weight": None, "3.weight": torch.zeros(1)},
            "it lacks 2.weight, has no place for 3.weight.",
        ),
        (
            dict.fromkeys(["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]),
            "it lacks 0.weight, 0.bias, 1.weight, 1.bias and 1 more.",
        ),
        ({"2.bias": torch.zeros(6)}, "it needs other shapes of 2.bias ([6], must be [5])."),
        ({"0.bias": torch.full((4,), float("nan"))}, "it has NaN or infinite values in 0.bias."),
    ],
)
def test_tensors_that_do_not_fit_are_named(changes, message, model):
    state_dict = {**model.state_dict(), **changes}
    state_dict = {name: x for name, x in state_dict.items() if x is not None}
    with pytest.raises(UserError) as caught:
        load(model, state_dict)
    assert str(caught.value) == f"w.pt: does not fit the model: {message}"


def test_tensors_that_are_not_needed_may_be_missing_or_other(model):
    state_dict = {**model.state_dict(), "2.bias": torch.zeros(6)}
    del state_dict["2.weight"]
    load(model, state_dict, needed=["0.weight"])
