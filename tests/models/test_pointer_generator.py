"""The pointer-generator against its equations in loops, and in fairseq's training and decoding."""

import math

import pytest
import torch
from fairseq.data import Dictionary
from numerics import assert_close
from toy_data import build_model, make_dictionary, video_task

from fairseq_mm.data.indexed_oov import oov_token
from fairseq_mm.models.pointer_generator import find_indexed_oov

PAD, EOS, UNK = 1, 2, 3
NUMBERED = 3


def dictionary_with_numbers():
    """16 words, and among them three indexed OOV tokens."""
    dictionary = Dictionary()
    words = make_dictionary().symbols[4:]
    for word in (*words[:5], *map(oov_token, range(NUMBERED)), *words[5:]):
        dictionary.add_symbol(word)
    return dictionary


def build(arch="pointer_generator_tiny", **options):
    dictionary = dictionary_with_numbers()
    task = video_task(source_dictionary=dictionary, target_dictionary=dictionary)
    model = build_model(arch, task, **options)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return model


SOURCE = torch.tensor([[5, 9, 6, 9, 11, EOS], [PAD, PAD, 10, 7, 10, EOS]])
TARGET = torch.tensor([[EOS, 9, 4, 11], [EOS, 10, 6, 13]])


def lstm_step(weights, x, state, cell):
    """Hochreiter and Schmidhuber's with PyTorch's order of gates."""
    input_weight, hidden_weight, input_bias, hidden_bias = weights
    gates = input_weight @ x + input_bias + hidden_weight @ state + hidden_bias
    i, f, g, o = gates.chunk(4)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def probabilities_by_the_equations(model, source, words):
    """``[T][V]`` of one row without padding, and the coverage losses."""
    encoder, decoder = model.encoder, model.decoder
    numbered = find_indexed_oov(decoder.dictionary)
    table = encoder.embedding.table.weight
    embed = lambda word: table[UNK if word in numbered else word]  # noqa: E731
    H = decoder.lstm.hidden_size
    lstm = encoder.lstm.lstm
    halves, last_states, last_cells = [], [], []
    for suffix, order in (("", source), ("_reverse", source[::-1])):
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = [getattr(lstm, name + suffix) for name in names]
        state = cell = torch.zeros(H)
        outputs = []
        for word in order:
            state, cell = lstm_step(weights, embed(word), state, cell)
            outputs.append(state)
        halves.append(outputs if not suffix else outputs[::-1])
        last_states.append(state)
        last_cells.append(cell)
    h = [torch.cat(pair) for pair in zip(*halves)]
    state = encoder.state_proj(torch.cat(last_states)).relu()
    cell = encoder.cell_proj(torch.cat(last_cells)).relu()
    attention = decoder.attention
    coverage = [0.0] * len(source)
    result, losses = [], []
    for word in words:
        x = embed(word)
        state, cell = lstm_step(list(decoder.lstm.parameters()), x, state, cell)
        scores = []
        for i in range(len(source)):
            inner = attention.key_proj.weight @ h[i] + attention.query_proj.weight @ state
            if attention.coverage_weight is not None:
                inner = inner + attention.coverage_weight * coverage[i]
            scores.append(attention.score @ (inner + attention.key_proj.bias).tanh())
        a = torch.stack(scores).softmax(0)
        context = sum(a[i] * h[i] for i in range(len(source)))
        p_gen = decoder.write_proj(torch.cat([context, state, x])).sigmoid()
        logits = decoder.output_proj(decoder.hidden_proj(torch.cat([state, context])))
        total = sum(math.exp(v) for i, v in enumerate(logits) if i not in numbered)
        p = []
        for w in range(len(decoder.dictionary)):
            p_vocab = 0.0 if w in numbered else math.exp(logits[w]) / total
            copied = sum(float(a[i]) for i in range(len(source)) if source[i] == w)
            p.append(float(p_gen) * p_vocab + (1 - float(p_gen)) * copied)
        result.append(p)
        losses.append(sum(min(float(a[i]), coverage[i]) for i in range(len(source))))
        coverage = [c + float(x) for c, x in zip(coverage, a)]
    return torch.tensor(result), torch.tensor(losses)


@pytest.mark.parametrize("coverage", [False, True])
def test_the_mixture_is_that_of_the_equations(coverage):
    model = build(coverage=coverage)
    with torch.no_grad():
        logits, extra = model(SOURCE, None, TARGET)
        for row in range(2):
            source = [int(x) for x in SOURCE[row] if x != PAD]
            expected, losses = probabilities_by_the_equations(model, source, TARGET[row].tolist())
            assert_close(logits[row].softmax(-1), expected)
            if coverage:
                torch.testing.assert_close(extra["coverage_loss"][row], losses)
    assert ("coverage_loss" in extra) == coverage
    assert extra["attn"][0].shape == (2, 4, 6)
    assert not extra["attn"][0][1, :, :2].any()


def test_an_unknown_word_that_the_transcript_does_not_have_is_not_written():
    model = build()
    numbered = find_indexed_oov(model.decoder.dictionary)
    assert numbered == [9, 10, 11]
    with torch.no_grad():
        lprobs = model.get_normalized_probs(model(SOURCE, None, TARGET), log_probs=True)
    assert (lprobs[0, :, 10] < -20).all()
    assert (lprobs[1, :, [9, 11]] < -20).all()
    assert torch.isfinite(lprobs).all()
    assert (lprobs[0, :, 9] > -10).all()


@pytest.mark.parametrize("share", [-1e4, 1e4])
def test_extreme_shares_of_copying_are_finite(share):
    model = build().half() if share < 0 else build()
    model.decoder.write_proj.bias.data.fill_(share)
    model.train()
    lprobs = model.get_normalized_probs(model(SOURCE, None, TARGET), log_probs=True)
    assert torch.isfinite(lprobs).all()
    lprobs.mean().backward()
    assert all(torch.isfinite(x.grad).all() for x in model.parameters() if x.grad is not None)
