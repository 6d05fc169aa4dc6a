"""VG-BART beside fairseq's BART: placement of fusions, loading, decoding, options."""

import logging
from argparse import Namespace

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.bart import BARTModel
from fairseq.sequence_generator import SequenceGenerator
from toy_data import build_model, make_dictionary, video_task

from fairseq_mm.errors import UserError
from fairseq_mm.models._vg_bart_parts import (
    DUPLICATES,
    VgBartDecoder,
    share_beams,
)
from fairseq_mm.models.vg_bart import VgBartConfig, bart_options

B, S, M, T, D, V = 3, 6, 4, 5, 5, 20
PAD, EOS = 1, 2


def build(arch="vg_bart_tiny", task=None, **chosen):
    return build_model(arch, task or video_task(), **chosen)


def text_only(dictionary=None, **chosen):
    """fairseq's own BART of the tiny sizes."""
    tiny = build().cfg
    sizes = {
        name: getattr(tiny, name, None)
        for name in ("dropout", "attention_dropout", "activation_dropout")
    }
    cfg = Namespace(**{name: x.default for name, x in VgBartConfig.__dataclass_fields__.items()})
    vars(cfg).update(
        sizes,
        encoder_embed_dim=8,
        encoder_ffn_embed_dim=12,
        encoder_layers=2,
        encoder_attention_heads=2,
        decoder_ffn_embed_dim=10,
        decoder_layers=2,
        decoder_attention_heads=2,
    )
    vars(cfg).update(chosen)
    dictionary = dictionary or make_dictionary()
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    torch.manual_seed(13)
    return BARTModel.build_model(bart_options(cfg), task).eval()


@pytest.fixture
def batch():
    torch.manual_seed(4)
    src_tokens = torch.randint(4, V, (B, S))
    src_tokens[:, -1] = EOS
    src_tokens[1, :2] = PAD
    padding_mask = torch.tensor([[False] * 4, [False, False, True, True], [False] * 3 + [True]])
    prev_output_tokens = torch.randint(4, V, (B, T))
    prev_output_tokens[:, 0] = EOS
    return {
        "src_tokens": src_tokens,
        "src_lengths": torch.tensor([S, S - 2, S]),
        "prev_output_tokens": prev_output_tokens,
        "features": torch.randn(B, M, D).masked_fill(padding_mask.unsqueeze(-1), 0),
        "padding_mask": padding_mask,
    }


def text_of(batch):
    return {key: batch[key] for key in ("src_tokens", "src_lengths", "prev_output_tokens")}


