"""The mixture of generating and copying: See et al. 2017, equation 9, word by word."""

import torch

from fairseq_mm.models.pointer_generator import first_positions, mixture_logits


def naive_mixture(logits, write_score, attention, tokens, only_copied):
    B, T, V = logits.shape
    P = torch.zeros(B, T, V, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            scores = logits[b, t].double().clone()
            scores[only_copied] = float("-inf")
            p_gen = torch.sigmoid(write_score[b, t].double())
            P[b, t] = p_gen * scores.softmax(0)
            for weight, token in zip(attention[b, t].double(), tokens[b]):
                P[b, t, token] += (1 - p_gen) * weight
    return P


def test_the_softmax_is_the_papers_mixture():
    torch.manual_seed(1)
    logits, write_score = torch.randn(2, 3, 7) * 3, torch.randn(2, 3) * 2
    tokens = torch.tensor([[3, 1, 3, 6], [5, 5, 2, 0]])  # words that stand twice; the last: padding
    attention = torch.rand(2, 3, 4)
    attention[1, :, 3] = 0
    attention = attention / attention.sum(2, keepdim=True)
    for only_copied in (torch.tensor([], dtype=torch.long), torch.tensor([6])):
        found = mixture_logits(
            logits, write_score, attention, tokens, first_positions(tokens), only_copied
        )
        expected = naive_mixture(logits, write_score, attention, tokens, only_copied)
        assert torch.allclose(found.double().softmax(2), expected, atol=1e-6)


def test_first_positions_of_repeated_words():
    tokens = torch.tensor([[4, 4, 2, 4, 2]])
    assert first_positions(tokens).tolist() == [[0, 0, 2, 0, 2]]
