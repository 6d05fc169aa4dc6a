"""Captions by structure and content, against loops over pairs from the paper's description."""

import copy
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from numerics import assert_close
from toy_captioner import save_images
from toy_data import WORDS
from toy_pos_sequences import WordFrequencies, make_trained, train

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.inference.candidates import (
    CandidateWeights,
    StructuredSearch,
    draw_pairs,
    find_conditions,
    score_candidates,
)
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.embedder import load_embedder
from fairseq_mm.inference.structured_captioner import load_structured_captioner

SEARCH = StructuredSearch(candidates=60, shortest=2, longest=5, top=100, max_len_b=8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make_trained(tmp_path_factory.mktemp("structures"))


@pytest.fixture(scope="module")
def captioner(trained):
    found = load_structured_captioner(
        Checkpoint.open_all(trained.decoder),
        embedding=trained.embedding,
        data=trained.data,
        device="cpu",
    )
    found.language_model = WordFrequencies()
    return found


@pytest.fixture(scope="module")
def features():
    generator = np.random.default_rng(4)
    return [generator.normal(size=(rows, 512)).astype(np.float32) for rows in (1, 1, 3, 1)]


def assert_same(found, expected):
    """The same captions of each image, with equal parts up to rounding."""
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        by_text = {caption.text: caption for caption in other.captions}
        assert by_text.keys() == {caption.text for caption in one.captions}
        for caption in one.captions:
            same = by_text[caption.text]
            assert caption[5:] == same[5:]
            assert_close(caption[1:5], same[1:5])
        assert one.nearest[:3] == other.nearest[:3]


def unit(vector):
    return vector / np.linalg.norm(vector)


def conditions_by_loops(captioner, image, num_nearest):
    """The image's own vector, and means of the nearest words' and sentences'."""
    dictionary = captioner.embedder.task.target_dictionary
    model = captioner.embedder.models[0]

    def embed(numbers):
        with torch.no_grad():
            return model.embed_sentences(torch.tensor([[*numbers, dictionary.eos()]]))[0].numpy()

    texts = captioner.sentences.lines
    pools = {
        "words": [embed([dictionary.index(word)]) for word in WORDS],
        "sentences": [embed([dictionary.index(word) for word in t.split()]) for t in texts],
    }
    found = {"image": image}
    for name, pool in pools.items():
        by_cosine = sorted(pool, key=lambda vector: -float(vector @ image))
        found[name] = unit(np.mean(by_cosine[:num_nearest], axis=0))
    cosines = [float(vector @ image) for vector in pools["sentences"]]
    return found, int(np.argmax(cosines)), embed


def write_by_loops(captioner, condition, structure, max_len_b):
    """The most probable word at each place, by the whole model each time."""
    model, task = captioner.decoder.models[0], captioner.decoder.task
    words, tags = task.target_dictionary, task.structure_dictionary
    source = torch.tensor([[*map(tags.index, structure.split()), tags.eos()]])
    tokens = [words.eos()]
    while len(tokens) <= max_len_b:
        with torch.no_grad():
            logits, _ = model(
                prev_output_tokens=torch.tensor([tokens]),
                features=torch.from_numpy(condition)[None, None],
                padding_mask=torch.zeros(1, 1, dtype=torch.bool),
                src_tokens=source,
            )
        last = logits[0, -1]
        last[[words.bos(), words.pad(), words.unk()]] = -torch.inf
        if len(tokens) == 1:
            last[words.eos()] = -torch.inf
        best = int(last.argmax())
        if best == words.eos():
            break
        tokens.append(best)
    return [words[number] for number in tokens[1:]]


def captions_by_loops(captioner, rows, search):
    image = unit(captioner.embedder.embed_features([rows])[0])
    conditions, _, embed = conditions_by_loops(captioner, image, search.num_nearest)
    index = captioner.embedder.task.target_dictionary.index
    draws = draw_pairs(captioner.structures, search)
    found = {}
    for place, structure in zip(draws.conditions, draws.structures):
        name = search.conditions[place]
        words = write_by_loops(captioner, conditions[name], structure, search.max_len_b)
        cosine = float(embed([index(word) for word in words]) @ image)
        log_prob = -(0.5 + 0.3 * len("".join(words))) / (len(words) + 1)
        repeated = 0
        for i, word in enumerate(words):
            repeated += word not in {"a", "the", "on", "in"} and word in words[:i]
        penalty = 0.7**repeated
        translation = cosine * penalty if cosine > 0 else cosine
        score = translation + 0.2 * log_prob
        row = (" ".join(words), name, structure, score, cosine, log_prob, penalty)
        found.setdefault(row[0], row)
    return sorted(found.values(), key=lambda row: -row[3])


def test_captions_are_those_of_loops_over_the_drawn_pairs(captioner, features):
    found = list(captioner.caption_features(features, SEARCH))
    for rows, caption in zip(features, found):
        expected = captions_by_loops(captioner, rows, SEARCH)
        assert len(caption.captions) == len(expected) > 3
        by_text = {row[0]: row for row in expected}
        for got in caption.captions:
            name, structure, *numbers = by_text[got.text][1:]
            assert (got.condition, got.structure) == (name, structure)
            assert_close([got.score, got.cosine, got.log_prob, got.penalty], numbers)
        scores = [got.score for got in caption.captions]
        assert scores == sorted(scores, reverse=True)
        assert_close(scores, [row[3] for row in expected])


def test_conditions_are_means_of_the_nearest(captioner, features):
    vectors = captioner.embedder.embed_features(features)
    images = np.stack([unit(vector) for vector in vectors])
    found = find_conditions(images, captioner.word_vectors, captioner.sentences, num_nearest=4)
    assert found.conditions.shape == (4, 3, 8)
    for image, conditions, nearest in zip(images, found.conditions, found.nearest):
        expected, line, _ = conditions_by_loops(captioner, image, 4)
        assert_close(conditions, np.stack(list(expected.values())))
        assert nearest.caption == captioner.sentences.lines[line]
        assert nearest.id == captioner.sentences.ids[line]
        assert_close(nearest.cosine, float(image @ captioner.sentences.vectors[line]))


def test_concepts_are_the_nearest_words_and_sentences_in_one_mean(captioner, features):
    vectors = captioner.embedder.embed_features(features)
    images = np.stack([unit(vector) for vector in vectors])
    words, sentences = captioner.word_vectors, captioner.sentences
    found = find_conditions(images, words, sentences, names=["concepts", "image"], num_nearest=3)
    for image, (concepts, own) in zip(images, found.conditions):
        pools = [sorted(pool, key=lambda v: -float(v @ image)) for pool in (words, sentences[2])]
        bag = [*pools[0][:3], *pools[1][:3]]
        assert_close(concepts, unit(np.mean(bag, axis=0)))
        assert_close(own, image)


def test_draws_are_as_frequent_as_counted_and_of_the_lengths_asked_for():
    counts = Counter({"A B": 3, "A": 50, "A A A": 1, "B B": 0, "A B A B": 40})
    search = StructuredSearch(candidates=4000, shortest=2, longest=3)
    draws = draw_pairs(counts, search)
    assert set(zip(draws.conditions, draws.structures)) == {
        (condition, structure) for condition in range(3) for structure in ("A B", "A A A")
    }
    assert draws.structures == ["A B"] * 3 + ["A A A"] * 3  # each pair once, short ones first
    assert draw_pairs(counts, search) == draws
    with pytest.raises(UserError, match=r"of 5 to 6 tags to draw from: .* have 1 to 4 \("):
        draw_pairs(counts, StructuredSearch(shortest=5, longest=6))


def test_types_are_drawn_alike_however_frequent_they_are():
    counts = Counter({f"A{i} B": 1 for i in range(99)})
    counts.update({"X Y": 10_000, "Z Z": 0})
    by_frequency, by_types = (
        draw_pairs(counts, StructuredSearch(candidates=1000, shortest=2, pos_sampling=sampling))
        for sampling in ("frequency", "types")
    )
    assert "X Y" in by_types.structures
    assert "Z Z" not in by_types.structures
    assert len(set(by_frequency.structures)) < 30
    assert len(set(by_types.structures)) == 100
    with pytest.raises(UserError, match="`pos_sampling` must be one of frequency, types"):
        StructuredSearch(pos_sampling="all")


def test_a_image_has_the_same_captions_alone_and_in_any_batch(captioner, features):
    alone = [next(captioner.caption_features([rows], SEARCH)) for rows in features]
    assert_same(captioner.caption_features(features, SEARCH), alone)
    assert_same(captioner.caption_features(features[::-1], SEARCH), alone[::-1])
    for size in (7, 150):
        other = replace(SEARCH, batch_size=size)
        assert_same(captioner.caption_features(features, other), alone)
    assert list(captioner.caption_features([], SEARCH)) == []


def test_pairs_are_written_once_and_sentences_scored_once(captioner, features, monkeypatch):
    written, embedded = [], []
    step, embed = captioner.decoder.task.inference_step, captioner.embedder.embed_tokens

    def count_step(generator, models, sample, *others):
        written.append(len(sample["id"]))
        return step(generator, models, sample, *others)

    def count_embed(sentences):
        embedded.append(sentences)
        return embed(sentences)

    monkeypatch.setattr(captioner.decoder.task, "inference_step", count_step)
    monkeypatch.setattr(captioner.embedder, "embed_tokens", count_embed)
    search = StructuredSearch(candidates=3000, shortest=2, longest=3, conditions=["words", "image"])
    pairs = len(draw_pairs(captioner.structures, search).structures)
    assert pairs <= 2 * len(captioner.structures)
    (found,) = captioner.caption_features(features[:1], search)
    assert written == [pairs]
    (sentences,) = embedded
    assert len(set(map(tuple, sentences))) == len(sentences) < pairs
    assert len(found.captions) == 5 == len({caption.text for caption in found.captions})


def test_scores_by_hand():
    sentences = [["dog", "dog", "dog"], ["a", "dog"], ["cat", "cat"]]
    cosines = np.array([0.5, 0.25, -0.5], dtype=np.float32)
    log_probs = np.array([-8.0, -3.0, -6.0])
    found = score_candidates(
        sentences, cosines, log_probs, CandidateWeights(2.0, 0.5, "word", repeat_penalty=0.5)
    )
    # the first: twice a quarter of 0.5, and half of the mean of 3 words and the end, -8 / 4
    assert found.score.tolist() == [0.25 - 1, 0.5 - 0.5, -1 - 1]
    assert found.penalty.tolist() == [0.25, 1, 0.5]
    assert found.log_prob.tolist() == [-2, -1, -2]
    found = score_candidates(
        sentences, cosines, log_probs, CandidateWeights(1.0, 1.0, "sentence", repeat_penalty=1)
    )
    assert found.score.tolist() == [-7.5, -2.75, -6.5]
    found = score_candidates(sentences, cosines, log_probs, CandidateWeights(repeat_penalty=0))
    assert found.penalty.tolist() == [0, 1, 0]
    assert found.score[2] == pytest.approx(-0.5 - 0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "`candidates` must be 1 or more, but is 0"),
        ({"batch_size": 0}, "`batch_size` must be 1 or more"),
    ],
)
def test_a_search_out_of_its_range_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        StructuredSearch(**options)


