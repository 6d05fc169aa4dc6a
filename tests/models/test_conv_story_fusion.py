"""Fusion with a trained story model: what stays fixed, and what is carried."""

import pytest
import torch
from toy_data import build_model, story_task, write_story_checkpoint

SIZES = {
    "encoder_embed_dim": 8,
    "decoder_embed_dim": 8,
    "decoder_out_embed_dim": 9,
    "encoder_layers": "[(6, 3)]",
    "decoder_layers": "[(6, 4)] * 2",
    "max_source_positions": 12,
    "max_target_positions": 14,
    "dropout": 0.5,
}


@pytest.fixture
def fuse(tmp_path):
    path = write_story_checkpoint(tmp_path / "pretrained.pt", "conv_story_gated", SIZES)

    def build(**options):
        options = {**SIZES, "pretrained_checkpoint": path, **options}
        return build_model("conv_story_fusion", story_task(), **options)

    return build


@pytest.mark.parametrize("options", [{}, {"frozen_dropout": True}, {"compat": "released"}])
def test_frozen_dropout_is_on_only_in_training_and_when_asked_for(fuse, options):
    model = fuse(**options).train()
    frozen = [model.encoder.frozen, model.decoder.frozen]
    assert all(module.training == bool(options) for part in frozen for module in part.modules())
    assert model.decoder.trunk.training
    model.eval()
    assert not any(module.training for part in frozen for module in part.modules())


def test_only_the_second_model_is_trained(fuse):
    model = fuse()
    trained = {name for name, x in model.named_parameters() if x.requires_grad}
    fixed = {name for name, x in model.named_parameters() if not x.requires_grad}
    assert all(name.startswith(("encoder.frozen.", "decoder.frozen.")) for name in fixed)
    assert fixed
    assert not any("frozen." in name for name in trained)


def test_the_fixed_model_has_no_output_layer(fuse):
    model = fuse()
    vocabulary = len(model.decoder.dictionary)
    outputs = [
        name
        for name, x in model.named_parameters()
        if x.dim() == 2 and x.size(0) == vocabulary and "embedding" not in name
    ]
    assert outputs == ["decoder.output_proj.weight"]


def test_the_frozen_part_equals_the_pretrained_model(fuse):
    model = fuse()
    pretrained = build_model("conv_story_gated", story_task(), **SIZES)
    tokens = torch.randint(4, 20, (2, 5))
    with torch.no_grad():
        encoder_out = pretrained.encoder(tokens)
        expected, _ = pretrained.decoder.extract_features(tokens, encoder_out)
        _, frozen = model.decoder.hidden_states(tokens, model.encoder(tokens))
    torch.testing.assert_close(frozen, expected)
