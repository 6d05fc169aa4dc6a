"""The fusion add-on equals equations 4 to 13, written as loops."""

import math

import pytest
import torch
from numerics import assert_close

from fairseq_mm.modules.video_fusion import FusionTrace, VideoFusion

B, N, M, TEXT, VIDEO, COMMON, HEADS = 2, 4, 3, 6, 7, 8, 2
MASK = torch.tensor([[False, False, True], [False, False, False]])


def build(**options):
    torch.manual_seed(5)
    fusion = VideoFusion(
        TEXT, VIDEO, **{"common_dim": COMMON, "num_heads": HEADS, "dropout": 0.0, **options}
    )
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return fusion.eval()


@pytest.fixture
def text():
    torch.manual_seed(1)
    return torch.randn(B, N, TEXT)


@pytest.fixture
def video():
    torch.manual_seed(2)
    return torch.randn(B, M, VIDEO)


def times(layer, vector):
    """A linear layer's rows times a vector."""
    out = [sum(float(w) * float(v) for w, v in zip(row, vector)) for row in layer.weight]
    return out if layer.bias is None else [x + float(b) for x, b in zip(out, layer.bias)]


def softmax(scores):
    total = sum(math.exp(x) for x in scores)
    return [math.exp(x) / total for x in scores]


def attended(scores, values):
    weights = softmax(scores)
    return [sum(w * v[i] for w, v in zip(weights, values)) for i in range(len(values[0]))]


def dot(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b))


def read_by_loops(fusion, word, frames):
    """O of one word: equations 4 to 6, or 7 to 10."""
    keys = [times(fusion.key_proj, frame) for frame in frames]
    if fusion.kind == "dot_product":
        return attended([dot(word, k) for k in keys], [frame.tolist() for frame in frames])
    if fusion.kind == "dot_product_projected":
        return attended([dot(word, k) for k in keys], keys)
    query = times(fusion.query_proj, word)
    values = [times(fusion.value_proj, frame) for frame in frames]
    size = COMMON // HEADS
    out = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = [dot(query[part], k[part]) / math.sqrt(size) for k in keys]
        out += attended(scores, [v[part] for v in values])
    if fusion.attention_out_proj is not None:  # appendix A: Concat(head_1, ..., head_h) W_o
        out = times(fusion.attention_out_proj, out)
    return out


def by_loops(fusion, text, video, mask):
    out = torch.zeros_like(text)
    for b in range(B):
        frames = [video[b, m] for m in range(M) if not mask[b, m]]
        for n in range(N):
            word = text[b, n]
            read = read_by_loops(fusion, word, frames)
            if fusion.gate_proj is not None:  # equations 12 and 13
                logits = times(fusion.gate_proj, read + word.tolist())
                read = [x / (1 + math.exp(-y)) for x, y in zip(read, logits)]
            fused = times(fusion.output_proj, word.tolist() + read)  # equations 6 and 11
            added = [float(x) + y for x, y in zip(word, fused)]
            mean = sum(added) / TEXT
            spread = math.sqrt(sum((x - mean) ** 2 for x in added) / TEXT + 1e-5)
            for i in range(TEXT):
                scaled = (added[i] - mean) / spread
                out[b, n, i] = scaled * fusion.norm.weight[i] + fusion.norm.bias[i]
    return out


@pytest.mark.parametrize("forget_gate", [False, True])
@pytest.mark.parametrize("kind", ["dot_product", "dot_product_projected", "multi_head"])
def test_output_equals_the_equations_written_as_loops(kind, forget_gate, text, video):
    fusion = build(kind=kind, forget_gate=forget_gate)
    with torch.no_grad():
        found = fusion(text, fusion.project(video), MASK)
        assert_close(found, by_loops(fusion, text, video, MASK))


@pytest.mark.parametrize(
    "options",
    [
        {"forget_gate": False},
        {"num_heads": 1},
        {"output_projection": False},
        {"kind": "dot_product"},
    ],
)
def test_there_is_no_output_projection_where_another_matrix_does_its_work(options):
    assert build(**options).attention_out_proj is None


@pytest.mark.parametrize("kind", ["dot_product", "dot_product_projected", "multi_head"])
def test_trace_gets_weights_of_real_frames_and_gates(kind, text, video):
    fusion, trace = build(kind=kind), FusionTrace()
    fusion(text, fusion.project(video), MASK, trace)
    heads = HEADS if kind == "multi_head" else 1
    width = {"dot_product": VIDEO, "dot_product_projected": TEXT, "multi_head": COMMON}[kind]
    (weights,), (gates,) = trace.weights, trace.gates
    assert weights.shape == (B, heads, N, M)
    assert gates.shape == (B, N, width)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, heads, N))
    assert not weights[0, :, :, 2].any()
    assert ((gates > 0) & (gates < 1)).all()


@pytest.mark.parametrize("kind", ["dot_product", "dot_product_projected"])
def test_softmax_over_the_text_as_released(kind, text, video):
    fusion, trace = build(kind=kind, text_axis=True), FusionTrace()
    with torch.no_grad():
        fusion(text, fusion.project(video), None, trace)
        for b in range(B):
            for m in range(M):
                key = times(fusion.key_proj, video[b, m])
                expected = torch.tensor(softmax([dot(word, key) for word in text[b]]))
                torch.testing.assert_close(trace.weights[0][b, 0, :, m], expected)


def test_gate_dropout_drops_the_gate_and_not_the_text(text, video):
    fusion = build(gate_dropout=1.0).train()
    with torch.no_grad():
        found = fusion(text, fusion.project(video), MASK)
        other = fusion(text, fusion.project(video + 1), MASK)
        assert torch.equal(found, other)  # nothing of the video is left
        fusion.eval()
        assert not torch.allclose(found, fusion(text, fusion.project(video), MASK))


def test_identity_init_gives_the_text_bit_by_bit_and_learns(text, video):
    torch.manual_seed(5)
    fusion = VideoFusion(TEXT, VIDEO, common_dim=COMMON, num_heads=HEADS, identity_init=True)
    found = fusion.train()(text, fusion.project(video), MASK)
    assert torch.equal(found, text)
    found.square().sum().backward()
    assert fusion.mix.grad.any()
    fusion.mix.data.fill_(1.0)
    plain = VideoFusion(TEXT, VIDEO, common_dim=COMMON, num_heads=HEADS)
    assert "mix" not in plain.state_dict()
    plain.load_state_dict({k: x for k, x in fusion.state_dict().items() if k != "mix"})
    torch.testing.assert_close(
        fusion.eval()(text, fusion.project(video), MASK),
        plain.eval()(text, plain.project(video), MASK),
    )


@pytest.mark.parametrize("kind", ["dot_product", "dot_product_projected", "multi_head"])
def test_large_scores_are_finite_in_bfloat16_and_keep_its_type(kind, text, video):
    fusion = build(kind=kind).to(torch.bfloat16)
    projected = fusion.project(video.to(torch.bfloat16) * 1e4)
    found = fusion(text.to(torch.bfloat16), projected, MASK)
    assert found.dtype == torch.bfloat16
    assert torch.isfinite(found).all()
