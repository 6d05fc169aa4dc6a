"""The transformer over frames equals PyTorch's, on scaled frames with sinusoids."""

import math

import torch
from numerics import assert_close
from torch import nn

from fairseq_mm.models._video_guided import VideoTransformerEncoder

B, M, D, HEADS, FFN, LAYERS = 2, 5, 6, 3, 7, 2
MASK = torch.tensor([[False] * 5, [False, False, False, True, True]])


def build(*dropouts):
    torch.manual_seed(3)
    encoder = VideoTransformerEncoder(D, LAYERS, HEADS, FFN, *(dropouts or (0.0,)))
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return encoder.eval()


def of_pytorch(encoder, dropout=0.0):
    """``nn.TransformerEncoder`` with the same weights."""
    layer = nn.TransformerEncoderLayer(D, HEADS, FFN, dropout, batch_first=True)
    stack = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    for theirs, ours in zip(stack.layers, encoder.layers):
        theirs.self_attn.in_proj_weight.data = ours.self_attention.in_proj.weight.data
        theirs.self_attn.in_proj_bias.data = ours.self_attention.in_proj.bias.data
        theirs.self_attn.out_proj.load_state_dict(ours.self_attention.out_proj.state_dict())
        theirs.norm1.load_state_dict(ours.self_attention_norm.state_dict())
        theirs.linear1.load_state_dict(ours.feed_forward.inner_proj.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.out_proj.state_dict())
        theirs.norm2.load_state_dict(ours.feed_forward_norm.state_dict())
    return stack  # in training mode, where PyTorch takes no shortcuts


def test_output_equals_pytorch_on_scaled_frames_with_sinusoids():
    encoder = build()
    features = torch.randn(B, M, D)
    places = torch.zeros(M, D)
    for m in range(M):
        for i in range(0, D, 2):
            places[m, i] = math.sin(m / 10000 ** (i / D))
            places[m, i + 1] = math.cos(m / 10000 ** (i / D))
    with torch.no_grad():
        expected = of_pytorch(encoder)(features * math.sqrt(D) + places, src_key_padding_mask=MASK)
        found = encoder(features, MASK)
    assert_close(found[~MASK], expected[~MASK])


def test_an_odd_number_of_channels_has_positions_too():
    encoder = VideoTransformerEncoder(5, 1, 1, 4, 0.0)
    assert encoder(torch.zeros(1, 3, 5), torch.zeros(1, 3, dtype=torch.bool)).shape == (1, 3, 5)
