"""Log-likelihoods of visual stories, against the models' own forward passes."""

from argparse import Namespace

import numpy as np
import pytest
import torch
from numerics import assert_close
from toy_data import make_dictionary, write_store
from toy_visual_story_models import random_story_model

from fairseq_mm.data.feature_store import open_features
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval import story_likelihood
from fairseq_mm.retrieval.story_likelihood import SequenceImages, VisualStoryLikelihood

IMAGES = [f"p{i}" for i in range(11)]
SEQUENCES = ["p0 p1 p2 p3 p4", "p5 p6 gone p7 p8", "p9 p10 p0 p1 p2"]
STORIES = [
    "a dog <sent> the cat sits <sent> man <sent> runs <sent> the snow",
    "big big big red <sent> a <sent> grass nothing <sent> jumps on <sent> a dog runs in snow",
    "a <sent> a <sent> a <sent> a <sent> a",
]


@pytest.fixture
def images(tmp_path):
    write_store(tmp_path / "f.h5", IMAGES, rows=1)
    return SequenceImages(open_features([tmp_path / "f.h5"]), frozenset(["gone"]), 1)


def lines():
    return [sequence.replace(" ", "\t") for sequence in SEQUENCES]


def likelihood_of(models, images, **options):
    loaded = Namespace(
        models=models, dictionary=make_dictionary(separator=True), device=torch.device("cpu")
    )
    return VisualStoryLikelihood(loaded, images, **options)


@torch.no_grad()
def expected(models, likelihood, line, story):
    """Of one pair alone, by the whole softmax."""
    target = torch.tensor(story)
    previous = torch.cat([torch.tensor([2]), target[:-1]]).unsqueeze(0)
    keys = line.split("\t")
    rows = [None if key == "gone" else likelihood.images.features.read(key) for key in keys]
    features = torch.tensor(np.stack([np.zeros(5, "f4") if r is None else r[0] for r in rows]))
    padding_mask = torch.tensor([[row is None for row in rows]])
    probabilities = [
        model(features.unsqueeze(0), padding_mask, previous)[0][0].double().softmax(1)
        for model in models
    ]
    mean = torch.stack(probabilities).mean(0)
    return mean.gather(1, target.unsqueeze(1)).squeeze(1).log()


@pytest.mark.parametrize(
    ("arches", "options"),
    [
        (["glac_tiny"], {}),
        (["transtory_xl_tiny"], {"batch_tokens": 40}),
        (["transtory_decoder_tiny"], {}),
        (["glac_tiny", "transtory_full_tiny"], {"batch_tokens": 1, "chunk_bytes": 300}),
    ],
)
def test_each_pair_has_the_models_own_probabilities_once(monkeypatch, images, arches, options):
    monkeypatch.setattr(story_likelihood, "SEQUENCES_AT_ONCE", 2)
    models = [random_story_model(arch, seed=i) for i, arch in enumerate(arches)]
    likelihood = likelihood_of(models, images, **options)
    pairs = [(line, likelihood.encode_story(s.split())) for s in STORIES for line in lines()]
    seen = []
    for numbers, log_probs in likelihood.batches(pairs):
        seen += numbers
        for number, found in zip(numbers, log_probs):
            wanted = expected(models, likelihood, *pairs[number])
            assert_close(found, wanted.float())
    assert sorted(seen) == list(range(9))


def test_a_sequence_is_encoded_once(images, monkeypatch):
    model = random_story_model("glac_tiny")
    likelihood = likelihood_of([model], images, batch_tokens=30)
    read = []
    monkeypatch.setattr(
        images,
        "read",
        lambda chosen: read.extend(chosen) or SequenceImages.read(images, chosen),
    )
    pairs = [(line, likelihood.encode_story(s.split())) for s in STORIES * 2 for line in lines()]
    assert sum(len(numbers) for numbers, _ in likelihood.batches(pairs)) == 18
    assert read == lines()


def test_missing_images_are_padding_at_their_place(images):
    features, padding_mask = images.read(lines()[:2])
    assert padding_mask.tolist() == [[False] * 5, [False, False, True, False, False]]
    assert features.shape == (2, 5, 5)
    assert not features[1, 2].any()
    np.testing.assert_array_equal(features[1, 3], images.features.read("p7")[0])


def test_images_that_do_not_fit_are_named(images, tmp_path):
    images.check(lines())
    with pytest.raises(UserError, match=r"f.h5: no features for 'unknown' among 11 items"):
        images.check(["p0\tunknown"])
    write_store(tmp_path / "g.h5", ["a"], rows=4)
    grid = SequenceImages(open_features([tmp_path / "g.h5"]), frozenset(), 1)
    with pytest.raises(UserError, match=r"'a' has 4 regions, but the model was trained on"):
        grid.check(["a"])
