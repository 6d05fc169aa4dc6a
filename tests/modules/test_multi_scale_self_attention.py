"""Multi-scale self-attention equals loops over heads, times and keys; its cache, the whole."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from numerics import assert_close

from fairseq_mm.modules import multi_scale_self_attention
from fairseq_mm.modules.multi_scale_self_attention import (
    MultiScaleSelfAttention,
    attend_to_past,
    visible_past,
)

B, C, T, E, H = 2, 10, 9, 12, 3
A = E // H
KINDS = [(False, False), (True, False), (False, True), (True, True)]


class OnGpu(torch.Tensor):
    """Tensor on the CPU that is treated as one on a GPU."""

    is_cuda = True


kinds = pytest.mark.parametrize(("is_gated", "is_multi_scale"), KINDS)


def randomized(module):
    """Biases and lengths of weights have no influence as they are at first."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module.eval()


def build(is_gated, is_multi_scale, *, hidden=C, embed=E, heads=H):
    torch.manual_seed(5)
    return randomized(
        MultiScaleSelfAttention(
            hidden, embed, heads, is_gated=is_gated, is_multi_scale=is_multi_scale
        )
    )


def glu(x):
    half = len(x) // 2
    return x[:half] * torch.sigmoid(x[half:])


def weights_of(layer, number):
    """``g v / |v|`` and bias of one of the layer's matrices."""
    v, g, bias = layer.weight_v[number], layer.weight_g[number], layer.bias[number]
    return torch.stack([g[o] * v[o] / v[o].square().sum().sqrt() for o in range(len(v))]), bias


def network(module, kind, head, x):
    """Queries (kind 0), keys (1) or values (2) of one head: three layers, with gates between
    them, or one."""
    per_kind = H if module.head_proj is not None else 1
    for number, layer in enumerate(module.networks):
        weight, bias = weights_of(layer, kind * per_kind + head)
        x = weight @ (glu(x) if number else x) + bias
    return x


def expected_outputs(module, x, *, is_multi_scale):
    """Section 3.3 as it was released, one number after the other: ``[T, C]``, and the weights
    ``[H, T, 1 + T]``."""
    outputs, weights = torch.zeros(T, C), torch.zeros(H, T, 1 + T)
    projected = x @ module.input_proj.weight.t() + module.input_proj.bias
    triple = []
    for kind in range(3):
        common = projected[:, kind * E : (kind + 1) * E]
        heads = []
        for head in range(H):
            of_times = []
            for t in range(T):
                if is_multi_scale:
                    of_times.append(network(module, kind, head, common[t]))
                else:
                    whole = network(module, kind, 0, common[t])
                    of_times.append(whole[head * A : (head + 1) * A])
            heads.append(of_times)
        triple.append(heads)
    queries, keys, values = triple
    for t in range(T):
        contexts = []
        for head in range(H):
            stride = head + 1 if is_multi_scale else 1
            visible = [s for s in range(t) if s % stride == 0]
            scores = [0.0] + [float(queries[head][t] @ keys[head][s]) / A**0.5 for s in visible]
            total = sum(math.exp(score) for score in scores)
            weights[head, t, 0] = 1 / total
            context = torch.zeros(A)
            for s, score in zip(visible, scores[1:]):
                weights[head, t, 1 + s] = math.exp(score) / total
                context += math.exp(score) / total * values[head][s]
            if is_multi_scale:
                weight, bias = weights_of(module.head_proj, head)
                context = weight @ context + bias
            contexts.append(context)
        v, g = module.output_proj.weight_v, module.output_proj.weight_g
        out = (g * v / v.norm(dim=1, keepdim=True)) @ torch.cat(contexts) + module.output_proj.bias
        u = out + x[t]
        normed = (u - u.mean()) / (u.var(unbiased=False) + module.norm.eps).sqrt()
        outputs[t] = normed * module.norm.weight + module.norm.bias
    return outputs, weights


