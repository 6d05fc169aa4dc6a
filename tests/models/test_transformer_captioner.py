"""The transformer for captions equals fairseq's decoder, and the encoder its equation."""

import math

import pytest
import torch
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from numerics import assert_close
from toy_data import EXTRACTOR, build_model, toy_task

from fairseq_mm.errors import UserError
from fairseq_mm.models import transformer_captioner

SIZES = {"embed_dim": 8, "ffn_dim": 10, "attention_heads": 2, "decoder_layers": 2}
C = 8
TOKENS = torch.tensor([[2, 4, 5, 6], [2, 7, 1, 1]])
PADDING = torch.tensor([[False, False, False], [False, True, False]])


def captioner(arch="transformer_captioner", grid=None, **options):
    attributes = {} if grid is None else {**EXTRACTOR, "grid": grid}
    return build_model(arch, toy_task(feature_attributes=attributes), **{**SIZES, **options})


def fairseqs_decoder(ours):
    """fairseq's decoder with the weights of ours; its positions are others and left out."""
    cfg = TransformerConfig()
    cfg.decoder.embed_dim = cfg.decoder.input_dim = cfg.decoder.output_dim = C
    cfg.encoder.embed_dim, cfg.decoder.ffn_embed_dim = C, SIZES["ffn_dim"]
    cfg.decoder.layers, cfg.decoder.attention_heads = 2, SIZES["attention_heads"]
    cfg.decoder.normalize_before = True
    cfg.no_token_positional_embeddings = cfg.share_decoder_input_output_embed = True
    theirs = TransformerDecoderBase(cfg, ours.dictionary, ours.embedding).eval()
    state = {"layer_norm": ours.norm}
    for i, layer in enumerate(ours.layers):
        attention = layer.source_attentions[0]
        names = {
            "self_attn.out_proj": layer.self_attention.out_proj,
            "self_attn_layer_norm": layer.self_attention_norm,
            "encoder_attn.q_proj": attention.query_proj,
            "encoder_attn.v_proj": attention.value_proj,
            "encoder_attn.out_proj": attention.out_proj,
            "encoder_attn_layer_norm": layer.source_attention_norm,
            "fc1": layer.feed_forward.inner_proj,
            "fc2": layer.feed_forward.out_proj,
            "final_layer_norm": layer.feed_forward_norm,
        }
        state.update({f"layers.{i}.{name}": module for name, module in names.items()})
    with torch.no_grad():
        for name, module in state.items():
            theirs.get_submodule(name).load_state_dict(module.state_dict())
        for layer, their_layer in zip(ours.layers, theirs.layers):
            parts = zip(
                layer.self_attention.in_proj.weight.chunk(3),
                layer.self_attention.in_proj.bias.chunk(3),
            )
            for name, (weight, bias) in zip(("q_proj", "k_proj", "v_proj"), parts):
                their_proj = getattr(their_layer.self_attn, name)
                their_proj.weight.copy_(weight)
                their_proj.bias.copy_(bias)
            their_layer.encoder_attn.k_proj.weight.copy_(layer.source_attentions[0].key_proj.weight)
            their_layer.encoder_attn.k_proj.bias.zero_()
    return theirs


def test_logits_equal_those_of_fairseqs_decoder(monkeypatch):
    model = captioner()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    theirs = fairseqs_decoder(model.decoder)
    monkeypatch.setattr(
        transformer_captioner, "sinusoids", lambda positions, dim: torch.zeros(len(positions), dim)
    )
    encoder_out = model.encoder(torch.randn(2, 3, 5), PADDING)
    their_out = {
        "encoder_out": [encoder_out["regions"][0].transpose(0, 1)],
        "encoder_padding_mask": [PADDING],
    }
    with torch.no_grad():
        logits, extra = model.decoder(TOKENS, encoder_out)
        their_logits, their_extra = theirs(TOKENS, their_out)
    is_word = TOKENS.ne(1)
    assert_close(logits[is_word], their_logits[is_word] + model.decoder.output_proj.bias)
    assert_close(extra["image_attention"][is_word], their_extra["attn"][0][is_word])
    assert torch.equal(extra["image_attention"][1, :2, 1], torch.zeros(2))


def test_words_are_embedded_with_sines_and_cosines_of_their_positions():
    decoder = captioner().decoder
    embedded = decoder._embed(torch.tensor([[4, 9]]), 2)[0]
    for row, (word, position) in enumerate([(4, 2), (9, 3)]):
        for k in range(0, C, 2):
            angle = position / 10000 ** (k / C)
            for channel, wave in ((k, math.sin(angle)), (k + 1, math.cos(angle))):
                expected = math.sqrt(C) * float(decoder.embedding.weight[word, channel]) + wave
                assert float(embedded[row, channel]) == pytest.approx(expected, abs=1e-5)


def test_regions_are_projected_and_normalised_one_by_one():
    encoder = captioner().encoder
    with torch.no_grad():
        encoder.proj_norm.weight.uniform_(0.5, 2)
        encoder.proj_norm.bias.normal_()
        features = torch.randn(1, 3, 5)
        regions = encoder(features, torch.zeros(1, 3, dtype=torch.bool))["regions"][0]
    for x, u in zip(features[0], regions[0]):
        projected = encoder.proj.weight @ x
        deviation = math.sqrt(float((projected - projected.mean()).pow(2).mean()) + 1e-5)
        normalised = (projected - projected.mean()) / deviation
        assert_close(u, normalised * encoder.proj_norm.weight + encoder.proj_norm.bias)


@pytest.mark.parametrize(
    ("grid", "regions", "message"),
    [
        (1, 1, "trained on a grid of each image, but is given 1 regions: extract with --grid"),
        (0, 3, "trained on one region of each image, but is given 3 regions: extract without"),
    ],
)  # fmt: skip
def test_features_of_the_other_kind_are_refused(grid, regions, message):
    model = captioner(grid=grid)
    padding_mask = torch.zeros(2, regions, dtype=torch.bool)
    with pytest.raises(UserError, match=message):
        model(torch.randn(2, regions, 5), padding_mask, TOKENS)
