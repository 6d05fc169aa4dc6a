"""Loss and gradients equal PyTorch's cross-entropy of all logits at once."""

import pytest
import torch
import torch.nn.functional as F

from fairseq_mm.modules import chunked_cross_entropy as module
from fairseq_mm.modules.chunked_cross_entropy import chunked_cross_entropy

N, E, V, PAD = 11, 5, 203, 1
FLOAT16 = torch.float16


@pytest.fixture(autouse=True, params=[False, True], ids=["tiles", "whole"])
def _small_tiles(request, monkeypatch):
    # 11 rows in tiles of at most 64 columns, or at once as on a GPU
    monkeypatch.setattr(module, "_TILE_BYTES", 4 * N * 64)
    monkeypatch.setattr(module, "_is_whole", lambda device: request.param)


def make(dtype=torch.float64, *, bias=True, seed=5):
    torch.manual_seed(seed)
    features = (torch.randn(N, E) * 3).to(dtype).requires_grad_()
    weight = torch.randn(V, E).to(dtype).requires_grad_()
    biases = torch.randn(V).to(dtype).requires_grad_() if bias else None
    target = torch.randint(2, V, (N,))
    target[[2, 3, 9]] = PAD
    return features, weight, biases, target


def gradients(loss, tensors, scale=1.0):
    return torch.autograd.grad(loss * scale, [x for x in tensors if x is not None])


def plain(features, weight, bias, target, label_smoothing=0.0):
    logits = F.linear(features, weight, bias)
    options = {"ignore_index": PAD, "reduction": "sum"}
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = F.cross_entropy(wide, target, label_smoothing=label_smoothing, **options)
    return loss, F.cross_entropy(wide, target, **options)


# chunks of 1, 3 (8 real rows: 3, 3, 2) and all rows
@pytest.mark.parametrize("chunk_bytes", [1, 3 * V * 8, 2**20])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_equal_the_plain_ones(chunk_bytes, label_smoothing, bias):
    *tensors, target = make(bias=bias)
    loss, nll = chunked_cross_entropy(
        *tensors,
        target,
        ignore_index=PAD,
        label_smoothing=label_smoothing,
        chunk_bytes=chunk_bytes,
    )
    expected, expected_nll = plain(*tensors, target, label_smoothing)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, expected_nll)
    assert not nll.requires_grad
    ours, theirs = gradients(loss, tensors, 0.3), gradients(expected, tensors, 0.3)
    for gradient, reference in zip(ours, theirs):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FLOAT16])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_gradients_are_as_near_to_the_exact_ones_as_the_plain_ones(dtype, label_smoothing):
    *tensors, target = make(dtype)
    loss, _ = chunked_cross_entropy(
        *tensors, target, ignore_index=PAD, label_smoothing=label_smoothing, chunk_bytes=3 * V * 2
    )
    rounded, _ = plain(*tensors, target, label_smoothing)
    assert loss.dtype == torch.float32
    # how PyTorch 1.12 rounds a product's bfloat16 sums depends on its shape
    rtol = 1e-5 if dtype == torch.float32 else 5e-3
    torch.testing.assert_close(loss, rounded, rtol=rtol, atol=0)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = gradients(plain(*exact, target, label_smoothing)[0], exact)
    triples = zip(gradients(loss, tensors), gradients(rounded, tensors), expected)
    for gradient, reference, truth in triples:
        assert gradient.dtype == dtype
        error, allowed = ((x.double() - truth).norm() for x in (gradient, reference))
        # sums of tiles are rounded once more each, by PyTorch 1.12 in the middle of a product too
        assert error < 2 * allowed + 1e-6 * truth.norm()


def test_half_precision_keeps_the_gradient_of_a_confident_row():
    # p = 1 - 2 exp(-8): its gradient is lost where p is rounded before 1 is taken from it
    weight = torch.tensor([[0.0, 1], [8, 1], [0, 1]]).bfloat16().requires_grad_()
    features = torch.tensor([[1.0, 1]]).bfloat16().requires_grad_()
    loss, _ = chunked_cross_entropy(features, weight, None, torch.tensor([1]))
    gradient, grad_features = torch.autograd.grad(loss, (weight, features))
    assert gradient[1, 0].item() == pytest.approx(-2 * 0.000335, rel=0.05)
    assert grad_features[0, 0].item() == pytest.approx(-8 * 2 * 0.000335, rel=0.05)


