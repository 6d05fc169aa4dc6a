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


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, torch.zeros(2)])
def test_what_is_no_state_dict_is_refused(content, tmp_path):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"w\.pt: must be a state dict \(names and tensors\), but"):
        read_state_dict(str(tmp_path / "w.pt"))


def test_other_files_are_refused(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"<html>404</html>")
    with pytest.raises(UserError, match=r"w\.pt: cannot be loaded safely"):
        read_state_dict(str(tmp_path / "w.pt"))
    with pytest.raises(UserError, match=r"absent: no such file"):
        read_state_dict(str(tmp_path / "absent"))


def test_half_precision_is_cast_and_the_step_count_not_needed(model):
    state_dict = {name: value.half() for name, value in model.state_dict().items()}
    del state_dict["1.num_batches_tracked"]
    state_dict["0.weight"] += 1
    load(model, state_dict)
    assert model[0].weight.dtype == torch.float32
    torch.testing.assert_close(model[0].weight.data, state_dict["0.weight"].float())


def test_missing_and_unexpected_tensors_are_named(model):
    state_dict = dict(model.state_dict())
    del state_dict["2.weight"]
    with pytest.raises(UserError, match=r"w\.pt: does not fit the model: it lacks 2\.weight\.$"):
        load(model, state_dict)
    load(model, state_dict, needed=["0.weight"])
    state_dict["3.weight"] = torch.zeros(1)
    message = r"it lacks 2\.weight and has 3\.weight, which the model does not have\."
    with pytest.raises(UserError, match=message):
        load(model, state_dict)
    with pytest.raises(
        UserError, match=r"it lacks 0\.weight, 0\.bias, 1\.weight, 1\.bias and \d more"
    ):
        load(model, {})


def test_a_needed_tensor_of_another_shape_is_named(model):
    state_dict = {**model.state_dict(), "2.bias": torch.zeros(6)}
    with pytest.raises(UserError, match=r"2\.bias is \[6\], but must be \[5\]\."):
        load(model, state_dict)
    load(model, state_dict, needed=["0.weight"])


def test_broken_values_are_named(model):
    state_dict = {**model.state_dict(), "0.bias": torch.full((4,), float("nan"))}
    with pytest.raises(UserError, match=r"w\.pt: has NaN or infinite values in 0\.bias\."):
        load(model, state_dict)
