"""Images and sentences in one space: the equations, and what the space relies on.

Contracts: padding and batch composition change nothing; half precision trains; a checkpoint needs
no other file. The commands are in tests/tasks/test_ranking_validation.py.
"""

from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from toy_data import build_model, make_dictionary, toy_task

from fairseq_mm.errors import UserError

PAD, EOS, BOS = 1, 2, 0
SIZES = {"word_dim": 6, "embed_dim": 8}
ARCHS = ("vse_lstm", "vse_gru", "vse_bow")
POOLINGS = ("encoder", "mean", "max", "gpo")
TARGET = torch.tensor([[5, 9, 7, 6, EOS], [8, 4, EOS, PAD, PAD], [11, EOS, PAD, PAD, PAD]])


def build(arch, **options):
    return build_model(arch, toy_task(), **{**SIZES, **options})


def inputs(*, rows=1):
    padding_mask = torch.zeros(3, rows, dtype=torch.bool)
    padding_mask[1, 1:] = True
    return torch.randn(3, rows, 5), padding_mask


def test_image_is_the_unit_vector_of_its_projection():
    model = build("vse_lstm", feature_scaling="none")
    features, padding_mask = inputs(rows=3)
    mean = torch.stack([features[0].mean(0), features[1, 0], features[2].mean(0)])
    x = mean @ model.image_proj.weight.t() + model.image_proj.bias
    expected = x / x.pow(2).sum(-1, keepdim=True).sqrt()
    torch.testing.assert_close(model.embed_images(features, padding_mask), expected)


def test_sentence_is_the_last_state_of_the_lstm():
    model = build("vse_lstm")
    encoder = model.sentence_encoder
    states = encoder.recurrence(encoder.embedding(torch.tensor([[5, 9, 7, 6]])))
    expected = F.normalize(states[0, -1], dim=-1)
    torch.testing.assert_close(model.embed_sentences(TARGET)[0], expected)


@pytest.mark.parametrize("signs", ["none", "end", "both"])
def test_gru_is_pytorchs_over_words_and_signs(signs):
    model = build("vse_gru", sentence_signs=signs)
    encoder = model.sentence_encoder
    tokens = {"none": [8, 4], "end": [8, 4, EOS], "both": [BOS, 8, 4, EOS]}[signs]
    _, last = encoder.recurrence(encoder.embedding(torch.tensor([tokens])))
    expected = F.normalize(last[0, 0], dim=-1)
    torch.testing.assert_close(model.embed_sentences(TARGET)[1], expected)


@pytest.mark.parametrize("word_dim", [6, 8])
def test_bow_is_the_sum_of_the_words(word_dim):
    model = build("vse_bow", word_dim=word_dim)
    encoder = model.sentence_encoder
    total = encoder.embedding.weight[[8, 4]].sum(0)
    if word_dim == 6:
        total = encoder.sum_proj.weight @ total
    torch.testing.assert_close(model.embed_sentences(TARGET)[1], F.normalize(total, dim=-1))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("pooling", ["mean", "max", "gpo"])
def test_sentence_pools_its_states_or_its_words(arch, pooling):
    model = build(arch, sentence_pooling=pooling, word_dim=8, sentence_signs="end")
    encoder = model.sentence_encoder
    states = encoder.embedding(torch.tensor([[8, 4, EOS]]))
    if arch != "vse_bow":
        states = encoder.recurrence(states)
    states = states[0] if arch == "vse_gru" else states  # [1, 3, K]
    if pooling == "gpo":
        weights = encoder.generalized_pooling.get_weights(3, 3)[0]
        expected = weights @ states[0].sort(dim=0, descending=True).values
    else:
        expected = states[0].mean(0) if pooling == "mean" else states[0].max(0).values
    torch.testing.assert_close(model.embed_sentences(TARGET)[1], F.normalize(expected, dim=-1))


def test_regions_of_an_image_are_pooled_after_their_projection():
    model = build("vse_lstm", image_pooling="gpo", feature_scaling="unit")
    features, padding_mask = inputs(rows=3)
    regions = model.image_proj(F.normalize(features[0], dim=-1)).sort(dim=0, descending=True).values
    expected = model.region_pooling.get_weights(3, 3)[0] @ regions
    found = model.embed_images(features, padding_mask)
    torch.testing.assert_close(found[0], F.normalize(expected, dim=-1))
    # of a single region the weight is 1
    alone = model.image_proj(F.normalize(features[1, 0], dim=-1))
    torch.testing.assert_close(found[1], F.normalize(alone, dim=-1))