def shaken(model, seed=6):
    """Weights far from what they were at first."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def test_fusion_follows_a_layers_feed_forward_norm(batch):
    model = shaken(build(fusion_encoder_layers="2", fusion_decoder_layers="1"))
    with torch.no_grad():
        found = model(**batch)[0]
        encoder, decoder = model.encoder, model.decoder
        video = encoder.video.encoder(batch["features"], batch["padding_mask"])
        mask = batch["src_tokens"].eq(PAD)

        def fuse(fusion, x):
            text = x.transpose(0, 1)
            return fusion(text, fusion.project(video), batch["padding_mask"]).transpose(0, 1)

        x = encoder.forward_embedding(batch["src_tokens"])[0]
        x = (x * ~mask.unsqueeze(-1)).transpose(0, 1)
        x = encoder.layers[1](encoder.layers[0](x, mask), mask)
        states = fuse(encoder.fusions["2"], x)
        tokens = batch["prev_output_tokens"]
        x = decoder.embed_tokens(tokens) + decoder.embed_positions(tokens)
        x = decoder.layernorm_embedding(x).transpose(0, 1)
        future = torch.full((T, T), float("-inf")).triu(1)
        x = decoder.layers[0](x, states, mask, self_attn_mask=future)[0]
        x = fuse(decoder.fusions["1"], x)
        x = decoder.layers[1](x, states, mask, self_attn_mask=future)[0]
        expected = x.transpose(0, 1) @ decoder.embed_tokens.weight.t()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", ["multi_head", "dot_product", "dot_product_projected"])
def test_identity_init_equals_the_text_only_bart_bit_by_bit(kind, batch):
    plain = shaken(text_only())
    model = build(fusion=kind, fusion_decoder_layers="1,2", fusion_identity_init=True)
    model.load_state_dict(plain.state_dict())
    with torch.no_grad():
        assert torch.equal(model(**batch)[0], plain(**text_of(batch))[0])
        model.encoder.fusions["1"].mix.fill_(0.1)
        assert not torch.allclose(model(**batch)[0], plain(**text_of(batch))[0])


def generator_of(model, **chosen):
    return SequenceGenerator(
        [model], make_dictionary(), **{"beam_size": 3, "max_len_b": 8, **chosen}
    )


def summaries_of(model, net_input, generator=None, **chosen):
    generator = generator or generator_of(model, **chosen)
    net_input = {key: x for key, x in net_input.items() if key != "prev_output_tokens"}
    found = generator.generate([model], {"net_input": net_input})
    return [[(x["tokens"].tolist(), x["score"].item()) for x in beams] for beams in found]


@pytest.mark.parametrize(
    "chosen", [{}, {"beam_size": 1}, {"min_len": 5, "no_repeat_ngram_size": 2}]
)
def test_fairseqs_bart_generates_the_same_with_our_steps(batch, chosen):
    plain = shaken(text_only())
    expected = summaries_of(plain, text_of(batch), **chosen)
    earlier = generator_of(plain, **chosen)  # replaces a method of the encoder
    names = list(plain.state_dict())
    share_beams(plain)
    assert type(plain.decoder) is VgBartDecoder
    assert summaries_of(plain, text_of(batch), earlier) == summaries_of(
        plain, text_of(batch), **chosen
    )
    found = summaries_of(plain, text_of(batch), **chosen)
    for ours, theirs in zip(found, expected):
        assert [x for x, _ in ours] == [x for x, _ in theirs]
        assert [x for _, x in ours] == pytest.approx([x for _, x in theirs], rel=1e-5)
    assert list(plain.state_dict()) == names


# Loading


def of_published(plain):
    """Weights as in BART's published checkpoints."""
    return {key: x for key, x in plain.state_dict().items() if "output_projection" not in key}


def test_a_published_bart_loads_and_the_rest_keeps_its_initial_values(caplog):
    plain, model = shaken(text_only()), build(fusion_decoder_layers="2")
    before = {key: x.clone() for key, x in model.state_dict().items()}
    weights = of_published(plain)
    with caplog.at_level(logging.INFO):
        model.load_state_dict(weights, strict=True)
    assert "a text-only checkpoint: " in caplog.text
    after = model.state_dict()
    for key, x in plain.state_dict().items():
        assert key.endswith(DUPLICATES) or torch.equal(after[key], x), key
    new = after.keys() - plain.state_dict().keys()
    assert {key.split(".")[1] for key in new} == {"fusions", "video", "_extra_state"}
    for key in new:
        assert torch.equal(after[key], before[key]), key


def test_the_row_of_mask_is_left_out_as_in_fairseq():
    with_mask = make_dictionary()
    with_mask.add_symbol("<mask>")
    plain, model = shaken(text_only(with_mask)), build()
    model.load_state_dict(of_published(plain))
    embeddings = plain.encoder.embed_tokens.weight
    assert torch.equal(model.encoder.embed_tokens.weight, embeddings[:-1])
    assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight


def as_stock_writes(weights):
    """With the second copies that stock fairseq 0.12.2 keeps of encoder layers' parameters."""
    copies = {
        f"encoder.layers.{layer}.{name}": torch.zeros(1) for layer in (0, 1) for name in DUPLICATES
    }
    return {**weights, **copies}


