"""The coverage loss beside fairseq's label-smoothed cross-entropy."""

from argparse import Namespace

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from numerics import assert_close
from toy_data import build_model, video_task

from fairseq_mm.errors import UserError

PAD, EOS = 1, 2
SAMPLE = {
    "net_input": {
        "src_tokens": torch.tensor([[5, 9, 6, EOS], [PAD, 10, 7, EOS]]),
        "src_lengths": torch.tensor([4, 3]),
        "prev_output_tokens": torch.tensor([[EOS, 9, 4], [EOS, 10, PAD]]),
    },
    "target": torch.tensor([[9, 4, EOS], [10, EOS, PAD]]),
    "ntokens": 5,
}


def criterion(name, **options):
    task = Namespace(target_dictionary=video_task().target_dictionary)
    return CRITERION_REGISTRY[name](task, False, 0.1, **options)


def test_the_coverage_loss_of_words_is_added():
    model = build_model("pointer_generator_tiny", video_task(), coverage=True)
    expected, _, log = criterion("label_smoothed_cross_entropy")(model, SAMPLE)
    found, size, own_log = criterion("coverage_cross_entropy", coverage_weight=0.7)(model, SAMPLE)
    attention = model(**SAMPLE["net_input"])[1]["attn"][0].tolist()
    for row, words in ((0, 3), (1, 2)):
        coverage = [0.0] * 4
        for t in range(words):
            expected = expected + 0.7 * sum(map(min, attention[row][t], coverage))
            coverage = [c + a for c, a in zip(coverage, attention[row][t])]
    assert_close(found, expected)
    assert own_log["nll_loss"] == log["nll_loss"]
    assert size == 5
    found.backward()
    assert model.decoder.attention.coverage_weight.grad.any()


def test_the_loss_of_each_word_sums_to_the_whole():
    model = build_model("pointer_generator_tiny", video_task(), coverage=True)
    for options in ({}, {"ignore_prefix_size": 1}):
        loss = criterion("coverage_cross_entropy", **options)
        whole = loss(model, SAMPLE)[0]
        parts = loss(model, SAMPLE, reduce=False)[0]
        assert_close(parts.sum(), whole)


def test_a_model_without_coverage_is_refused():
    model = build_model("pointer_generator_tiny", video_task())
    with pytest.raises(UserError, match="is for models with a coverage loss: pointer_generator"):
        criterion("coverage_cross_entropy")(model, SAMPLE)