def test_default_sizes_are_those_of_the_paper_and_the_released_codes():
    task = toy_task(feature_dim=19)
    lstm, gru, bow = (build_model(arch, task) for arch in ARCHS)
    assert lstm.image_proj.weight.shape == (300, 19)
    assert lstm.sentence_encoder.recurrence.hidden_weight.shape == (1200, 300)
    assert gru.image_proj.weight.shape == (1024, 19)
    assert gru.sentence_encoder.recurrence.weight_ih_l0.shape == (3 * 1024, 300)
    assert (lstm.sentence_encoder.signs, gru.sentence_encoder.signs) == ("none", "end")
    assert bow.sentence_encoder.sum_proj is None


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_and_other_rows_change_nothing(arch, pooling):
    image_pooling = "gpo" if pooling == "gpo" else "mean"
    model = build(arch, sentence_pooling=pooling, image_pooling=image_pooling)
    features, padding_mask = inputs(rows=3)
    images, sentences = model(features, padding_mask, TARGET)
    for row, length in enumerate((5, 3, 2)):
        alone = ~padding_mask[row]
        image, sentence = model(
            features[row : row + 1, alone],
            padding_mask[row : row + 1, alone],
            TARGET[row : row + 1, :length],
        )
        torch.testing.assert_close(image[0], images[row])
        torch.testing.assert_close(sentence[0], sentences[row])
    features[padding_mask] = 1e4
    wide = F.pad(TARGET, (0, 3), value=PAD)
    again, wider = model(features, padding_mask, wide)
    torch.testing.assert_close(again, images)
    torch.testing.assert_close(wider, sentences)


def test_images_keep_their_length_where_asked_for():
    features, padding_mask = inputs()
    for norm, in_training, after in (
        ("always", True, True),
        ("evaluation", False, True),
        ("never", False, False),
    ):
        model = build("vse_gru", image_norm=norm)
        for training, expected in ((True, in_training), (False, after)):
            lengths = model.train(training).embed_images(features, padding_mask).norm(dim=1)
            assert torch.allclose(lengths, torch.ones(3), atol=1e-5) is expected


def word_vector_task(vectors):
    """A task whose word vectors are those given for the words 5 and 8."""

    def read_word_vectors(path, dim):
        table = torch.zeros(20, dim)
        table[[5, 8]] = vectors
        is_found = torch.zeros(20, dtype=torch.bool)
        is_found[[5, 8]] = True
        return table.numpy(), is_found.numpy()

    return toy_task(read_word_vectors=read_word_vectors)


@pytest.mark.parametrize("fixed", [False, True])
def test_words_begin_with_the_vectors_of_a_file(fixed):
    vectors = 3 * torch.randn(2, 6)
    task = word_vector_task(vectors)
    model = build_model("vse_gru", task, **SIZES, word_vectors="v.txt", fixed_words=fixed)
    weight = model.sentence_encoder.embedding.weight
    assert torch.equal(weight[[5, 8]], vectors)
    assert not weight[PAD].any()
    # the others are as long
    others = weight[9:].pow(2).mean().sqrt()
    assert 0.7 < float(others / vectors.pow(2).mean().sqrt()) < 1.3
    assert weight.requires_grad is not fixed


def test_mistakes_are_reported_in_one_line():
    one_region = Namespace(ids=["a", "b"], count_rows=lambda key: 1)
    task = toy_task(features=one_region)
    with pytest.raises(UserError, match="--image-pooling gpo reads the regions of images, but"):
        build_model("vse_tiny", task, image_pooling="gpo")
    one_region.count_rows = {"a": 1, "b": 3}.get
    build_model("vse_tiny", task, image_pooling="gpo")
    model = build("vse_gru")
    with pytest.raises(UserError, match="are trained with --criterion pairwise_ranking"):
        model(*inputs(), prev_output_tokens=TARGET)
    narrow = build("vse_gru", embed_dim=7)
    with pytest.raises(UserError, match="its weights do not fit the model"):
        narrow.load_state_dict(model.state_dict())
    other = build_model("vse_gru", toy_task(target_dictionary=make_dictionary(reverse=True)))
    with pytest.raises(UserError, match="the same words in another order"):
        build_model("vse_gru", toy_task()).load_state_dict(other.state_dict())
