"""The fast choice of the most probable words against ``topk`` and fairseq's beam search."""

import math

import pytest
import torch
from fairseq import search as fairseq_search
from fairseq.data import Dictionary

from fairseq_mm.generation.beam_search import BeamSearch, top_words

DICTIONARY = Dictionary()
# vocabularies that are compared word by word, in whole blocks, and in blocks with a rest
SIZES = [7, 1000, 4096, 5003]


@pytest.mark.parametrize("shape", [(3,), (2, 4)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 6])
def test_top_words_are_those_of_topk(size, k, shape):
    scores = torch.randn(*shape, size)
    # a rest of forbidden words, and a best word at the very end
    scores[..., size // 2 : -1] = -math.inf
    scores[0, ..., -1] = 9
    expected = scores.topk(k)
    values, words = top_words(scores, k)
    assert torch.equal(values, expected.values)
    is_finite = values > -math.inf
    assert torch.equal(words[is_finite], expected.indices[is_finite])
    assert torch.equal(scores.gather(-1, words), values)


def test_blocks_are_used(monkeypatch):
    seen = []
    original = torch.Tensor.topk
    monkeypatch.setattr(
        torch.Tensor, "topk", lambda x, *a, **k: seen.append(x.size(-1)) or original(x, *a, **k)
    )
    top_words(torch.randn(2, SIZES[-1]), 6)
    assert seen == [5003 // 32, 6 * 32 + 5003 % 32]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("step", [0, 2])
def test_beam_search_is_fairseqs(size, beam, step):
    torch.manual_seed(size)
    lprobs = torch.randn(4, beam, size).log_softmax(dim=2)
    if step == 0:
        # fairseq's beams are equal at the first step
        lprobs = lprobs[:, :1].expand(-1, beam, -1).contiguous()
    lprobs[:, :, 1] = -math.inf
    scores = -3 * torch.rand(4, beam, 5)
    scores[0, 0, step - 1] = -math.inf  # a beam that has ended
    ours = BeamSearch(DICTIONARY).step(step, lprobs.clone(), scores)
    theirs = fairseq_search.BeamSearch(DICTIONARY).step(step, lprobs.clone(), scores)
    assert torch.equal(ours[0], theirs[0])
    is_finite = ours[0] > -math.inf
    for mine, other in zip(ours[1:], theirs[1:]):
        assert mine.dtype == other.dtype
        assert torch.equal(mine[is_finite], other[is_finite])
