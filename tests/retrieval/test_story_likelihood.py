"""Log-likelihoods of stories under prompts, against the models' own forward passes."""

from argparse import Namespace
from collections import Counter

import pytest
import torch
from numerics import assert_close
from toy_data import build_model
from toy_story_models import PROMPT_WORDS, STORY_WORDS, dictionary_of

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.story_likelihood import StoryLikelihood

POSITIONS = {"max_source_positions": 20, "max_target_positions": 42}
ARCHES = {"ours": {}, "released": {"compat": "released"}}


def build_models(*options):
    fairseq_mm.register()
    source, target = dictionary_of(PROMPT_WORDS), dictionary_of(STORY_WORDS)
    task = Namespace(source_dictionary=source, target_dictionary=target)
    models = [build_model("conv_story_tiny", task, **{**POSITIONS, **o}) for o in options]
    torch.manual_seed(9)
    for model in models:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return Namespace(
        models=models,
        dictionary=target,
        source_dictionary=source,
        device=torch.device("cpu"),
    )


PAIRS = [
    ("[ WP ] door", "I saw a dark room ."),
    ("[ WP ] You find a house", "I saw a dark room ."),
    ("Where", "Who ? <newline> it"),
    ("the old house", "I opened the door and saw softly a room"),
    ("a door", "the the the"),
    ("[ WP ] You find nothing", "`` Who ? '' it said"),
]


def encoded(likelihood, pairs=PAIRS):
    return [
        (likelihood.encode_prompt(prompt.split()), likelihood.encode_story(story.split()))
        for prompt, story in pairs
    ]


def scored(likelihood, pairs):
    """Log-probabilities of all pairs, in their order."""
    found = {}
    for numbers, log_probs in likelihood.batches(pairs):
        found.update(zip(numbers, log_probs))
    return [found[number] for number in range(len(pairs))]


@torch.no_grad()
def expected_log_probs(models, prompt, story):
    """Of one pair alone, by the whole softmax."""
    target = torch.tensor(story)
    previous = torch.cat([torch.tensor([2]), target[:-1]]).unsqueeze(0)
    source = torch.tensor([prompt])
    probabilities = [
        model(source, torch.tensor([source.size(1)]), previous)[0][0].double().softmax(1)
        for model in models.models
    ]
    mean = sum(probabilities) / len(probabilities)
    return mean.gather(1, target.unsqueeze(1)).squeeze(1).log().float()


@pytest.mark.parametrize("batch_tokens", [1, 25, 1000])
@pytest.mark.parametrize("kinds", [("ours",), ("released",), ("ours", "released")])
def test_every_pair_has_the_probability_that_it_has_alone(kinds, batch_tokens):
    models = build_models(*(ARCHES[kind] for kind in kinds))
    likelihood = StoryLikelihood(models, batch_tokens=batch_tokens, chunk_bytes=700)
    pairs = encoded(likelihood)
    seen = Counter()
    for batch, log_probs in likelihood.batches(pairs):
        seen.update(batch)
        width = max(len(pairs[i][1]) for i in batch)
        assert len(batch) == 1 or width * len(batch) <= batch_tokens
        for number, found in zip(batch, log_probs):
            expected = expected_log_probs(models, *pairs[number])
            assert_close(found, expected)
    assert seen == Counter(range(len(pairs)))


def test_stories_of_equal_length_share_a_batch():
    likelihood = StoryLikelihood(build_models({}), batch_tokens=14)
    lengths = [3, 7, 3, 7, 3, 3]
    pairs = [([4, 2], [5] * length) for length in lengths]
    batches = [[lengths[i] for i in batch] for batch, _ in likelihood.batches(pairs)]
    assert batches == [[7, 7], [3, 3, 3, 3]]


def test_a_story_that_is_cut_has_no_end():
    likelihood = StoryLikelihood(build_models({}))
    words = ["I", "saw", "a", "dark", "room", "."]
    whole = likelihood.encode_story(words)
    assert whole[-1] == 2
    assert likelihood.encode_story(words, num_words=6) == whole
    assert likelihood.encode_story(words, num_words=4) == whole[:4]


def test_a_prompt_longer_than_the_positions_is_refused():
    likelihood = StoryLikelihood(build_models({}))
    with pytest.raises(
        UserError, match=r"a prompt has 18 words, .* for 17: a a a a a a a a \.\.\."
    ):
        likelihood.encode_prompt(["a"] * 18)


@torch.no_grad()
def test_a_language_model_needs_no_prompt():
    fairseq_mm.register()
    dictionary = dictionary_of(STORY_WORDS)
    task = Namespace(target_dictionary=dictionary)
    model = build_model("gcnn_lm_tiny", task, tokens_per_sample=19)
    models = Namespace(
        models=[model],
        dictionary=dictionary,
        source_dictionary=None,
        device=torch.device("cpu"),
    )
    likelihood = StoryLikelihood(models)
    assert likelihood.max_story_words == 18
    pairs = encoded(likelihood)
    for (prompt, story), found in zip(pairs, scored(likelihood, pairs)):
        assert prompt is None
        previous = torch.tensor([[2, *story[:-1]]])
        logits, _ = model(previous)
        expected = logits[0].log_softmax(1).gather(1, torch.tensor(story).unsqueeze(1))
        assert_close(found, expected.squeeze(1))
