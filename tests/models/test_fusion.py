"""Fusion equals its equations; a fusion model brings its frozen part wherever it is loaded."""

import copy

import pytest
import torch
from numerics import assert_close
from toy_data import build_model, story_task, write_story_checkpoint

from fairseq_mm.errors import UserError
from fairseq_mm.models._fusion import Fusion

SIZES = {
    "encoder_embed_dim": 8,
    "decoder_embed_dim": 8,
    "decoder_out_embed_dim": 10,
    "encoder_layers": "[(6, 3)]",
    "decoder_layers": "[(6, 4)] + [(9, 3)]",
    "max_source_positions": 12,
    "max_target_positions": 14,
}
# of the pretrained model: every part has another size than the model on top
OTHERS = {
    **SIZES,
    "encoder_embed_dim": 12,
    "decoder_embed_dim": 12,
    "decoder_out_embed_dim": 7,
    "encoder_layers": "[(5, 3)] * 2",
    "decoder_layers": "[(7, 2)]",
    "max_target_positions": 11,
    "compat": "released",
}


@pytest.fixture
def pretrained(tmp_path):
    return write_story_checkpoint(tmp_path / "pretrained.pt", "conv_story_gated", OTHERS)


def build(path, **options):
    return build_model(
        "conv_story_fusion", story_task(), **{**SIZES, "pretrained_checkpoint": path, **options}
    )


@pytest.fixture
def batch():
    torch.manual_seed(3)
    source = torch.randint(4, 20, (2, 6))
    source[1, :2] = 1
    return {
        "src_tokens": source,
        "src_lengths": torch.tensor([6, 4]),
        "prev_output_tokens": torch.randint(4, 20, (2, 9)),
    }


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch)[0]


def norm(x, layer):
    centred = x - x.mean()
    return centred / ((centred**2).mean() + layer.eps).sqrt() * layer.weight + layer.bias


def glu(x):
    half = len(x) // 2
    return x[:half] * torch.sigmoid(x[half:])


def test_fusion_equals_its_equations():
    torch.manual_seed(1)
    fusion = Fusion(5, 3)
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        h1, h2 = torch.randn(4, 5), torch.randn(4, 3)
        out = fusion(h1, h2)
        first, norm1, _, second, norm2, _, third, norm3 = fusion.joining
        for row in range(4):
            both = torch.cat([h1[row], h2[row]])
            g1 = torch.sigmoid(fusion.trained_gate.weight @ both + fusion.trained_gate.bias)
            g2 = torch.sigmoid(fusion.frozen_gate.weight @ both + fusion.frozen_gate.bias)
            z = torch.cat([g1 * h1[row], g2 * h2[row]])
            z = glu(norm(first.weight @ z + first.bias, norm1))
            z = glu(norm(second.weight @ z + second.bias, norm2))
            z = norm(third.weight @ z + third.bias, norm3)
            assert_close(out[row], z)
    assert first.out_features == second.out_features == 10
    assert third.out_features == 5


def test_positions_are_those_of_the_smaller_table(pretrained):
    assert build(pretrained).max_positions() == (10, 9)


def test_weights_load_where_the_pretrained_checkpoint_is_gone(pretrained, batch, tmp_path):
    model = build(pretrained)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    state = copy.deepcopy(model.state_dict())
    other = build(str(tmp_path / "nowhere.pt"))
    other.load_state_dict(state)
    assert torch.equal(logits_of(other, batch), logits_of(model, batch))
    assert other.max_positions() == (10, 9)
    assert not any(x.requires_grad for x in other.decoder.frozen.parameters())
    assert all(x.requires_grad for x in other.decoder.fusion.parameters())
    assert not other.train().decoder.frozen.training
    assert other.state_dict().keys() == state.keys()


def test_weights_load_where_another_model_has_the_pretrained_ones_place(pretrained, batch):
    model = build(pretrained)
    state = copy.deepcopy(model.state_dict())
    for options in ({**OTHERS, "decoder_out_embed_dim": 4}, OTHERS):
        write_story_checkpoint(pretrained, "conv_story", options)
        other = build(pretrained)
        other.load_state_dict(state)
        assert torch.equal(logits_of(other, batch), logits_of(model, batch))
    with open(pretrained, "w") as file:
        file.write("no checkpoint")
    other = build(pretrained)
    other.load_state_dict(state)
    assert torch.equal(logits_of(other, batch), logits_of(model, batch))


def test_several_processes_do_not_get_gates_that_are_not_averaged(
    pretrained, tmp_path, monkeypatch
):
    state = build(pretrained).state_dict()
    other = build(str(tmp_path / "nowhere.pt"))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(
        UserError, match="--decoder-out-embed-dim 7, but the model was built for 10: "
    ):
        other.load_state_dict(state)


def test_a_missing_pretrained_checkpoint_is_no_model_to_train(batch, tmp_path):
    path = tmp_path / "nowhere.pt"
    model = build(str(path))
    for use in (model.max_positions, lambda: model(**batch)):
        with pytest.raises(UserError, match=rf"--pretrained-checkpoint {path}: no such file"):
            use()


@pytest.mark.parametrize("options", [{}, {"frozen_dropout": True}, {"compat": "released"}])
def test_frozen_dropout_is_on_only_in_training_and_when_asked_for(pretrained, options):
    model = build(pretrained, **options).train()
    frozen = [model.encoder.frozen, model.decoder.frozen]
    assert all(module.training == bool(options) for part in frozen for module in part.modules())
    assert model.decoder.trunk.training
    model.eval()
    assert not any(module.training for part in frozen for module in part.modules())


def test_the_frozen_part_equals_the_pretrained_model_and_is_not_trained(pretrained, batch):
    model = build(pretrained).train()
    alone = build_model("conv_story_gated", story_task(), **OTHERS)
    alone.load_state_dict(torch.load(pretrained)["model"])
    source = {key: batch[key] for key in ("src_tokens", "src_lengths")}
    words = batch["prev_output_tokens"]
    with torch.no_grad():
        _, frozen = model.decoder.hidden_states(words, model.encoder(**source))
        expected, _ = alone.decoder.extract_features(words, alone.encoder(**source))
    torch.testing.assert_close(frozen, expected)
    model(**batch)[0].logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        is_frozen = ".frozen." in name
        assert parameter.requires_grad != is_frozen
        assert (parameter.grad is None) == is_frozen, name
