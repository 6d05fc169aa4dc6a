"""GLAC beside the released way of computing it: story by story, sentence by sentence."""

import pytest
import torch
from numerics import assert_close
from toy_data import build_model, visual_story_task

SEPARATOR, PAD, EOS = 20, 1, 2
SIZES = {
    "picture_dim": 6,
    "encoder_hidden_dim": 4,
    "glocal_dim": 9,
    "embedding_dim": 5,
    "hidden_dim": 7,
}
STORIES = [
    [EOS, 4, 5, SEPARATOR, 6, SEPARATOR, 7, 8, 9, 10, SEPARATOR, SEPARATOR, 11],
    [EOS, 12, SEPARATOR, 4, 4, SEPARATOR, 7, SEPARATOR, 9, SEPARATOR, 5],
]


def make_model(arch="glac", rows=1, **options):
    task = visual_story_task(rows_per_image=rows)
    model = build_model(arch, task, **{**SIZES, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def sentences_of(story):
    sentences = [[]]
    for token in story:
        if token == SEPARATOR:
            sentences.append([])
        sentences[-1].append(token)
    return sentences


def naive_vectors(encoder, features, rows):
    """A story's s_1 ... s_5 of its features ``[5 R, D]``, in evaluation mode."""
    images = encoder.pictures

    def normalised(norm, x):
        return (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + (
            norm.bias
        )

    local = []
    for i in range(5):
        grid = features[i * rows : (i + 1) * rows]
        if images.non_local is not None:
            grid = images.non_local(grid[None], torch.ones(1, dtype=torch.bool))[0]
        local.append(normalised(images.norm, images.proj(grid.mean(0))))
    states = encoder.lstm.lstm(torch.stack(local)[None])[0][0]
    vectors = []
    for v, h in zip(local, states):
        glocal = normalised(encoder.glocal_norm, encoder.glocal_proj(torch.cat([v, h])))
        vectors.append(encoder.output_proj(glocal).relu())
    return vectors


def naive_cell(lstm, layer, x, h, c):
    """h and c after one step of a layer, in PyTorch's order of the gates."""
    from_input = getattr(lstm, f"weight_ih_l{layer}") @ x + getattr(lstm, f"bias_ih_l{layer}")
    from_state = getattr(lstm, f"weight_hh_l{layer}") @ h + getattr(lstm, f"bias_hh_l{layer}")
    enters, stays, candidate, leaves = (from_input + from_state).chunk(4)
    c = stays.sigmoid() * c + enters.sigmoid() * candidate.tanh()
    return leaves.sigmoid() * c.tanh(), c


def naive_story(decoder, story, vectors):
    """Logits of a story, a word at a time, the state carried from sentence to sentence."""
    H, layers = decoder.lstm.hidden_size, decoder.lstm.num_layers
    state = [(torch.zeros(H), torch.zeros(H)) for _ in range(layers)]
    logits = []
    for sentence, vector in zip(sentences_of(story), vectors):
        query = torch.zeros(H)
        for token in sentence:
            seen = vector
            if decoder.slices > 1:
                slices = vector.view(decoder.slices, H)
                weights = (slices @ query / decoder.slice_temperature).softmax(0)
                seen = sum(w * f for w, f in zip(weights, slices))
            x = torch.cat([seen, decoder.embedding.weight[token]])
            for i in range(layers):
                state[i] = naive_cell(decoder.lstm, i, x, *state[i])
                x = state[i][0]
            query = x
            logits.append(decoder.output_proj(x))
    return torch.stack(logits)


@pytest.mark.parametrize(
    ("arch", "rows", "options"),
    [
        ("glac", 1, {}),
        ("glac", 3, {}),
        ("glac_non_local", 3, {}),
        ("glac_decoder_attention", 1, {}),
        ("glac_decoder_attention", 1, {"slice_temperature": 3.0}),
    ],
)
def test_equals_words_and_sentences_one_by_one(arch, rows, options):
    model = make_model(arch, rows, **options)
    features = torch.randn(2, 5 * rows, 5)
    T = max(map(len, STORIES))
    tokens = torch.tensor([story + [PAD] * (T - len(story)) for story in STORIES])
    with torch.no_grad():
        fast = model(features, torch.zeros(2, 5 * rows, dtype=torch.bool), tokens)[0]
        for row, story in enumerate(STORIES):
            vectors = naive_vectors(model.encoder, features[row], rows)
            slow = naive_story(model.decoder, story, vectors)
            assert_close(fast[row, : len(story)], slow)


def test_missing_images_have_no_part_in_the_statistics():
    model = make_model().train()
    norm = model.encoder.pictures.norm
    padding_mask = torch.zeros(2, 5, dtype=torch.bool)
    padding_mask[0, 2] = True
    features = torch.randn(2, 5, 5)
    model.encoder(features, padding_mask)
    projected = model.encoder.pictures.proj(features[~padding_mask])
    torch.testing.assert_close(norm.running_mean, projected.mean(0))


WIDE = {"glocal_dim": 900, "hidden_dim": 700}


def spread_of_images(**options):
    """How far mixtures of slices that words first see differ from image to image."""
    torch.manual_seed(5)
    model = build_model("glac", visual_story_task(), **{**SIZES, **WIDE, **options}).eval()
    with torch.no_grad():
        projected = model.encoder.output_proj(torch.randn(200, WIDE["glocal_dim"])).relu()
    return projected.unflatten(1, (model.decoder.slices, -1)).mean(1).std(dim=0).mean().item()


def test_copied_slices_tell_images_apart_as_one_vector_does():
    one = spread_of_images()
    assert spread_of_images(slices=8) > 0.95 * one
    independent = spread_of_images(slices=8, slice_init="independent")
    assert independent == pytest.approx(one / 8**0.5, rel=0.1)


def test_slices_begin_with_the_vector_of_a_model_without_them():
    glac = make_model("glac")
    sliced = make_model("glac_decoder_attention")
    sliced.load_state_dict(glac.state_dict(), strict=True)
    slices = sliced.encoder.output_proj.weight.view(8, SIZES["hidden_dim"], -1)
    expected = glac.encoder.output_proj.weight
    assert_close(slices.mean(0), expected)
    assert not torch.isclose(slices[0], slices[1]).any(dim=1).all()
    other = make_model("glac_decoder_attention")
    other.load_state_dict(glac.state_dict(), strict=True)  # as another process does
    assert torch.equal(other.encoder.output_proj.weight, sliced.encoder.output_proj.weight)
