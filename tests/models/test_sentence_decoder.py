"""Transtory-decoder and Transtory-full beside PyTorch's own layers, sentence by sentence."""

import math

import pytest
import torch
from numerics import assert_close
from torch import nn
from toy_data import build_model, visual_story_task

SEPARATOR, EOS = 20, 2
STORY = [EOS, 4, 5, SEPARATOR, 6, SEPARATOR, 7, 8, 9, 10, SEPARATOR, SEPARATOR, 11]
SIZES = {"picture_dim": 12, "embedding_dim": 8, "decoder_ffn_dim": 10}
ARCHES = {
    "transtory_decoder": {"encoder_hidden_dim": 4, "glocal_dim": 9},
    "transtory_full": {"encoder_ffn_dim": 9},
}


def make_model(arch, **options):
    model = build_model(arch, visual_story_task(), **SIZES, **ARCHES[arch], **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def sinusoids(count, dim):
    table = torch.zeros(count, dim)
    for position in range(count):
        for i in range(0, dim, 2):
            angle = position / 10000 ** (i / dim)
            table[position, i], table[position, i + 1] = math.sin(angle), math.cos(angle)
    return table


def copy_feed_forward(theirs, ours):
    theirs.linear1, theirs.linear2 = ours.feed_forward.inner_proj, ours.feed_forward.out_proj


def pytorch_layer(layer, dropout=0.0):
    """PyTorch's decoder layer with the same weights."""
    dim = layer.self_attention.in_proj.in_features
    theirs = nn.TransformerDecoderLayer(
        dim, layer.self_attention.num_heads, layer.feed_forward.inner_proj.out_features, dropout
    )
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(layer.self_attention.in_proj.weight)
        theirs.self_attn.in_proj_bias.copy_(layer.self_attention.in_proj.bias)
        theirs.self_attn.out_proj.weight.copy_(layer.self_attention.out_proj.weight)
        theirs.self_attn.out_proj.bias.copy_(layer.self_attention.out_proj.bias)
        seen, images = theirs.multihead_attn, layer.pictures
        if hasattr(images, "query_proj"):
            parts = (images.query_proj, images.key_proj, images.value_proj)
            seen.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            seen.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        else:  # whatever queries and keys are
            seen.in_proj_weight[2 * dim :].copy_(images.value_proj.weight)
            seen.in_proj_bias[2 * dim :].copy_(images.value_proj.bias)
        seen.out_proj.weight.copy_(images.out_proj.weight)
        seen.out_proj.bias.copy_(images.out_proj.bias)
    copy_feed_forward(theirs, layer)
    theirs.norm1 = layer.self_attention_norm
    theirs.norm2 = layer.pictures_norm
    theirs.norm3 = layer.feed_forward_norm
    return theirs


def naive_story(decoder, vectors, *, sees_all):
    outputs = []
    start = 0
    ends = [i for i, token in enumerate(STORY) if token == SEPARATOR] + [len(STORY)]
    for k, end in enumerate(ends):
        words = torch.tensor(STORY[start:end])
        x = decoder.embedding.weight[words] + sinusoids(len(words), 8)
        if sees_all:
            x = x + sinusoids(5, 8)[k].flip(0)
        memory = vectors if sees_all else vectors[k : k + 1]
        mask = torch.full((len(words), len(words)), float("-inf")).triu(1)
        x = x.unsqueeze(1)
        for layer in decoder.layers:
            x = pytorch_layer(layer)(x, memory.unsqueeze(1), tgt_mask=mask)
        outputs.append(x.squeeze(1))
        start = end
    return torch.cat(outputs)


@pytest.mark.parametrize(
    ("arch", "options", "sees_all"),
    [
        ("transtory_decoder", {}, False),
        ("transtory_decoder", {"decoder_layers": 2}, False),
        ("transtory_full", {}, True),
        ("transtory_full", {"decoder_layers": 2}, True),
        ("transtory_full", {"compat": "released"}, False),
    ],
)
def test_decoder_equals_pytorchs_sentence_by_sentence(arch, options, sees_all):
    decoder = make_model(arch, **options).decoder
    vectors = torch.randn(1, 5, 8)
    out = {"vectors": [vectors], "image_padding_mask": [torch.zeros(1, 5, dtype=torch.bool)]}
    with torch.no_grad():
        fast = decoder.extract_features(torch.tensor([STORY]), out)[0][0]
        slow = naive_story(decoder, vectors[0], sees_all=sees_all)
    assert_close(fast, slow)


@pytest.mark.parametrize(("compat", "layers"), [("none", 1), ("released", 3)])
def test_images_transformer_equals_pytorchs(compat, layers):
    encoder = make_model("transtory_full", compat=compat).encoder
    assert len(encoder.layers) == layers
    features = torch.randn(1, 5, 5)
    padding_mask = torch.tensor([[False, True, False, False, True]])
    with torch.no_grad():
        vectors = encoder(features, padding_mask)["vectors"][0][0]
        images = encoder.pictures
        projected = images.proj(features[0])
        scale = images.norm.weight / (images.norm.running_var + 1e-5).sqrt()
        x = (projected - images.norm.running_mean) * scale + images.norm.bias
        x[padding_mask[0]] = 0
        x = (x * math.sqrt(12) + sinusoids(5, 12)).unsqueeze(1)
        for layer in encoder.layers:
            theirs = nn.TransformerEncoderLayer(12, 4, 9)
            theirs.self_attn.in_proj_weight.copy_(layer.self_attention.in_proj.weight)
            theirs.self_attn.in_proj_bias.copy_(layer.self_attention.in_proj.bias)
            theirs.self_attn.out_proj.weight.copy_(layer.self_attention.out_proj.weight)
            theirs.self_attn.out_proj.bias.copy_(layer.self_attention.out_proj.bias)
            copy_feed_forward(theirs, layer)
            theirs.norm1, theirs.norm2 = layer.self_attention_norm, layer.feed_forward_norm
            for dropout in (theirs.dropout, theirs.dropout1, theirs.dropout2):
                dropout.p = 0.0
            theirs.self_attn.dropout = 0.0
            x = theirs(x, src_key_padding_mask=padding_mask)
        expected = encoder.output_proj(x.squeeze(1))
    assert_close(vectors[~padding_mask[0]], expected[~padding_mask[0]])


def patterned_state(model):
    """Weights that are functions of their place, without the decoder's version."""
    state = dict(model.state_dict())
    del state["decoder.version"]
    for number, name in enumerate(sorted(state)):
        x = state[name]
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            values = torch.sin(torch.arange(x.numel()) * 0.7 + number)
            state[name] = (values.abs() + 0.5 if "norm" in name else values * 0.5).view_as(x)
    return state


def test_checkpoints_without_a_version_keep_their_encodings():
    features = torch.cos(torch.arange(25.0)).view(1, 5, 5)
    padding_mask = torch.zeros(1, 5, dtype=torch.bool)
    tokens = torch.tensor([[EOS, 4, 5, SEPARATOR, 6, SEPARATOR, 7, 8]])
    model = build_model("transtory_full_tiny", visual_story_task())
    model.load_state_dict(patterned_state(model))
    with torch.no_grad():
        logits = model(features, padding_mask, tokens)[0][0, [2, 7], 4:8]
    # of the commit before the reversed frequencies, with the same weights
    expected = [
        [3.3199055, 0.6623774, -2.2999721, -4.2307405],
        [3.1616080, 0.4594917, -2.4563763, -4.2704587],
    ]
    assert_close(logits, torch.tensor(expected))
    again = build_model("transtory_full_tiny", visual_story_task())
    again.load_state_dict(model.state_dict())  # as it is saved now
    with torch.no_grad():
        assert torch.equal(again(features, padding_mask, tokens)[0][0, [2, 7], 4:8], logits)