@kinds
def test_equals_loops_over_heads_times_and_keys(is_gated, is_multi_scale):
    module = build(is_gated, is_multi_scale)
    x = torch.randn(B, T, C)
    trace = []
    with torch.no_grad():
        out = module(x, trace)
        for row in range(B):
            expected, weights = expected_outputs(module, x[row], is_multi_scale=is_multi_scale)
            assert_close(out[row], expected)
            assert_close(trace[0][row], weights)


@kinds
def test_pass_on_a_gpu_equals_that_on_a_cpu_and_recomputes_nothing(
    monkeypatch, is_gated, is_multi_scale
):
    monkeypatch.setattr(multi_scale_self_attention, "_RECOMPUTED_NUMBERS", 0)
    module = build(is_gated, is_multi_scale)
    x = torch.randn(B, T, C, requires_grad=True)
    expected = module(x)
    scale = torch.randn_like(expected)
    inputs = [x, *module.parameters()]
    gradients = torch.autograd.grad((expected * scale).sum(), inputs)
    monkeypatch.setattr(multi_scale_self_attention, "checkpoint", None)
    out = module(x.as_subclass(OnGpu))
    assert_close(out.as_subclass(torch.Tensor), expected)
    for found, gradient in zip(torch.autograd.grad((out * scale).sum(), inputs), gradients):
        torch.testing.assert_close(found.as_subclass(torch.Tensor), gradient)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 13])
def test_sequences_side_by_side_are_the_masked_attention(length):
    torch.manual_seed(3)
    query, key, value = (torch.randn(2, 3, length, 5) for _ in range(3))
    for stride in (1, 2, 3, 4, 6):
        out = attend_to_past(query, key, value, stride)
        keys, values = (F.pad(x, (0, 0, 1, 0)) for x in (key, value))
        mask = visible_past(length, [stride], query.device)
        scores = (query @ keys.transpose(2, 3) / 5**0.5).masked_fill(~mask, -math.inf)
        assert_close(out, scores.softmax(-1) @ values)


@kinds
def test_steps_equal_the_pass_beyond_the_caches_first_sizes(is_gated, is_multi_scale):
    """150 positions: the cache of stride 1 grows at 64 and 128, that of stride 2 at 128."""
    length = 150
    module = build(is_gated, is_multi_scale, hidden=5, embed=6, heads=2)
    x = torch.randn(B, length, 5)
    cache = module.new_cache()
    with torch.no_grad():
        whole = module(x)
        steps = [module.step(x[:, t], cache) for t in range(length)]
    assert_close(torch.stack(steps, dim=1), whole)
    assert [scale.size(3) for scale in cache.scales] == ([256, 128] if is_multi_scale else [256])


@kinds
def test_rows_can_be_reordered_repeated_and_dropped_while_decoding(is_gated, is_multi_scale):
    module = build(is_gated, is_multi_scale)
    length = 70
    x = torch.randn(3, length, C)
    cache = module.new_cache()
    order = torch.tensor([0, 1, 2])
    changes = {3: [2, 0, 0], 4: [1, 2, 0], 63: [0, 0, 1, 2, 2], 64: [4, 1], 66: [0]}
    with torch.no_grad():
        for t in range(length):
            if t in changes:
                new_order = torch.tensor(changes[t])
                cache.reorder(new_order)
                x = x[new_order]
                order = order[new_order]
            step = module.step(x[:, t], cache)
            if t in changes:
                assert_close(step, module(x[:, : t + 1])[:, t])
    assert len(order) == 1


@torch.no_grad()
def test_folded_matrices_follow_the_layer():
    torch.manual_seed(0)
    layer = MultiScaleSelfAttention(16, 8, 2, is_gated=True, is_multi_scale=True).eval()
    x = torch.randn(2, 5, 16)
    expected, in_float64 = layer(x), copy.deepcopy(layer).double()(x.double())
    for network in layer.networks:
        network.fold()
    layer.fold()
    torch.testing.assert_close(layer(x), expected)
    # casting changes parameters, and must reach the folded matrices
    torch.testing.assert_close(layer.double()(x.double()), in_float64)