def test_float16_gradients_below_its_smallest_number_survive_a_loss_scale():
    # the second type's p is exp(-20) = 2e-9
    weight = torch.tensor([[20.0], [0.0]]).half().requires_grad_()
    features = torch.ones(1, 1).half()
    loss, _ = chunked_cross_entropy(features, weight, None, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss * 2.0**14, [weight])
    assert gradient[1, 0].item() == pytest.approx(2.0611e-9 * 2**14, rel=0.02)


def test_types_that_a_bias_forbids_get_no_probability():
    # more than the first tile of 51 columns
    *tensors, target = make()
    with torch.no_grad():
        tensors[2][:70] = -float("inf")
    target[target != PAD] = target[target != PAD] % 100 + 100
    loss, _ = chunked_cross_entropy(*tensors, target, ignore_index=PAD)
    expected, _ = plain(*tensors, target)
    torch.testing.assert_close(loss, expected)
    for gradient, reference in zip(gradients(loss, tensors), gradients(expected, tensors)):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FLOAT16])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_ignored_rows_alone_give_zero(dtype, label_smoothing):
    *tensors, target = make(dtype)
    loss, nll = chunked_cross_entropy(
        *tensors, torch.full_like(target, PAD), ignore_index=PAD, label_smoothing=label_smoothing
    )
    assert (loss.item(), nll.item()) == (0, 0)
    for gradient, tensor in zip(gradients(loss, tensors), tensors):
        assert gradient.shape == tensor.shape
        assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT16])
@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_what_needs_no_gradient_gets_none(dtype, frozen):
    *tensors, target = make(dtype)
    for i in frozen:
        tensors[i].requires_grad_(False)
    loss, _ = chunked_cross_entropy(*tensors, target, ignore_index=PAD, chunk_bytes=3 * V * 4)
    assert loss.requires_grad == (len(frozen) < 3)
    if loss.requires_grad:
        loss.backward()
    expected, _ = plain(*tensors, target)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    for i, tensor in enumerate(tensors):
        assert (tensor.grad is None) == (i in frozen)
        if i not in frozen:
            (reference,) = torch.autograd.grad(expected, tensor, retain_graph=True)
            # float16 keeps 11 bits: 0.002 of 3.2, the largest gradient
            torch.testing.assert_close(tensor.grad, reference, rtol=0.01, atol=0.02)


def test_holds_no_more_than_a_chunk():
    *tensors, target = make(torch.float32)

    def largest_allocation(function):
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            function()
        return max(event.self_cpu_memory_usage for event in profile.function_events)

    def chunked():
        loss, _ = chunked_cross_entropy(
            *tensors, target, ignore_index=PAD, chunk_bytes=3 * V * 4 + 2
        )
        loss.backward()

    # W's gradient, which is more than the chunk of three rows
    assert largest_allocation(chunked) == V * E * 4
    assert largest_allocation(lambda: plain(*tensors, target)[0].backward()) == V * N * 4


def test_products_are_of_the_dtype_that_autocast_gives_them():
    *tensors, target = make(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = chunked_cross_entropy(*tensors, target, ignore_index=PAD, chunk_bytes=3 * V * 2)
        rounded, _ = plain(*tensors, target)
    torch.testing.assert_close(loss, rounded, rtol=5e-3, atol=0)
    assert (loss - plain(*tensors, target)[0]).abs() > 1e-3  # not the float32 loss
    for gradient, reference in zip(gradients(loss, tensors), gradients(rounded, tensors)):
        assert gradient.dtype == torch.float32
        assert (gradient - reference).norm() < 0.02 * reference.norm()


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT16])
def test_double_backward_is_refused(dtype):
    *tensors, target = make(dtype)
    loss, _ = chunked_cross_entropy(*tensors, target, ignore_index=PAD)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice\.$"):
        torch.autograd.grad(loss, tensors, create_graph=True)
