"""m-RNN equals the paper's equations, written as loops, in each of its variants."""

import math
from argparse import Namespace

import pytest
import torch
from numerics import assert_close
from omegaconf import OmegaConf
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


SIMPLE_RNN = {"recurrent_activation": "sigmoid", "recurrent_input": "concatenation"}


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


def test_image_does_not_change_the_rnn_baseline():
    model = build_model("m_rnn_base", toy_task(), **SIZES)
    tokens = torch.tensor([[2, 7, 4]])
    padding_mask = torch.zeros(1, 1, dtype=torch.bool)
    one, _ = model(torch.randn(1, 1, 5), padding_mask, tokens)
    other, _ = model(torch.randn(1, 1, 5), padding_mask, tokens)
    assert torch.equal(one, other)


def test_grid_is_averaged_over_its_real_rows():
    model = build_model("m_rnn", toy_task(), **SIZES)
    grid = torch.randn(2, 3, 5)
    padding_mask = torch.tensor([[False, False, False], [False, True, True]])
    image = model.encoder(grid, padding_mask)["image"][0]
    means = torch.stack([grid[0].mean(0), grid[1, 0]])
    torch.testing.assert_close(image, means / means.pow(2).mean(-1, keepdim=True).sqrt())


def scaled(scaling, features):
    model = build_model("m_rnn", toy_task(), **{**SIZES, "feature_scaling": scaling})
    padding_mask = torch.zeros(len(features), 1, dtype=torch.bool)
    return model.encoder(features[:, None], padding_mask)["image"][0]


def test_features_are_scaled_as_asked_for():
    features = torch.tensor([[4.0, -9.0, 0.0, 1.0, 16.0]])
    # roots 2 -3 0 1 4, less their mean 0.8: 1.2 -3.8 -0.8 0.2 3.2; mean square 5.36
    roots = torch.tensor([[1.2, -3.8, -0.8, 0.2, 3.2]]) / 5.36**0.5
    torch.testing.assert_close(scaled("root", features), roots)
    # mean square (16 + 81 + 0 + 1 + 256) / 5 = 70.8
    torch.testing.assert_close(scaled("scale", features), features / 70.8**0.5)
    assert torch.equal(scaled("none", features), features)


@pytest.mark.parametrize("scaling", ["root", "scale"])
def test_scale_of_the_features_does_not_matter(scaling):
    features = torch.randn(3, 5)
    torch.testing.assert_close(scaled(scaling, features), scaled(scaling, features * 37))
    assert torch.isfinite(scaled(scaling, torch.zeros(1, 5))).all()


def test_image_is_not_looked_at_again_after_the_first_step():
    model = build_model("m_rnn", toy_task(), **SIZES)
    features, padding_mask = torch.randn(2, 1, 5), torch.zeros(2, 1, dtype=torch.bool)
    encoder_out = model.encoder(features, padding_mask)
    state = {}
    model.decoder(torch.tensor([[2], [2]]), encoder_out, state)
    calls = []
    model.decoder.image_to_multimodal.register_forward_hook(lambda *args: calls.append(args))
    model.decoder(torch.tensor([[2, 5], [2, 6]]), encoder_out, state)
    assert calls == []


@pytest.mark.parametrize("options", [{}, SIMPLE_RNN, {"recurrent_activation": "scaled_tanh"}])
def test_word_table_follows_the_model_and_is_in_no_checkpoint(options):
    model = build_model("m_rnn", toy_task(), **SIZES, **options)
    assert model.decoder.word_table is None
    keys = model.state_dict().keys()
    model.prepare_for_inference_(OmegaConf.create({"generation": {"beam": 2}}))
    assert model.state_dict().keys() == keys
    model.double()  # after folding
    features, padding_mask = torch.randn(2, 1, 5), torch.zeros(2, 1, dtype=torch.bool)
    tokens = torch.tensor([[2], [7]])
    with torch.no_grad():
        encoder_out = model.encoder(features, padding_mask)
        expected, _ = model.decoder(tokens, encoder_out)
        found, _ = model.decoder(tokens, encoder_out, {})
    assert model.decoder.word_table.dtype == torch.float64
    assert_close(found, expected)


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


def test_a_dropped_feature_is_dropped_in_all_regions_of_an_image():
    model = build_model(
        "m_rnn", toy_task(), **{**SIZES, "feature_scaling": "none"}, attention="soft"
    )
    encoder = model.encoder.train()
    encoder.dropout.p = 0.5
    torch.manual_seed(0)
    regions = encoder(torch.ones(2, 3, 40), torch.zeros(2, 3, dtype=torch.bool))["image"][0]
    assert torch.equal(regions, regions[:, :1].expand_as(regions))
    assert regions.unique().tolist() == [0, 2]
    assert not torch.equal(regions[0], regions[1])


def test_attention_refuses_pooled_features_and_an_image_elsewhere():
    model = build_model("m_rnn", toy_task(), **SIZES, attention="soft")
    with pytest.raises(UserError, match=r"pooled \(1 region an image\): extract with --grid"):
        model(torch.randn(2, 1, 5), torch.zeros(2, 1, dtype=torch.bool), torch.tensor([[2], [2]]))
    pooled = Namespace(ids=["a.jpg"], count_rows={"a.jpg": 1}.get)
    with pytest.raises(UserError, match="extract with --grid"):  # before the training begins
        build_model("m_rnn", toy_task(features=pooled), **SIZES, attention="soft")
    with pytest.raises(UserError, match="needs --image-input multimodal, but that is both"):
        build_model("m_rnn_vis_in_rnn_both", toy_task(), **SIZES, attention="soft")


def test_attention_reads_a_single_region_of_imported_features():
    """Images of one region may make up a whole batch; attention then is their mean."""
    some = Namespace(ids=["a.jpg", "b.jpg"], count_rows={"a.jpg": 1, "b.jpg": 3}.get)
    task = toy_task(features=some, feature_attributes={"extractor": "mine"})
    model = build_model("m_rnn", task, **SIZES, attention="soft").eval()
    region = torch.randn(2, 1, 5)
    tokens = torch.tensor([[2, 4, 5], [2, 6, 7]])
    with torch.no_grad():
        alone, extra = model(region, torch.zeros(2, 1, dtype=torch.bool), tokens)
        padded = torch.cat([region, torch.randn(2, 2, 5)], dim=1)
        mask = torch.tensor([[False, True, True]] * 2)
        assert_close(alone, model(padded, mask, tokens)[0])
    assert extra["image_attention"].eq(1).all()
