"""m-RNN equals the paper's equations, written as loops, in each of its variants."""

import math
from argparse import Namespace

import pytest
import torch
from numerics import assert_close
from toy_data import build_model, toy_task

from fairseq_mm.errors import UserError

SIZES = {"embedding_dim": 4, "hidden_dim": 6, "multimodal_dim": 9, "feature_scaling": "scale"}
VARIANTS = [
    "m_rnn",
    "m_rnn_base",
    "m_rnn_no_emb_input",
    "m_rnn_one_layer_emb",
    "m_rnn_emb_one_input",
    "m_rnn_vis_in_rnn",
    "m_rnn_vis_in_rnn_both",
    "m_rnn_vis_in_rnn_both_shared",
]


FUNCTIONS = {  # equation 2; footnote 3, whose tangent is that of equation 4
    "relu": lambda x: max(x, 0.0),
    "scaled_tanh": lambda x: 1.7159 * math.tanh(2 / 3 * x),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


def log_probabilities_by_loops(decoder, arch, image, tokens, f=FUNCTIONS["relu"]):
    """``[T, V]`` for one image ``[D]`` and one sentence, from equations 1 to 4 and Figure 3."""
    U = decoder.recurrent_weight
    if decoder.word_to_recurrent is not None:  # equation 1
        U = torch.cat([decoder.word_to_recurrent.weight, U], dim=1)
    H = U.size(0)
    r = torch.zeros(H)
    rows = []
    for token in tokens:
        e = decoder.embedding.weight[token]
        if arch == "m_rnn_one_layer_emb":
            w = e
        else:
            w = decoder.word_proj.weight @ e + decoder.word_proj.bias
        if arch in ("m_rnn_vis_in_rnn", "m_rnn_vis_in_rnn_both"):
            w = w + decoder.image_to_word.weight @ image
        if arch == "m_rnn_vis_in_rnn_both_shared":
            w = w + decoder.image_to_multimodal.weight[:H] @ image
        x = U @ r + w if U.size(1) == H else U @ torch.cat([w, r])
        r = torch.tensor([f(value) for value in x.tolist()])
        x = decoder.recurrent_to_multimodal.weight @ r + decoder.recurrent_to_multimodal.bias
        if arch == "m_rnn_emb_one_input":
            x = x + decoder.word_to_multimodal.weight @ e
        elif arch != "m_rnn_no_emb_input":
            x = x + decoder.word_to_multimodal.weight @ w
        if arch not in ("m_rnn_base", "m_rnn_vis_in_rnn"):
            x = x + decoder.image_to_multimodal.weight @ image
        m = torch.tensor([1.7159 * math.tanh(2 / 3 * value) for value in x.tolist()])
        y = decoder.output_proj.weight @ m + decoder.output_proj.bias
        rows.append(y - math.log(sum(math.exp(value) for value in y.tolist())))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("arch", "activation", "recurrent_input"),
    [
        *((arch, "relu", "sum") for arch in VARIANTS),
        *((arch, "sigmoid", "concatenation") for arch in VARIANTS),  # equation 1
        ("m_rnn", "relu", "concatenation"),
        ("m_rnn", "sigmoid", "sum"),
        ("m_rnn", "scaled_tanh", "sum"),
        ("m_rnn_vis_in_rnn_both_shared", "scaled_tanh", "concatenation"),
    ],
)
def test_equals_the_equations_written_as_loops(arch, activation, recurrent_input):
    options = {"recurrent_activation": activation, "recurrent_input": recurrent_input}
    model = build_model(arch, toy_task(), **SIZES, **options)
    with torch.no_grad():
        model.decoder.recurrent_weight.normal_(std=0.4)
        model.decoder.recurrent_to_multimodal.bias.normal_()
        features = torch.randn(1, 1, 5)
        tokens = torch.tensor([[2, 7, 4, 19, 7, 3]])
        logits, _ = model(features, torch.zeros(1, 1, dtype=torch.bool), tokens)
        lprobs = model.get_normalized_probs((logits, None), log_probs=True)[0]
        image = features[0, 0] / features[0, 0].pow(2).mean().sqrt()
        f = FUNCTIONS[activation]
        expected = log_probabilities_by_loops(model.decoder, arch, image, tokens[0].tolist(), f)
    assert_close(lprobs, expected)


def test_default_sizes_are_those_of_the_paper():
    model = build_model("m_rnn", toy_task(feature_dim=4096))
    decoder = model.decoder
    assert decoder.embedding.weight.shape == (20, 128)
    assert decoder.word_proj.weight.shape == (256, 128)
    assert decoder.recurrent_weight.shape == (256, 256)
    assert decoder.word_to_multimodal.weight.shape == (512, 256)
    assert decoder.recurrent_to_multimodal.weight.shape == (512, 256)
    assert decoder.image_to_multimodal.weight.shape == (512, 4096)
    assert decoder.output_proj.weight.shape == (20, 512)


def attended_log_probabilities_by_loops(decoder, regions, tokens):
    """``[T, V]`` for the regions ``[N, D]`` of one image: the equations of ``--attention soft``."""
    attention = decoder.region_attention
    r, rows = torch.zeros(decoder.hidden_dim), []
    for token in tokens:
        w = decoder.word_proj.weight @ decoder.embedding.weight[token] + decoder.word_proj.bias
        r = (decoder.recurrent_weight @ r + w).clamp(min=0)
        scores = []
        for x in regions:
            hidden = attention.key_proj.weight @ x + attention.key_proj.bias
            hidden = torch.tanh(hidden + attention.query_proj.weight @ r)
            scores.append(math.exp(float(attention.score @ hidden)))
        z = sum(score / sum(scores) * x for score, x in zip(scores, regions))
        m = decoder.word_to_multimodal.weight @ w + decoder.image_to_multimodal.weight @ z
        m = m + decoder.recurrent_to_multimodal.weight @ r + decoder.recurrent_to_multimodal.bias
        m = torch.tensor([1.7159 * math.tanh(2 / 3 * value) for value in m.tolist()])
        rows.append((decoder.output_proj.weight @ m + decoder.output_proj.bias).log_softmax(-1))
    return torch.stack(rows)


def test_attention_equals_its_equations():
    model = build_model(
        "m_rnn", toy_task(), **{**SIZES, "feature_scaling": "none"}, attention="soft"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.4)
    features = torch.randn(2, 3, 5)
    padding_mask = torch.tensor([[False, False, False], [False, True, False]])
    tokens = torch.tensor([[2, 4, 5, 6], [2, 7, 8, 9]])
    with torch.no_grad():
        logits, extra = model(features, padding_mask, tokens)
        for row, real in enumerate(~padding_mask):
            expected = attended_log_probabilities_by_loops(
                model.decoder, features[row, real], tokens[row]
            )
            assert_close(logits[row].log_softmax(-1), expected)
    weights = extra["image_attention"]
    assert_close(weights.sum(-1), torch.ones(2, 4))
    assert weights[1, :, 1].eq(0).all()


def test_attention_refuses_pooled_features_and_an_image_elsewhere():
    model = build_model("m_rnn", toy_task(), **SIZES, attention="soft")
    with pytest.raises(UserError, match="trained on a grid of each image, but is given 1 regions"):
        model(torch.randn(2, 1, 5), torch.zeros(2, 1, dtype=torch.bool), torch.tensor([[2], [2]]))
    pooled = Namespace(ids=["a.jpg"], count_rows={"a.jpg": 1}.get)
    with pytest.raises(UserError, match="extract with --grid"):  # before the training begins
        build_model("m_rnn", toy_task(features=pooled), **SIZES, attention="soft")
