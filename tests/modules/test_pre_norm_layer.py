"""Pre-norm layers beside PyTorch's, and the combination of sources beside its equation."""

import pytest
import torch
from numerics import assert_close
from torch import nn

from fairseq_mm.modules.pre_norm_layer import (
    PreNormDecoderLayer,
    PreNormEncoderLayer,
)

B, T, N, M, D, HEADS, INNER, DV = 2, 4, 5, 3, 6, 2, 7, 9


def copy_self_attention(ours, theirs):
    theirs.in_proj_weight.copy_(ours.in_proj.weight)
    theirs.in_proj_bias.copy_(ours.in_proj.bias)
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_source_attention(ours, theirs):
    weights = [proj.weight for proj in (ours.query_proj, ours.key_proj, ours.value_proj)]
    theirs.in_proj_weight.copy_(torch.cat(weights))
    biases = ours.query_proj.bias, torch.zeros(D), ours.value_proj.bias
    theirs.in_proj_bias.copy_(torch.cat(biases))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_feed_forward(ours, linear1, linear2):
    linear1.load_state_dict(ours.inner_proj.state_dict())
    linear2.load_state_dict(ours.out_proj.state_dict())


def shaken(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def padding(rows, length):
    mask = torch.zeros(B, length, dtype=torch.bool)
    for row, place in rows:
        mask[row, place] = True
    return mask


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(9)


@torch.no_grad()
def test_encoder_layer_equals_pytorchs():
    ours = shaken(PreNormEncoderLayer(D, HEADS, INNER, 0.1)).eval()
    theirs = nn.TransformerEncoderLayer(D, HEADS, INNER, batch_first=True, norm_first=True)
    copy_self_attention(ours.self_attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs.linear1, theirs.linear2)
    theirs.norm1.load_state_dict(ours.self_attention_norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward_norm.state_dict())
    x, mask = torch.randn(B, N, D), padding([(1, 0), (1, 1)], N)
    expected = theirs.eval()(x, src_key_padding_mask=mask)
    torch.testing.assert_close(ours(x, mask)[~mask], expected[~mask])


@torch.no_grad()
def test_decoder_layer_of_one_source_equals_pytorchs():
    ours = shaken(PreNormDecoderLayer(D, HEADS, INNER, 0.1, [D])).eval()
    theirs = nn.TransformerDecoderLayer(D, HEADS, INNER, batch_first=True, norm_first=True)
    copy_self_attention(ours.self_attention, theirs.self_attn)
    copy_source_attention(ours.source_attentions[0], theirs.multihead_attn)
    copy_feed_forward(ours.feed_forward, theirs.linear1, theirs.linear2)
    norms = ours.self_attention_norm, ours.source_attention_norm, ours.feed_forward_norm
    for norm, other in zip(norms, (theirs.norm1, theirs.norm2, theirs.norm3)):
        other.load_state_dict(norm.state_dict())
    x, memory, mask = torch.randn(B, T, D), torch.randn(B, N, D), padding([(0, 4)], N)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs.eval()(x, memory, tgt_mask=future, memory_key_padding_mask=mask)
    out, _, trace = ours(x, ours.project([memory]), [mask])
    assert_close(out, expected)
    assert trace is None


@torch.no_grad()
def test_two_sources_become_one_by_the_weights_of_their_modalities():
    layer = shaken(PreNormDecoderLayer(D, HEADS, INNER, 0.1, [D, DV])).eval()
    x, text, video = torch.randn(B, T, D), torch.randn(B, N, D), torch.randn(B, M, DV)
    masks = [padding([(1, 0)], N), padding([(0, 2)], M)]
    out, _, trace = layer(x, layer.project([text, video]), masks, needs_weights=True)

    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    self_attention = nn.MultiheadAttention(D, HEADS, batch_first=True)
    copy_self_attention(layer.self_attention, self_attention)
    y = layer.self_attention_norm(x)
    y = x + self_attention(y, y, y, attn_mask=future)[0]
    query = layer.source_attention_norm(y)
    contexts = []
    for m, (attention, source) in enumerate(zip(layer.source_attentions, (text, video))):
        theirs = nn.MultiheadAttention(
            D, HEADS, kdim=source.size(-1), vdim=source.size(-1), batch_first=True
        )
        for name in ("query", "key", "value"):
            weight = getattr(attention, f"{name}_proj").weight
            if theirs.in_proj_weight is None:
                getattr(theirs, f"{name[0]}_proj_weight").copy_(weight)
        if theirs.in_proj_weight is None:
            biases = attention.query_proj.bias, torch.zeros(D), attention.value_proj.bias
            theirs.in_proj_bias.copy_(torch.cat(biases))
            theirs.out_proj.load_state_dict(attention.out_proj.state_dict())
        else:
            copy_source_attention(attention, theirs)
        context, weights = theirs(query, source, source, key_padding_mask=masks[m])
        torch.testing.assert_close(trace.weights[m], weights)
        contexts.append(context)
    level = layer.modality_attention
    for b in range(B):
        for t in range(T):
            scores = [
                float(
                    level.score_weight @ torch.tanh(level.query_proj(query[b, t]) + proj(z[b, t]))
                )
                for proj, z in zip(level.context_projs, contexts)
            ]
            beta = torch.tensor(scores).exp() / torch.tensor(scores).exp().sum()
            torch.testing.assert_close(trace.modality_weights[b, t], beta)
            z = y[b, t] + beta[0] * contexts[0][b, t] + beta[1] * contexts[1][b, t]
            inner = layer.feed_forward.inner_proj(layer.feed_forward_norm(z)).clamp(min=0)
            assert_close(out[b, t], z + layer.feed_forward.out_proj(inner))
