"""T5: what contracts do not say of it, and how its mistakes are reported."""

import pytest
import torch
from numerics import assert_close
from toy_data import build_model, video_task

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
