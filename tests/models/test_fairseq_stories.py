"""``conv_story`` equals fairseq's own ``fconv_self_att``: logits, loss and gradients on equal
weights, for every rung of the ladder, its attention's options, and fusion."""

from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.fconv_self_att import FConvDecoder, FConvEncoder, FConvModelSelfAtt
from numerics import assert_close

from fairseq_mm.models._fairseq_stories import (
    convert_weights,
    format_list,
    options_of_weights,
)
from fairseq_mm.models.conv_story import ConvStoryModel, parse_flags, parse_layers, part_options

B, S, T, PAD, EOS = 3, 7, 11, 1, 2
SOURCE_TYPES, TARGET_TYPES = 21, 27

SIZES = {
    "encoder_embed_dim": 16,
    "encoder_layers": "[(8, 3)] * 2 + [(12,3)]",
    "decoder_embed_dim": 16,
    "decoder_layers": "[(12, 4)] * 2 + [(10, 3)]",
    "decoder_out_embed_dim": 14,
    "max_source_positions": 30,
    "max_target_positions": 40,
    "dropout": 0.0,
}
GATED = {
    "self_attention": "True",
    "multihead_self_attention_nheads": 4,
    "downsample": "True",
    "gated_attention": "True",
}
# fairseq's options for what each name here sets
LADDER = {
    "conv_story": {},
    "conv_story_self_att": {"self_attention": "True"},
    "conv_story_multihead": {"self_attention": "True", "multihead_self_attention_nheads": 4},
    "conv_story_multiscale": {**GATED, "gated_attention": "False"},
    "conv_story_gated": GATED,
}
OTHERS = {
    "gated, not multi-scale": {**GATED, "downsample": "False"},
    "some layers attend": {
        **GATED,
        "decoder_attention": "[True] + [False] + [True]",
        "self_attention": "[False] + [True] * 2",
    },
    "heads to the prompt": {**GATED, "multihead_attention_nheads": 2},
    "one head that sees all": {**GATED, "multihead_self_attention_nheads": 1},
    "unprojected": {"project_input": "False"},
    "unprojected self-attention": {
        **{"project_input": "False", "self_attention": "True", "gated_attention": "True"},
        "multihead_self_attention_nheads": 2,
    },
}


def dictionary(types):
    words = Dictionary()
    for i in range(types - words.nspecial):
        words.add_symbol(f"w{i}")
    return words


def story_task():
    return Namespace(
        source_dictionary=dictionary(SOURCE_TYPES), target_dictionary=dictionary(TARGET_TYPES)
    )


def options_for(arch="fconv_self_att", **options):
    options = {"project_input": "True", **SIZES, **options}
    cfg = Namespace(**options, compat="released")
    ARCH_CONFIG_REGISTRY[arch](cfg)
    return cfg


def shake(model):
    """Away from initial values: biases are zero there, and lengths those of directions."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def build_theirs(cfg):
    torch.manual_seed(4)
    return shake(FConvModelSelfAtt.build_model(cfg, story_task())).eval()


def build_fusion(cfg, pretrained):
    """As fairseq's ``--pretrained True`` builds it, which reads the model from a file."""
    torch.manual_seed(5)
    task = story_task()
    encoder = FConvEncoder(
        task.source_dictionary,
        embed_dim=cfg.encoder_embed_dim,
        max_positions=cfg.max_source_positions,
        convolutions=parse_layers(cfg.encoder_layers, ""),
        dropout=cfg.dropout,
    )
    decoder = FConvDecoder(
        task.target_dictionary,
        embed_dim=cfg.decoder_embed_dim,
        out_embed_dim=cfg.decoder_out_embed_dim,
        max_positions=cfg.max_target_positions,
        convolutions=parse_layers(cfg.decoder_layers, ""),
        attention=True,
        dropout=cfg.dropout,
        selfattention=cfg.self_attention == "True",
        selfattention_nheads=cfg.multihead_self_attention_nheads,
        project_input=True,
        gated_attention=cfg.gated_attention == "True",
        downsample=cfg.downsample == "True",
        pretrained=True,
        trained_decoder=pretrained.decoder,
    )
    for parameter in pretrained.parameters():
        parameter.requires_grad_(False)
    return shake(FConvModelSelfAtt(encoder, decoder, pretrained.encoder)).eval()


def build_ours(cfg, frozen=None):
    task = story_task()
    model = ConvStoryModel(
        Namespace(**{**vars(cfg), "project_input": "True"}),
        task.source_dictionary,
        task.target_dictionary,
        None if frozen is None else part_options(frozen),
    )
    return model.eval()


def copy_to_ours(ours, theirs, **options):
    conversion = convert_weights(ours, theirs.state_dict(), **options)
    assert conversion.fits
    assert conversion.unexpected == []
    assert set(conversion.weights) == {name for name, _ in ours.named_parameters()}
    missing, unexpected = torch.nn.Module.load_state_dict(ours, conversion.weights, strict=False)
    assert unexpected == []
    assert all(name.endswith("_extra_state") for name in missing)


@pytest.fixture
def batch():
    torch.manual_seed(11)
    source = torch.randint(4, SOURCE_TYPES, (B, S))
    source[0, :2] = source[2, 0] = PAD  # fairseq attends to it
    source[:, -1] = EOS
    story = torch.randint(4, TARGET_TYPES, (B, T + 1))
    story[:, 0] = EOS
    story[1, 9:] = PAD
    return {"source": source, "input": story[:, :-1], "target": story[:, 1:]}


