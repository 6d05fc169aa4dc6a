"""T5: what contracts do not say of it, and how its mistakes are reported."""

import pytest
import torch
from numerics import assert_close
from toy_data import build_model, needs_float16_on_cpu, video_task

from fairseq_mm.errors import UserError

B, S, T = 3, 6, 5
PAD = 1


@pytest.fixture
def model():
    return build_model("t5_tiny", video_task())


def batch(seed=0):
    torch.manual_seed(seed)
    tokens = torch.randint(4, 20, (B, S))
    previous = torch.randint(4, 20, (B, T))
    previous[:, 0] = PAD
    return tokens, previous


def test_output_is_scaled_and_shared_or_unscaled_and_its_own():
    for options in ({}, {"untied_output": True}):
        model = build_model("t5_tiny", video_task(), **options)
        tokens, previous = batch()
        logits, _ = model(tokens, None, previous)
        states, _ = model.decoder(previous, model.encoder(tokens), features_only=True)
        if options:
            assert torch.equal(logits, states @ model.decoder.output_proj.weight.t())
        else:
            weight = model.encoder.embedding.weight
            assert_close(logits, states @ weight.t() / 12**0.5)
            assert model.decoder.embedding is model.encoder.embedding


def test_padding_on_either_side_is_the_same(model):
    tokens, previous = batch()
    padding = torch.full((B, 2), PAD)
    left = model(torch.cat([padding, tokens], 1), None, previous)[0]
    right = model(torch.cat([tokens, padding], 1), None, previous)[0]
    assert_close(left, right)
    assert_close(left, model(tokens, None, previous)[0])


def test_beams_of_an_item_share_its_keys(model):
    tokens, previous = batch()
    beams = torch.arange(B).repeat_interleave(4)
    state: dict = {}
    with torch.no_grad():
        encoder_out = model.encoder(tokens)
        expanded = model.encoder.reorder_encoder_out(encoder_out, beams)
        assert expanded["encoder_out"][0] is encoder_out["encoder_out"][0]
        wide = previous[beams]
        wide[:, 1:] = torch.randint(4, 20, (4 * B, T - 1))
        for step in range(1, 4):
            logits, _ = model.decoder(wide[:, :step], expanded, state)
        saved = model.decoder.get_incremental_state(state, "t5")
        assert saved["source"]["keys"][0].size(0) == B
        full, _ = model.decoder(wide[:, :3], expanded)
        assert_close(logits[:, 0], full[:, -1])
        # the first item is finished and leaves
        left = torch.arange(4, 4 * B)
        model.decoder.reorder_incremental_state_scripting(state, left)
        expanded = model.encoder.reorder_encoder_out(expanded, left)
        logits, _ = model.decoder(wide[left, :4], expanded, state)
        assert saved["source"]["keys"][0].size(0) == B - 1
        full, _ = model.decoder(wide[left, :4], expanded)
        assert_close(logits[:, 0], full[:, -1])
        # the second item keeps three rows, the third one
        uneven = torch.tensor([1, 1, 3, 6])
        model.decoder.reorder_incremental_state_scripting(state, uneven)
        expanded = model.encoder.reorder_encoder_out(expanded, uneven)
        logits, _ = model.decoder(wide[left][uneven], expanded, state)
        full, _ = model.decoder(wide[left][uneven], expanded)
        assert_close(logits[:, 0], full[:, -1])


@needs_float16_on_cpu
def test_residuals_beyond_float16_stay_finite_in_it(model):
    with torch.no_grad():
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layer.feed_forward.output_proj.weight.mul_(3e4)
    tokens, previous = batch()
    expected, _ = model(tokens, None, previous)
    stream = []
    model.encoder.layers[0].register_forward_pre_hook(lambda _, x: stream.append(x[0]))
    model.encoder.layers[-1].register_forward_hook(lambda *x: stream.append(x[-1]))
    logits, _ = model.half().train()(tokens, None, previous)
    assert all(x.dtype == torch.float32 for x in stream)
    assert stream[1].abs().max() > 65504
    assert torch.isfinite(logits).all()
    logits.float().logsumexp(-1).mean().backward()
    assert all(torch.isfinite(x.grad).all() for x in model.parameters())
    # rounded in every layer
    again = model.eval()(tokens, None, previous)[0].float()
    torch.testing.assert_close(again, expected, atol=0.05, rtol=0.05)


def test_weights_of_another_backbone_are_refused_in_one_line(model):
    other = build_model("t5_tiny", video_task(), encoder_layers=2, untied_output=True)
    with pytest.raises(UserError, match=r"^its weights do not fit the model: Missing key"):
        model.load_state_dict(other.state_dict())
    state = build_model("t5_tiny", video_task(), relative_buckets=8, max_distance=9).state_dict()
    with pytest.raises(UserError, match=r"do not fit the model: size mismatch for encoder\."):
        model.load_state_dict(state)


def test_sizes_are_the_published_ones():
    from fairseq_mm.models.t5 import BASE, LARGE, SMALL

    def count(sizes):
        D, F = sizes["model_dim"], sizes["ffn_dim"]
        inner = sizes["attention_heads"] * sizes["head_dim"]
        encoder = sizes["encoder_layers"] * (4 * D * inner + 2 * D * F + 2 * D)
        decoder = sizes["decoder_layers"] * (8 * D * inner + 2 * D * F + 3 * D)
        return 32128 * D + encoder + decoder + 2 * D + 64 * sizes["attention_heads"]

    # of Hugging Face's T5ForConditionalGeneration with the published configurations
    assert [count(sizes) for sizes in (SMALL, BASE, LARGE)] == [60506624, 222903552, 737668096]
