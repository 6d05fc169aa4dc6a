"""Option ``mbr``: the choice among samples, for models of every task."""

import numpy as np
import pytest
from toy_visual_stories import save_story_model

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.inference import generator
from fairseq_mm.metrics.rewards import expected_utilities

LENGTH = {"max_words_per_sentence": 4, "seed": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = save_story_model(tmp_path_factory.mktemp("model") / "model.pt")
    return fairseq_mm.from_pretrained(path)


@pytest.fixture(scope="module")
def inputs(model):
    rng = np.random.default_rng(2)
    dim = model.task.feature_dim
    return [list(rng.normal(size=(5, 1, dim)).astype("float32")) for _ in range(3)]


@pytest.mark.parametrize("utility", ["bleu", "rouge_l", "cider"])
def test_the_samples_with_the_highest_expected_utility_are_returned(model, inputs, utility):
    samples = model.generate(inputs, sampling=True, beam=6, nbest=6, **LENGTH)
    chosen = model.generate(inputs, sampling=True, beam=6, nbest=2, mbr=utility, **LENGTH)
    assert len({story.text for story in samples[0]}) > 2
    for group, best in zip(samples, chosen):
        values = expected_utilities([story.text for story in group], utility)
        rated = sorted(zip(values, group), key=lambda x: (-round(x[0], 9), -x[1].score))
        assert [story.text for story in best] == [story.text for _, story in rated[:2]]
        assert [story.utility for story in best] == pytest.approx([x for x, _ in rated[:2]])
    assert all(story.utility is None for story in samples[0])


def test_of_equal_utilities_the_higher_score_comes_first(model, inputs, monkeypatch):
    # equal but for the last bits of a sum
    utilities = [0.3, 0.1 + 0.2, 0.5, 0.1]
    monkeypatch.setattr(generator, "expected_utilities", lambda *_: utilities)
    options = {"sampling": True, "beam": 4, "nbest": 4, "mbr": "bleu", **LENGTH}
    best, first, second, last = model.generate(inputs[0], **options)
    assert [x.utility for x in (best, last)] == [0.5, 0.1]
    assert first.score >= second.score


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mbr": "bleu", "beam": 5}, "`mbr` must be left out in a search, but is bleu"),
        ({"mbr": "bleu", "sampling": True, "beam": 1}, "2 or more samples for `mbr`, but is 1"),
        ({"mbr": "spice", "sampling": True}, "`mbr` must be one of bleu, rouge_l, meteor, cider"),
        ({"mbr": 3, "sampling": True}, "`mbr` must be a string, but is 3"),
    ],
)
def test_bad_options_are_refused(model, options, message):
    with pytest.raises(UserError, match=message):
        model.config(**options)
