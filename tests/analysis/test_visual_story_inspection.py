"""What a model of visual stories attended to, against the models' equations written as loops."""

import math

import numpy as np
import pytest
import torch
from numerics import assert_close
from toy_data import build_model, visual_story_task
from toy_visual_story_models import random_story_model

from fairseq_mm.analysis.visual_story_inspection import (
    get_attention_kinds,
    inspect_visual_story,
    most_varied,
    top_positions,
)
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.inference.generator import Generator
from fairseq_mm.models._provenance import list_words
from fairseq_mm.tasks.visual_storytelling import VisualStorytellingTask

SENTENCES = [["a", "dog", "runs"], ["a", "zebra"], ["snow"], ["the", "big", "cat", "sits"], ["on"]]
TARGETS = "a dog runs <sent> a zebra <sent> snow <sent> the big cat sits <sent> on </s>".split()  # noqa: SIM905


def generator_of(model, *, dim=5, rows=1):
    words = list_words(visual_story_task().target_dictionary)
    task = VisualStorytellingTask.from_provenance(words, {}, dim, rows_per_image=rows)
    files, device = ["toy.pt"], torch.device("cpu")
    return Generator(LoadedModels(task, [model], files, ["toy"], {}, dim, device))


def inspected(model, features, *, rows=1):
    generator = generator_of(model, rows=rows)
    (example,) = generator.processor.examples([features])
    return inspect_visual_story(generator, example, SENTENCES)


def read_features(*, dim=5, rows=1, missing=()):
    generator = np.random.default_rng(4)
    features = [generator.normal(size=(rows, dim)).astype(np.float32) for _ in range(5)]
    return [None if place in missing else x for place, x in enumerate(features)]


def collated(features, rows):
    x = torch.stack([torch.zeros(rows, 5) if f is None else torch.from_numpy(f) for f in features])
    padding_mask = torch.tensor([f is None for f in features])
    return x.flatten(0, 1).unsqueeze(0), padding_mask.repeat_interleave(rows).unsqueeze(0)


def previous_tokens(dictionary):
    return torch.tensor([[dictionary.eos(), *map(dictionary.index, TARGETS[:-1])]])


def test_words_have_their_sentences_and_probabilities():
    model = random_story_model("transtory_full_tiny")
    found = inspected(model, read_features())
    assert found.words == TARGETS
    assert found.sentences == [0] * 4 + [1] * 3 + [2] * 2 + [3] * 5 + [4] * 2
    assert [w for w, known in zip(found.words, found.is_known) if not known] == ["zebra"]
    dictionary = visual_story_task().target_dictionary
    with torch.no_grad():
        x, padding_mask = collated(read_features(), 1)
        logits, _ = model(x, padding_mask, previous_tokens(dictionary))
    log_probs = logits[0].log_softmax(-1)
    expected = [log_probs[t, dictionary.index(word)] for t, word in enumerate(TARGETS)]
    assert_close(found.log_probs, expected)


@torch.no_grad()
def test_weights_of_images_are_the_heads_mean_where_a_word_is_written():
    model = random_story_model("transtory_full_tiny")
    features = read_features(missing=[1])
    found = inspected(model, features)
    assert found.slice_weights is None
    assert found.similarities is None
    assert found.image_padding_mask.tolist() == [False, True, False, False, False]
    x, padding_mask = collated(features, 1)
    (memory,) = model.encoder(x, padding_mask)["vectors"]
    (layer,) = model.decoder.layers
    attention = layer.pictures
    seen = []
    handle = attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    dictionary = visual_story_task().target_dictionary
    model.decoder.extract_features(previous_tokens(dictionary), model.encoder(x, padding_mask))
    handle.remove()
    queries, keys = attention.query_proj(seen[0][0]), attention.key_proj(memory[0])
    size = queries.size(1) // attention.num_heads
    for t in range(len(TARGETS)):
        total = np.zeros(5)
        for head in range(attention.num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = [
                math.exp(float(queries[t, part] @ keys[n, part]) / math.sqrt(size)) * (n != 1)
                for n in range(5)
            ]
            total += np.array(scores) / sum(scores) / attention.num_heads
        assert_close(found.image_weights[t], total)


@torch.no_grad()
def test_weights_of_slices_come_from_the_last_output_and_start_uniform():
    model = build_small_slices()
    found = inspected(model, read_features())
    assert found.image_weights is None
    x, padding_mask = collated(read_features(), 1)
    encoder_out = model.encoder(x, padding_mask)
    dictionary = visual_story_task().target_dictionary
    outputs, _ = model.decoder.extract_features(previous_tokens(dictionary), encoder_out)
    slices = encoder_out["vectors"][0][0].view(5, 3, -1)
    starts = {0, 4, 7, 9, 14}
    for t, sentence in enumerate(found.sentences):
        query = torch.zeros(7) if t in starts else outputs[0, t - 1]
        scores = [math.exp(float(query @ slices[sentence, s])) for s in range(3)]
        expected = [score / sum(scores) for score in scores]
        assert_close(found.slice_weights[t], expected)


def build_small_slices():
    model = build_model("glac_tiny", visual_story_task(), slices=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


@torch.no_grad()
def test_similarities_are_dot_products_of_two_projections():
    task = visual_story_task(rows_per_image=6)
    model = build_model("glac_tiny", task, non_local=True)
    features = read_features(rows=6, missing=[4])
    found = inspected(model, features, rows=6)
    assert found.image_weights is None
    assert found.slice_weights is None
    block = model.encoder.pictures.non_local
    for n in range(4):
        for i in range(6):
            for j in range(6):
                x_i, x_j = torch.from_numpy(features[n][i]), torch.from_numpy(features[n][j])
                f = float(block.theta(x_i) @ block.phi(x_j))
                assert_close(found.similarities[n, i, j], f)
    assert not found.similarities[4].any()


def test_arrows_start_where_similarities_vary_most_and_end_at_the_greatest():
    similarities = np.array(
        [
            [9.0, 9.0, 9.0, 9.0],  # varies least
            [0.0, 1.0, 2.0, 1.0],
            [5.0, -5.0, 7.0, 7.0],  # varies most
            [0.0, 0.0, 0.0, 4.0],
        ]
    )
    assert most_varied(similarities) == 2
    assert top_positions(similarities, 2, 3) == [2, 3, 0]
    assert top_positions(similarities, 1) == [2, 1, 3, 0]


def test_the_released_full_model_has_nothing_to_see(tmp_path):
    task = visual_story_task()
    released = build_model("transtory_full_tiny", task, compat="released")
    with pytest.raises(UserError, match=r"toy.pt: attends to nothing"):
        get_attention_kinds(generator_of(released))
    generator = generator_of(random_story_model("transtory_full_tiny"))
    assert get_attention_kinds(generator) == (True, False, False)