def test_copies_of_stock_fairseq_are_dropped(batch):
    model = shaken(build())
    other = build()
    if hasattr(other.encoder.layers[0], "in_proj_weight"):
        pytest.skip("this fairseq has them")
    other.load_state_dict(as_stock_writes(model.state_dict()), strict=True)
    with torch.no_grad():
        assert torch.equal(other(**batch)[0], model(**batch)[0])
    build().load_state_dict(as_stock_writes(of_published(text_only())), strict=True)


@pytest.mark.parametrize(
    "chosen", [{"encoder_layers": 3}, {"encoder_embed_dim": 4}, {"max_source_positions": 9}]
)
def test_a_bart_of_another_size_is_refused_in_one_line(chosen):
    weights = text_only(**chosen).state_dict()
    with pytest.raises(UserError, match=r"^its weights do not fit the model: ") as caught:
        build().load_state_dict(weights)
    assert "\n" not in str(caught.value)


def test_another_backbone_is_refused_in_one_line():
    weights = build_model("t5_tiny", video_task()).state_dict()
    with pytest.raises(UserError, match="has 0 word embeddings of BART"):
        build().load_state_dict(weights)


def test_a_dictionary_of_another_size_is_refused_in_one_line():
    dictionary = make_dictionary()
    for word in ("one", "two"):
        dictionary.add_symbol(word)
    with pytest.raises(UserError, match="22 word embeddings of BART, but the dictionary has 20"):
        build().load_state_dict(of_published(text_only(dictionary)))


def test_features_of_another_size_are_refused():
    model, wider = build(), build(task=video_task(feature_dim=D + 1))
    with pytest.raises(UserError, match=r"trained on 6-dimensional features, but .* has 5"):
        model.load_state_dict(wider.state_dict())


# Options


def test_added_parameters_are_those_that_bart_does_not_have():
    model = build(fusion_decoder_layers="1", fusion_identity_init=True)
    new = {
        name
        for name, parameter in model.named_parameters()
        if getattr(parameter, "param_group", None) == "added"
    }
    old = {name for name, _ in text_only().named_parameters()}
    assert new == {name for name, _ in model.named_parameters()} - old
    assert {"decoder.fusions.1.norm.bias", "decoder.fusions.1.mix"} <= new
    model.half().float()
    assert model.encoder.fusions["1"].norm.weight.param_group == "added"


def test_released_has_one_head_and_a_given_number_is_taken():
    for arch in ("vg_bart_tiny", "vg_t5_tiny"):
        for chosen, heads in (
            ({}, 3),
            ({"fusion_dim": 8}, 4),
            ({"fusion_dim": 7}, 1),
            ({"compat": "released"}, 1),
            ({"compat": "released", "fusion_heads": 2}, 2),
        ):
            fusion = build(arch, **chosen).encoder.fusions["2"]
            assert fusion.num_heads == heads
            assert (fusion.attention_out_proj is None) == (heads == 1)


@pytest.mark.parametrize(
    ("arch", "sizes", "layers"),
    [("vg_bart_base", (6, 768, 3072, 12), "5,6"), ("vg_bart_large", (12, 1024, 4096, 16), "11,12")],
)
def test_architectures_have_the_papers_sizes_and_barts(arch, sizes, layers):
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["data", "--arch", arch])
    args = convert_namespace_to_omegaconf(args).model
    assert (args.fusion_encoder_layers, args.fusion_decoder_layers) == (layers, "")
    for side in ("encoder", "decoder"):
        found = [
            getattr(args, f"{side}_{name}", getattr(args, f"encoder_{name}"))
            for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
        ]
        assert tuple(found) == sizes
    assert (args.fusion, args.forget_gate, args.video_encoder_layers) == ("multi_head", "on", 4)
    bart = bart_options(args)
    assert bart.encoder_learned_pos
    assert bart.layernorm_embedding
    assert bart.no_scale_embedding
    assert bart.share_all_embeddings
    assert bart.activation_fn == "gelu"