def test_an_embedding_that_the_decoder_was_not_trained_on_is_refused(trained, tmp_path):
    options = ("--arch", "vse_tiny", "--criterion", "pairwise_ranking", "--seed", 7)
    other = train(trained.data, tmp_path / "other", *options, updates=1)
    with pytest.raises(UserError, match=r"decoder.*: must have vectors that .* dimension 8"):
        load_structured_captioner(
            Checkpoint.open_all(trained.decoder), embedding=other, data=trained.data
        )


def test_images_are_read_by_the_embeddings_extractor(trained, captioner, tmp_path):
    images = save_images(tmp_path / "images", count=2)
    whole = fairseq_mm.from_pretrained(
        trained.decoder, embedding=trained.embedding, data=trained.data, device="cpu"
    )
    options = {"candidates": 20, "shortest": 2}
    found = whole.caption(images, **options)
    features = captioner.embedder.extractor.extract(images)
    expected = whole.caption_features(features, StructuredSearch(**options))
    assert_same(found, expected)
    with pytest.raises(UserError, match="`images` must be a list, but is a str"):
        whole.caption(images[0])


def test_embedders_and_captioners_take_any_number_of_inputs(trained, captioner, tmp_path):
    images = save_images(tmp_path / "images", count=3)
    embedder = load_embedder(trained.embedding, device="cpu")
    dim = embedder.models[0].embed_dim
    texts = ["a dog", "the big cat"]
    for none in ([], (), iter(())):
        assert embedder.embed_images(none).shape == (0, dim)
        assert embedder.embed_texts(none).shape == (0, dim)
        assert captioner.caption(none, candidates=3) == []
    vectors = embedder.embed_images(images)
    assert np.array_equal(embedder.embed_images(path for path in images), vectors)
    assert np.array_equal(embedder.embed_texts(iter(texts)), embedder.embed_texts(texts))
    assert embedder.embed_images([]).dtype == vectors.dtype == np.float32
    options = {"candidates": 9, "shortest": 2}
    assert_same(captioner.caption(iter(images), **options), captioner.caption(images, **options))
    for call in (embedder.embed_images, embedder.embed_texts, captioner.caption):
        for value in ("a.jpg", b"a", 3, None):
            with pytest.raises(UserError, match=r"must be a list, but is a"):
                call(value)
    with pytest.raises(UserError, match="`texts` must be a string, but is 3"):
        embedder.embed_texts(["a dog", 3])
    with pytest.raises(UserError, match="`batch_size` must be an integer, but is '3'"):
        embedder.embed_images(images, batch_size="3")
    for name, value in (("beam", 2.5), ("candidates", True), ("top", "3"), ("seed", None)):
        with pytest.raises(UserError, match=f"`{name}` must be an integer"):
            captioner.caption(images, **{name: value})
    with pytest.raises(UserError, match=r"`canddates` is no option .* mean `candidates`"):
        captioner.caption(images, canddates=3)
    with pytest.raises(KeyError, match="tags"):
        captioner.caption(images, conditions=["image", "tags"])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_have_the_same_vectors_and_captions(trained, captioner, tmp_path, copied):
    images = save_images(tmp_path / "images", count=2)
    options = {"candidates": 9, "shortest": 2}
    expected = captioner.caption(images, **options)
    assert_same(copied(captioner).caption(images, **options), expected)
    embedder = load_embedder(trained.embedding, device="cpu")
    texts = embedder.embed_texts(["a dog"])
    vectors = embedder.embed_images(images)
    assert np.array_equal(copied(embedder).embed_texts(["a dog"]), texts)
    assert np.array_equal(copied(embedder).embed_images(images), vectors)


def test_a_model_of_part_of_speech_sequences_alone_generates_no_captions(trained):
    with pytest.raises(UserError, match=r"generates by part-of-speech sequences of training and"):
        fairseq_mm.from_pretrained(trained.decoder)
    with pytest.raises(UserError, match="`embedding` is no option of "):
        fairseq_mm.from_pretrained(trained.embedding, embedding=trained.embedding)
