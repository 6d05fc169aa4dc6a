"""Log-likelihoods of stories given prompts or images, against the models' own forward passes."""

from argparse import Namespace
from collections import Counter

import pytest
import torch
from numerics import assert_close
from toy_data import build_model, make_dictionary, write_store
from toy_story_models import PROMPT_WORDS, STORY_WORDS, dictionary_of
from toy_visual_story_models import random_story_model

import fairseq_mm
from fairseq_mm.data.feature_store import open_features
from fairseq_mm.data.multimodal_dataset import MultimodalDataset
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.text_likelihood import (
    TextLikelihood,
    encode_prompt,
    encode_text,
    max_words,
    prompt_likelihood,
)

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
    return Namespace(models=models, dictionary=target, source_dictionary=source)


PAIRS = [
    ("[ WP ] door", "I saw a dark room ."),
    ("[ WP ] You find a house", "I saw a dark room ."),
    ("Where", "Who ? <newline> it"),
    ("the old house", "I opened the door and saw softly a room"),
    ("a door", "the the the"),
    ("[ WP ] You find nothing", "`` Who ? '' it said"),
]


def encoded(models, pairs=PAIRS):
    return [
        (encode_prompt(models, prompt.split()), encode_text(models.dictionary, story.split()))
        for prompt, story in pairs
    ]


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
    likelihood = prompt_likelihood(models, batch_tokens=batch_tokens, chunk_bytes=700)
    pairs = encoded(models)
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
    likelihood = prompt_likelihood(build_models({}), batch_tokens=14)
    lengths = [3, 7, 3, 7, 3, 3]
    pairs = [((4, 2), [5] * length) for length in lengths]
    batches = [[lengths[i] for i in batch] for batch, _ in likelihood.batches(pairs)]
    assert batches == [[7, 7], [3, 3, 3, 3]]


def test_a_story_that_is_cut_has_no_end():
    dictionary = dictionary_of(STORY_WORDS)
    words = ["I", "saw", "a", "dark", "room", "."]
    whole = encode_text(dictionary, words)
    assert whole[-1] == 2
    assert encode_text(dictionary, words, 6) == whole
    assert encode_text(dictionary, words, 4) == whole[:4]


def test_a_prompt_longer_than_the_positions_is_refused():
    with pytest.raises(
        UserError, match=r"a prompt has 18 words, .* for 17: a a a a a a a a \.\.\."
    ):
        encode_prompt(build_models({}), ["a"] * 18)


@torch.no_grad()
def test_a_language_model_needs_no_prompt():
    fairseq_mm.register()
    dictionary = dictionary_of(STORY_WORDS)
    model = build_model(
        "gcnn_lm_tiny", Namespace(target_dictionary=dictionary), tokens_per_sample=19
    )
    models = Namespace(models=[model], dictionary=dictionary, source_dictionary=None)
    assert max_words(models, "story") == 18
    pairs = [(None, encode_text(dictionary, story.split())) for _, story in PAIRS]
    for numbers, log_probs in prompt_likelihood(models).batches(pairs):
        for number, found in zip(numbers, log_probs):
            story = pairs[number][1]
            logits, _ = model(torch.tensor([[2, *story[:-1]]]))
            expected = logits[0].log_softmax(1).gather(1, torch.tensor(story).unsqueeze(1))
            assert_close(found, expected.squeeze(1))


SEQUENCES = ["p0 p1 p2 p3 p4", "p5 p6 gone p7 p8", "p9 p10 p0 p1 p2"]
VISUAL_STORIES = [
    "a dog <sent> the cat sits <sent> man <sent> runs <sent> the snow",
    "big big big red <sent> a <sent> grass nothing <sent> jumps on <sent> a dog runs in snow",
    "a <sent> a <sent> a <sent> a <sent> a",
]


@pytest.mark.parametrize(
    ("arches", "options"),
    [
        (["glac_tiny"], {}),
        (["glac_tiny"], {"has_features": False}),
        (["transtory_xl_tiny"], {"batch_tokens": 40, "group": lambda line: line // 2}),
        (["transtory_decoder_tiny"], {}),
        (["glac_tiny", "transtory_full_tiny"], {"batch_tokens": 1, "chunk_bytes": 300}),
        (["glac_tiny", "transtory_full_tiny"], {"has_features": False}),
    ],
)
@torch.no_grad()
def test_visual_stories_have_the_models_own_probabilities(tmp_path, arches, options):
    dictionary = make_dictionary(separator=True)
    write_store(tmp_path / "f.h5", [f"p{i}" for i in range(11)], rows=1)
    dataset = MultimodalDataset(
        [sequence.replace(" ", "\t") for sequence in SEQUENCES],
        open_features([tmp_path / "f.h5"]),
        None,
        dictionary,
        missing=["gone"],
    )
    models = [random_story_model(arch, seed=i) for i, arch in enumerate(arches)]
    read = []
    likelihood = TextLikelihood(
        models, lambda line: read.append(line) or dataset[line], dataset.collater, **options
    )
    pairs = [
        (line, encode_text(dictionary, story.split()))
        for story in VISUAL_STORIES
        for line in range(3)
    ]
    seen = []
    for numbers, log_probs in likelihood.batches(pairs):
        seen += numbers
        for number, found in zip(numbers, log_probs):
            line, story = pairs[number]
            target = torch.tensor(story)
            example = {**dataset[line], "target": target}
            probabilities = [
                model(**dataset.collater([example])["net_input"])[0][0].double().softmax(1)
                for model in models
            ]
            mean = torch.stack(probabilities).mean(0)
            expected = mean.gather(1, target.unsqueeze(1)).squeeze(1).log()
            assert_close(found, expected.float())
    assert sorted(seen) == list(range(9))
    assert sorted(read) == [0, 1, 2]
