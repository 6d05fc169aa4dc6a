"""Cross fusion beside its equations."""

import math

import pytest
import torch
from numerics import assert_close

from fairseq_mm.modules.cross_fusion import CrossFusion

B, S, M, C, D = 2, 4, 3, 5, 7


def make():
    torch.manual_seed(5)
    module = CrossFusion(C, D)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3)  # attention that is far from even
    text_padding = torch.zeros(B, S, dtype=torch.bool)
    text_padding[1, 0] = True
    video_padding = torch.zeros(B, M, dtype=torch.bool)
    video_padding[0, 2] = True
    text, video = torch.randn(B, S, C), torch.randn(B, M, D)
    return module, text, video, text_padding, video_padding


def fused_row(part, x, others):
    """``ReLU(x + W [x; (W_m y~ + b_m) * g] + b)`` for one element and those of the other side."""
    query = part.query_proj.weight @ x
    scores = [float(query @ y) / 8 for y in others]
    total = sum(math.exp(s) for s in scores)
    seen = sum(math.exp(s) / total * y for s, y in zip(scores, others))
    gate = 1 / (1 + torch.exp(-(part.gate_proj.weight @ torch.cat([x, seen]))))
    taken = (part.memory_proj.weight @ seen + part.memory_proj.bias) * gate
    update = part.output_proj.weight @ torch.cat([x, taken]) + part.output_proj.bias
    return (x + update).clamp(min=0)


@torch.no_grad()
def test_cross_fusion_equals_loops():
    module, text, video, text_padding, video_padding = make()
    new_text, new_video = module(text, video, text_padding, video_padding)
    for b in range(B):
        frames = [video[b, m] for m in range(M) if not video_padding[b, m]]
        words = [
            None if text_padding[b, s] else fused_row(module.text_fusion, text[b, s], frames)
            for s in range(S)
        ]
        for s, word in enumerate(words):
            assert_close(new_text[b, s], torch.zeros(C) if word is None else word)
        real = [word for word in words if word is not None]
        for m in range(M):
            expected = fused_row(module.video_fusion, video[b, m], real)
            if video_padding[b, m]:
                expected = torch.zeros(D)
            assert_close(new_video[b, m], expected)


@pytest.mark.parametrize("large", [3.0, 300.0])
def test_large_features_in_half_precision_stay_finite(large):
    module, text, video, *masks = make()
    module.to(torch.bfloat16)
    fused = module(text.bfloat16(), (large * video).bfloat16(), *masks)
    assert all(x.isfinite().all() for x in fused)
