"""log P(sentence | image) equals the model's forward pass for each sentence and image."""

import math

import numpy as np
import pytest
import torch
from numerics import assert_close
from toy_data import build_model, toy_task

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.likelihood import (
    FactoredLikelihood,
    build_likelihood,
    check_finite,
    log_marginal,
)

SIZES = {"embedding_dim": 4, "hidden_dim": 6, "multimodal_dim": 9}
FACTORED = [
    "m_rnn",
    "m_rnn_base",
    "m_rnn_no_emb_input",
    "m_rnn_one_layer_emb",
    "m_rnn_emb_one_input",
]
THROUGH_DECODER = ["m_rnn_vis_in_rnn", "m_rnn_vis_in_rnn_both", "m_rnn_vis_in_rnn_both_shared"]
EOS, UNK = 2, 3
# the second has an unknown word, the third one word; two are the same, two begin alike
SENTENCES = [[7, 4, 9, EOS], [UNK, 8, EOS], [5, EOS], [7, 4, 4, 6, 8, EOS], [5, EOS], [7, EOS]]
IMAGES, N, D = 11, 2, 5


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(IMAGES, N, D, generator=generator)
    padding_mask = torch.zeros(IMAGES, N, dtype=torch.bool)
    padding_mask[3, 1] = True
    return features, padding_mask


def make_model(arch):
    torch.manual_seed(6)
    model = build_model(arch, toy_task(), **SIZES)
    with torch.no_grad():
        model.decoder.recurrent_weight.normal_(std=0.4)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model.eval()


def reader(images):
    return lambda start, end: (images[0][start:end], images[1][start:end])


@torch.no_grad()
def naive_log_probs(model, images):
    """``[S, I]``: one forward pass for each sentence and image."""
    expected = torch.zeros(len(SENTENCES), IMAGES)
    for s, sentence in enumerate(SENTENCES):
        for i in range(IMAGES):
            tokens = torch.tensor([[EOS, *sentence[:-1]]])
            logits, _ = model(images[0][i : i + 1], images[1][i : i + 1], tokens)
            lprobs = torch.log_softmax(logits[0].double(), 1)
            expected[s, i] = sum(lprobs[t, word] for t, word in enumerate(sentence))
    return expected


@pytest.mark.parametrize("block_rows", [1, 3, 8, 25, 1000])
@pytest.mark.parametrize("arch", FACTORED + THROUGH_DECODER)
def test_equals_a_forward_pass_for_each_sentence_and_image(arch, block_rows, images):
    model = make_model(arch)
    likelihood = build_likelihood(model, reader(images), IMAGES, start=EOS, block_rows=block_rows)
    assert isinstance(likelihood, FactoredLikelihood) is (arch in FACTORED)
    log_probs = likelihood(SENTENCES)
    assert log_probs.dtype == torch.float32
    assert_close(log_probs, naive_log_probs(model, images))


@pytest.mark.parametrize("arch", ["m_rnn", "m_rnn_vis_in_rnn_both"])
def test_equal_sentences_tie_to_the_last_bit(arch, images):
    log_probs = build_likelihood(make_model(arch), reader(images), IMAGES, start=EOS)(SENTENCES)
    assert torch.equal(log_probs[2], log_probs[4])


def test_a_model_without_images_gives_all_images_the_same(images):
    log_probs = build_likelihood(make_model("m_rnn_base"), reader(images), IMAGES, start=EOS)(
        SENTENCES
    )
    assert log_probs.shape == (len(SENTENCES), IMAGES)
    assert torch.equal(log_probs, log_probs[:, :1].expand(-1, IMAGES))


@pytest.mark.parametrize(
    ("what", "scale", "offset"),
    [
        ("output_proj.weight", 300.0, 0.0),  # exponentials of the logits overflow
        ("output_proj.bias", 1.0, -200.0),
        ("output_proj.bias", 60.0, 0.0),  # some of them vanish
        ("recurrent_to_multimodal.bias", 90.0, 0.0),  # exponentials of the terms overflow
        ("image_to_multimodal.weight", 90.0, 0.0),
    ],
)
def test_terms_and_logits_out_of_the_range_of_exponentials_are_computed_all_the_same(
    what, scale, offset, images
):
    model = make_model("m_rnn")
    with torch.no_grad():
        model.decoder.get_parameter(what).mul_(scale).add_(offset)
    likelihood = build_likelihood(model, reader(images), IMAGES, start=EOS, block_rows=8)
    expected = naive_log_probs(model, images)
    assert torch.isfinite(expected).all()
    assert_close(likelihood(SENTENCES), expected)


@pytest.mark.parametrize("arch", ["m_rnn", "m_rnn_vis_in_rnn_both"])
def test_bfloat16_is_close(arch, images):
    model = make_model(arch)
    exact = naive_log_probs(model, images)
    likelihood = build_likelihood(model, reader(images), IMAGES, start=EOS, precision="bfloat16")
    rounded = likelihood(SENTENCES)
    assert rounded.dtype == torch.float32
    words = torch.tensor([len(sentence) for sentence in SENTENCES]).unsqueeze(1)
    assert not torch.equal(rounded, exact)
    # 8 bits of mantissa: logits of about 3 are known to 0.01
    assert ((rounded - exact).abs() / words).max() < 0.02


def test_marginal_is_the_mean_probability_over_images():
    generator = np.random.default_rng(3)
    log_probs = generator.normal(-60, 5, (4, 7)).astype(np.float32)
    expected = [math.log(sum(math.exp(x) for x in row) / 7) for row in log_probs.tolist()]
    np.testing.assert_allclose(log_marginal(log_probs), expected, rtol=1e-12)


def test_marginal_of_equal_probabilities_is_exactly_theirs():
    log_probs = np.repeat(np.float32([[-37.3], [-0.1]]), 7, axis=1)
    assert (log_marginal(log_probs) == log_probs[:, 0]).all()


def test_probabilities_that_are_no_numbers_are_refused():
    check_finite(torch.tensor([-3.0]))
    with pytest.raises(UserError, match="its weights hold NaN or infinite values"):
        check_finite(torch.tensor([-3.0, float("nan")]))
