"""Updates of many parameters at once: they are those of fairseq's optimizers."""

import copy
import inspect

import pytest
import torch
from fairseq import utils
from fairseq.optim.adam import Adam
from fairseq.optim.nag import NAG

from fairseq_mm.compat import foreach
from fairseq_mm.optim.adam_l2 import AdamL2

SHAPES = [(3, 4), (5,), (1,), (2, 3, 2), (4,)]


class OnGpu(torch.nn.Parameter):
    """Parameter on the CPU that is treated as one on a GPU."""

    is_cuda = True


def make_params():
    generator = torch.Generator().manual_seed(5)
    return [OnGpu(torch.randn(shape, generator=generator)) for shape in SHAPES]


def give_gradients(params, update):
    generator = torch.Generator().manual_seed(update)
    for number, param in enumerate(params):
        grad = torch.randn(param.shape, generator=generator)
        # one parameter has no gradient in some updates, so the numbers of updates differ
        param.grad = None if number == 1 and update % 2 == 0 else grad


@pytest.mark.parametrize("weight_decay", [0.0, 1e-3])
@pytest.mark.parametrize(
    ("cls", "step", "options"),
    [
        (Adam, foreach.adam_step, {"betas": (0.9, 0.98), "eps": 1e-6}),
        (NAG, foreach.nag_step, {"momentum": 0.99}),
    ],
)
def test_updates_of_lists_are_those_of_single_parameters(cls, step, options, weight_decay):
    expected, params = make_params(), make_params()
    one, many = (cls(x, lr=0.1, weight_decay=weight_decay, **options) for x in (expected, params))
    # the step of the installed fairseq, whether or not it has been replaced, and wrapped by PyTorch
    original = inspect.unwrap(cls.step)
    for update in range(6):
        for optimizer, tensors in ((one, expected), (many, params)):
            give_gradients(tensors, update)
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + update)
        original(one)
        with torch.no_grad():
            step(many)
        for x, y in zip(expected, params):
            assert torch.equal(x, y)
    assert repr(one.state_dict()) == repr(many.state_dict())


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_l2_updates_lists_as_single_parameters(amsgrad):
    params = make_params()
    single = [torch.nn.Parameter(x.detach().as_subclass(torch.Tensor).clone()) for x in params]
    one, many = (AdamL2(x, lr=0.1, weight_decay=0.1, amsgrad=amsgrad) for x in (single, params))
    for update in range(6):
        for optimizer, tensors in ((one, single), (many, params)):
            give_gradients(tensors, update)
            optimizer.step()
        for x, y in zip(single, params):
            assert torch.equal(x, y)
    assert [many.state[x]["step"] for x in params] == [6, 3, 6, 6, 6]


def test_lists_hold_what_one_operation_may_update(monkeypatch):
    params = make_params()
    give_gradients(params, 0)
    lists = [[x.shape for x in found] for found in foreach.split_parameters(params, lambda x: 0)]
    assert lists == [[torch.Size(SHAPES[i]) for i in (0, 2, 3, 4)]]
    monkeypatch.setattr(foreach, "_MOST_ELEMENTS", 12)
    found = list(foreach.split_parameters(params, lambda x: 0))
    assert [len(x) for x in found] == [2, 2]
    found = list(foreach.split_parameters(params, lambda x: x.dim() > 1))
    assert [[x.dim() for x in params] for params in found] == [[2, 3], [1, 1]]
    on_cpu = [torch.nn.Parameter(x.detach()) for x in params]
    give_gradients(on_cpu, 1)
    assert [len(x) for x in foreach.split_parameters(on_cpu, lambda x: 0)] == [1] * 5


def test_lists_are_updated_where_they_can_be():
    method = foreach._with_foreach(lambda self, closure: "fairseq", lambda self: "lists")
    params = make_params()
    give_gradients(params, 0)
    adam = Adam(params)
    assert method(adam) == "lists"
    assert method(adam, lambda: 0) == "fairseq"
    assert method(Adam(params, amsgrad=True)) == "fairseq"
    params[0].grad = params[0].grad.to_sparse()
    assert method(adam) == "fairseq"
    params[0].grad = None
    assert method(adam) == "lists"
    params.append(OnGpu(torch.ones(2).half()))
    params[-1].grad = torch.ones(2).half()
    assert method(Adam(params)) == "fairseq"
    on_cpu = torch.nn.Parameter(torch.ones(2))
    on_cpu.grad = torch.ones(2)
    assert method(Adam([*params[:-1], on_cpu])) == "fairseq"


def test_half_precision_and_amsgrad_are_left_to_fairseq(monkeypatch):
    for cls in (Adam, NAG):
        monkeypatch.setattr(cls, "step", cls.step)
    foreach.update_together()
    params = [torch.nn.Parameter(torch.ones(2).bfloat16())]
    adam = Adam(params, lr=0.1, amsgrad=True)
    params[0].grad = torch.ones(2).bfloat16()
    assert not foreach.can_use_foreach(adam)
    adam.step()
    assert "max_exp_avg_sq" in adam.state[params[0]]
    assert (params[0] < 1).all()


def test_the_norm_of_all_gradients_is_fairseqs():
    params = make_params()
    give_gradients(params, 1)
    grads = [x.grad for x in params]
    expected = torch.norm(torch.stack([torch.norm(x, p=2, dtype=torch.float32) for x in grads]))
    assert torch.equal(foreach.total_norm(grads), expected)
    on_gpu = [OnGpu(x, requires_grad=False) for x in grads]
    torch.testing.assert_close(foreach.total_norm(on_gpu), expected)
    assert foreach.total_norm([x.half() for x in grads]).dtype == torch.float32
    clipped = copy.deepcopy(params)
    for param, grad in zip(clipped, grads):
        param.grad = grad.clone()
    assert torch.equal(utils.clip_grad_norm_(clipped, 0.5), expected)
    norm = foreach.total_norm([x.grad for x in clipped])
    torch.testing.assert_close(norm, torch.tensor(0.5))
