"""Transtory-XL beside loops written from the paper's equations."""

import math

import pytest
import torch
from numerics import assert_close
from toy_data import build_model, visual_story_task

SEPARATOR, PAD, EOS = 20, 1, 2
SIZES = {
    "picture_dim": 6,
    "embedding_dim": 5,
    "model_dim": 8,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "head_dim": 3,
    "decoder_ffn_dim": 10,
}


def make_model(**options):
    model = build_model("transtory_xl", visual_story_task(), **{**SIZES, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        if options.get("compat") != "released":
            model.decoder.embedding.weight[PAD] = 0
    return model


def sinusoid(distance, dim):
    angles = [distance / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def naive_layer(layer, memory, states, *, same_length):
    """A layer's output for the segment; memory: pairs of vector and whether it is real."""
    attention = layer.attention
    H, A, M = attention.num_heads, attention.head_dim, len(memory)
    D = len(states[0])
    outputs = []
    for i, x in enumerate(states):
        query = attention.query_proj(x).view(H, A)
        heads = []
        for n in range(H):
            scores, values = [], []
            candidates = [(i + M - s, m) for s, (m, valid_mask) in enumerate(memory) if valid_mask]
            candidates += [(i - j, states[j]) for j in range(i + 1)]
            for distance, vector in candidates:
                if same_length and distance >= M:
                    continue
                key, value = attention.key_value_proj(vector).chunk(2)
                r = attention.distance_proj(sinusoid(distance, D)).view(H, A)[n]
                score = (query[n] + attention.content_bias[n]) @ key.view(H, A)[n]
                score = score + (query[n] + attention.distance_bias[n]) @ r
                scores.append(score / math.sqrt(A))
                values.append(value.view(H, A)[n])
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(w * v for w, v in zip(weights, values)))
        x = layer.attention_norm(x + attention.out_proj(torch.cat(heads)))
        inner = layer.feed_forward.inner_proj(x).relu()
        outputs.append(layer.feed_forward_norm(x + layer.feed_forward.out_proj(inner)))
    return outputs


def naive_story(decoder, tokens, images, memory_length, segment_length, *, released=False):
    """Outputs of a story's tokens, sentence by sentence, with padding as in section 3.5.3."""
    fuse = decoder.memory_fusion
    zero = torch.zeros(fuse.in_features)
    memories = [[(zero, True)] * memory_length for _ in decoder.layers]
    sentences = [[tokens[0]]]
    for token in tokens[1:]:
        if token == SEPARATOR:
            sentences.append([])
        sentences[-1].append(token)
    outputs = []
    for k, sentence in enumerate(sentences):
        from_image = decoder.picture_fusion(images[k])
        memories = [[(fuse(m) + from_image, ok) for m, ok in memory] for memory in memories]
        padding = [PAD] * max(0, segment_length - len(sentence))
        words = sentence + padding if released else sentence
        width = decoder.embedding_proj.out_features
        states = [
            decoder.embedding_proj(decoder.embedding.weight[word]) * math.sqrt(width)
            for word in words
        ]
        for i, layer in enumerate(decoder.layers):
            hidden = [(x, True) for x in states]
            if not released:
                hidden += [(zero, False)] * len(padding)
            end = len(memories[i]) + len(hidden)  # equation 9
            begin = max(0, end - memory_length)  # equation 10
            states = naive_layer(layer, memories[i], states, same_length=released)
            memories[i] = (memories[i] + hidden)[begin:end]  # equation 11
        outputs += states[: len(sentence)]
    return torch.stack(outputs)


STORIES = [
    [EOS, 4, 5, SEPARATOR, 6, SEPARATOR, 7, 8, 9, 10, SEPARATOR, SEPARATOR, 11],
    [EOS, SEPARATOR, 4, 4, 5, 6, 7, SEPARATOR, 9],
]


@pytest.mark.parametrize(
    ("memory_length", "segment_length"), [(3, 5), (5, 5), (6, 4), (8, 4), (11, 3)]
)
@pytest.mark.parametrize("compat", ["none", "released"])
def test_decoder_equals_the_equations_in_loops(memory_length, segment_length, compat):
    model = make_model(memory_length=memory_length, segment_length=segment_length, compat=compat)
    decoder = model.decoder
    images = torch.randn(2, 5, SIZES["picture_dim"])
    T = max(map(len, STORIES))
    tokens = torch.tensor([story + [PAD] * (T - len(story)) for story in STORIES])
    out = {"vectors": [images], "image_padding_mask": [torch.zeros(2, 5, dtype=torch.bool)]}
    with torch.no_grad():
        fast = decoder.extract_features(tokens, out)[0]
        for row, story in enumerate(STORIES):
            slow = naive_story(
                decoder,
                story,
                images[row],
                memory_length,
                segment_length,
                released=compat == "released",
            )
            assert_close(fast[row, : len(story)], slow)
            assert not fast[row, len(story) :].any()


def test_gradients_reach_former_sentences_unless_the_memory_is_detached():
    tokens = torch.tensor([[EOS, 4, SEPARATOR, 5]])
    images = torch.randn(1, 5, SIZES["picture_dim"])
    out = {"vectors": [images], "image_padding_mask": [torch.zeros(1, 5, dtype=torch.bool)]}
    for detach, expected in ((False, True), (True, False)):
        decoder = make_model(memory_length=4, segment_length=4, detach_memory=detach).decoder
        decoder.extract_features(tokens, out)[0][0, 3].sum().backward()
        assert bool(decoder.embedding.weight.grad[4].any()) is expected


def test_released_decoding_remembers_each_beginning_of_a_sentence():
    model = make_model(memory_length=5, compat="released")
    decoder = model.decoder
    tokens = torch.tensor([[EOS, 4, 5, SEPARATOR, 6], [EOS, SEPARATOR, 7, 8, 9]])
    images = torch.randn(2, 5, SIZES["picture_dim"])
    out = {"vectors": [images], "image_padding_mask": [torch.zeros(2, 5, dtype=torch.bool)]}
    state: dict = {}
    fuse, width = decoder.memory_fusion, SIZES["model_dim"]
    with torch.no_grad():
        steps = [decoder.extract_features(tokens[:, : t + 1], out, state)[0] for t in range(5)]
        for row in range(2):
            memories = [[(torch.zeros(width), True)] * 5 for _ in decoder.layers]
            sentence, number = [], -1
            for t, token in enumerate(tokens[row].tolist()):
                if token == SEPARATOR or t == 0:
                    sentence, number = [], number + 1
                    seen = decoder.picture_fusion(images[row, number])
                    memories = [[(fuse(m) + seen, True) for m, _ in memory] for memory in memories]
                sentence.append(token)
                states = list(decoder.embed(torch.tensor(sentence)))
                for i, layer in enumerate(decoder.layers):
                    hidden = [(x, True) for x in states]
                    states = naive_layer(layer, memories[i], states, same_length=True)
                    memories[i] = (memories[i] + hidden)[-5:]
                assert_close(steps[t][row, 0], states[-1])
