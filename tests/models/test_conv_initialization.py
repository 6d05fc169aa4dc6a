"""Initial weights of the convolutional models have the standard deviations of fairseq's."""

import math
from typing import Any

import pytest
from toy_data import build_model, story_task

from fairseq_mm.models._fusion import Fusion

KEEP = 0.64  # probability that dropout keeps a number
E, OUT = 64, 80
OPTIONS: dict[str, Any] = {
    "encoder_embed_dim": E,
    "decoder_embed_dim": E,
    "decoder_out_embed_dim": OUT,
    "encoder_layers": "[(96, 3)] + [(128, 2)]",
    "decoder_layers": "[(96, 4)] + [(128, 3)]",
    "self_attention": "True",
    "dropout": 1 - KEEP,
    "max_source_positions": 12,
    "max_target_positions": 12,
}
STANDARD_DEVIATIONS = {
    "encoder.input_proj": math.sqrt(KEEP / E),
    "encoder.convolutions.0": math.sqrt(4 * KEEP / (3 * 96)),
    "encoder.convolutions.1": math.sqrt(4 * KEEP / (2 * 96)),
    "encoder.residual_projs.1": math.sqrt(1 / 96),
    "encoder.output_proj": math.sqrt(1 / 128),
    "decoder.trunk.input_proj": math.sqrt(KEEP / E),
    "decoder.trunk.layers.1.residual_proj": math.sqrt(1 / 96),
    "decoder.trunk.layers.1.source_attention.hidden_proj": math.sqrt(KEEP / 128),
    "decoder.trunk.layers.1.self_attention.input_proj": math.sqrt(1 / 128),
    "decoder.trunk.output_proj": math.sqrt(1 / 128),
    "decoder.output_proj": math.sqrt(KEEP / OUT),
}


@pytest.fixture(scope="module")
def model():
    return build_model("conv_story", story_task(), **OPTIONS)


@pytest.mark.parametrize("name", STANDARD_DEVIATIONS)
def test_layers_of_a_story_model(model, name):
    layer = model.get_submodule(name)
    expected = STANDARD_DEVIATIONS[name]
    # the sample's standard deviation is off by about 1 / sqrt(2 n)
    assert layer.weight.std().item() == pytest.approx(
        expected, rel=4 / (2 * layer.weight.numel()) ** 0.5
    )
    assert not layer.bias.any()


def test_layers_of_a_fusion():
    fusion = Fusion(40, 60)
    for layer in (fusion.trained_gate, fusion.frozen_gate, fusion.joining[0]):
        assert layer.weight.std().item() == pytest.approx(0.1, rel=0.05)
    for layer in (fusion.joining[3], fusion.joining[6]):
        assert layer.weight.std().item() == pytest.approx(40**-0.5, rel=0.08)