def compare(theirs, ours, batch, **options):
    """Logits, loss and gradients."""
    logits = [model(batch["source"], None, batch["input"])[0].float() for model in (theirs, ours)]
    assert_close(logits[1], logits[0])
    losses = [
        F.cross_entropy(x.flatten(0, 1), batch["target"].flatten(), ignore_index=PAD)
        for x in logits
    ]
    assert_close(losses[1], losses[0])
    for loss in losses:
        loss.backward()
    # what fairseq's model does not use has no gradient there, and must not have a place here
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in theirs.named_parameters()
    }
    expected = convert_weights(ours, gradients, **options).weights
    compared = 0
    for name, parameter in ours.named_parameters():
        if parameter.requires_grad and not is_identity(name, options):
            assert_close(parameter.grad, expected[name], msg=f"gradient of {name}")
            compared += 1
    assert compared > 20


def is_identity(name, options):
    """Whether fairseq's model has no such tensor, as it does not project."""
    names = ("query_proj", "key_proj", "value_proj", "networks")
    return not options.get("projects_input", True) and any(part in name for part in names)


@pytest.mark.parametrize("arch", LADDER)
def test_a_rung_of_the_ladder_equals_fairseqs_model_with_its_options(arch, batch):
    cfg = options_for(**LADDER[arch])
    named = Namespace(**SIZES, compat="released")
    if arch != "conv_story":
        ARCH_CONFIG_REGISTRY[arch](named)
        assert vars(named).items() <= vars(cfg).items()
    theirs, ours = build_theirs(cfg), build_ours(cfg)
    copy_to_ours(ours, theirs)
    compare(theirs, ours, batch)


@pytest.mark.parametrize("name", OTHERS)
def test_other_options_of_fairseqs_model_give_the_same(name, batch):
    cfg = options_for(**OTHERS[name])
    projects = {"projects_input": cfg.project_input == "True"}
    theirs = build_theirs(cfg)
    if cfg.project_input == "False":
        cfg.gated_attention = "False"  # which is part of the projections
    ours = build_ours(cfg)
    copy_to_ours(ours, theirs, **projects)
    compare(theirs, ours, batch, **projects)


def test_conv_story_wp_has_the_sizes_of_fconv_self_att_wp_by_default():
    theirs, ours = Namespace(), Namespace()
    ARCH_CONFIG_REGISTRY["fconv_self_att_wp"](theirs)
    ARCH_CONFIG_REGISTRY["conv_story_wp"](ours)
    fields = ConvStoryModel.__dataclass.__dataclass_fields__
    for name, value in vars(theirs).items():
        here = getattr(ours, name, fields[name].default)
        if name.endswith("_layers"):
            here, value = parse_layers(here, name), parse_layers(value, name)
        assert here == value, name


def test_fusion_equals_fairseqs(batch):
    frozen = options_for(**GATED)
    # other sizes, so that the parts cannot be exchanged
    cfg = options_for(
        **{
            **{**GATED, "gated_attention": "False", "multihead_self_attention_nheads": 2},
            **{"encoder_layers": "[(9, 3)] * 2", "decoder_layers": "[(11, 2)] + [(13, 3)]"},
            **{"encoder_embed_dim": 20, "decoder_embed_dim": 20},
        }
    )
    theirs = build_fusion(cfg, build_theirs(frozen))
    ours = build_ours(cfg, frozen)
    copy_to_ours(ours, theirs)
    compare(theirs, ours, batch)


def test_the_frozen_parts_output_layer_is_left_out():
    frozen = options_for(**GATED)
    theirs, ours = build_fusion(frozen, build_theirs(frozen)), build_ours(frozen, frozen)
    left_out = convert_weights(ours, theirs.state_dict()).left_out
    reason = "the frozen part's output layer, of which nothing is computed"
    assert left_out.pop(reason) == [
        f"decoder.pretrained_decoder.fc3.{leaf}" for leaf in ("weight", "bias")
    ]
    assert left_out.pop("no weight") == ["decoder.version", "decoder.pretrained_decoder.version"]
    ((reason, twins),) = left_out.items()
    assert reason == "the same as encoder.pretrained.*"
    assert all(name.startswith("pretrained_encoder.encoder.") for name in twins)


def test_tensors_that_do_not_fit_are_named_as_fairseq_names_them():
    cfg = options_for(**GATED)
    weights = dict(build_theirs(cfg).state_dict())
    ours = build_ours(cfg)
    gone = "decoder.selfattention.1.attention.2.in_proj_k.1.2.weight_g"
    other = "decoder.convolutions.0.weight"
    del weights[gone]
    weights[other] = torch.zeros(3, 12, 24)
    weights["decoder.fc9.bias"] = torch.zeros(1)
    conversion = convert_weights(ours, weights)
    assert not conversion.fits
    assert conversion.missing == [gone]
    assert conversion.unexpected == ["decoder.fc9.bias"]
    assert conversion.mismatched == [(other, (3, 12, 24), (4, 12, 24))]
    assert "decoder.trunk.layers.0.convolution.weight" not in conversion.weights


@pytest.mark.parametrize("options", [*LADDER.values(), OTHERS["some layers attend"]])
def test_shapes_tell_the_options(options):
    cfg = options_for(**options)
    found = options_of_weights(build_theirs(cfg).state_dict(), frozen=False)
    assert ("multihead_self_attention_nheads" in found) == (cfg.downsample == "True")
    for name, value in found.items():
        expected = getattr(cfg, name)
        if name.endswith("_layers"):
            value, expected = parse_layers(value, name), parse_layers(expected, name)
        if name.endswith("attention"):
            value, expected = parse_flags(value, name, 3), parse_flags(expected, name, 3)
        assert value == expected, name


@pytest.mark.parametrize(
    ("items", "text"),
    [([1], "[1]"), ([1, 1, 2, 1], "[1] * 2 + [2] + [1]"), ([(3, 4)] * 3, "[(3, 4)] * 3")],
)
def test_lists_are_written_shortly(items, text):
    assert format_list(items) == text
