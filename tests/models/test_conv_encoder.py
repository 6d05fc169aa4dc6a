"""The encoder of prompts equals loops over rows and positions, whatever side is padded."""

import math

import pytest
import torch
from toy_data import make_dictionary

from fairseq_mm.models._conv_decoder import ConvEncoder

PAD, E = 1, 6


@pytest.fixture
def encoder():
    torch.manual_seed(5)
    layers = [(8, 3), (8, 2), (7, 5)]
    encoder = ConvEncoder(
        make_dictionary(), layers, embed_dim=E, dropout=0.4, table_rows=11, num_attention_layers=3
    )
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return encoder.eval()


def expected_output(encoder, words):
    """Gehring et al. 2017, section 3.2, of one text without padding: keys, and values."""
    S = len(words)
    embedding = [
        encoder.embedding.tokens.weight[word] + encoder.embedding.positions.weight[PAD + 1 + place]
        for place, word in enumerate(words)
    ]
    x = [encoder.input_proj.weight @ e + encoder.input_proj.bias for e in embedding]
    for residual_proj, convolution in zip(encoder.residual_projs, encoder.convolutions):
        out_channels, _, width = convolution.weight.shape
        out = []
        for s in range(S):
            total = convolution.bias.clone()
            for place in range(width):
                other = s - (width - 1) // 2 + place
                if 0 <= other < S:
                    total += convolution.weight[:, :, place] @ x[other]
            half = out_channels // 2
            gated = total[:half] * torch.sigmoid(total[half:])
            residual = x[s]
            if hasattr(residual_proj, "weight"):
                residual = residual_proj.weight @ residual + residual_proj.bias
            out.append((gated + residual) * math.sqrt(0.5))
        x = out
    keys = [encoder.output_proj.weight @ h + encoder.output_proj.bias for h in x]
    values = [(key + e) * math.sqrt(0.5) for key, e in zip(keys, embedding)]
    return torch.stack(keys), torch.stack(values)


@pytest.mark.parametrize("side", ["left", "right"])
def test_equals_loops_over_positions_without_padding(encoder, side):
    texts = [[5, 9, 4, 7, 2], [8, 2], [6, 6, 11, 2]]
    longest = max(map(len, texts))
    tokens = torch.tensor(
        [
            ([PAD] * (longest - len(t)) + t) if side == "left" else t + [PAD] * (longest - len(t))
            for t in texts
        ]
    )
    with torch.no_grad():
        out = encoder(tokens)
        assert torch.equal(out["padding_mask"][0], tokens.eq(PAD))
        for row, text in enumerate(texts):
            keys, values = expected_output(encoder, text)
            real = tokens[row].ne(PAD)
            torch.testing.assert_close(out["keys"][0][row, real], keys)
            torch.testing.assert_close(out["values"][0][row, real], values)
            assert not out["keys"][0][row, ~real].any()


def test_the_gradient_is_divided_by_twice_the_decoders_attentions(encoder):
    tokens = torch.tensor([[5, 9, 2]])
    out = encoder(tokens)["keys"][0]
    (scaled,) = torch.autograd.grad(out.sum(), encoder.output_proj.bias)
    torch.testing.assert_close(scaled, torch.full((E,), 3 / 6))
