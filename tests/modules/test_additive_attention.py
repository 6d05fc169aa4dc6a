"""Additive attention beside its equation."""

import math

import torch

from fairseq_mm.modules.additive_attention import AdditiveAttention

B, N, Q, C, A, V = 2, 5, 3, 4, 6, 7


def make():
    torch.manual_seed(3)
    padding_mask = torch.zeros(B, N, dtype=torch.bool)
    padding_mask[1, [0, 3]] = True
    return AdditiveAttention(Q, C, A, V), torch.randn(B, Q), torch.randn(B, N, C), padding_mask


def test_additive_attention_equals_loops():
    module, query, elements, padding_mask = make()
    with torch.no_grad():
        context, weights = module(query, *module.project(elements), padding_mask)
    K, U, P = (
        proj.weight.tolist() for proj in (module.key_proj, module.query_proj, module.value_proj)
    )
    w = module.score_weight.tolist()

    def times(matrix, x):
        return [sum(m * float(x_j) for m, x_j in zip(row, x)) for row in matrix]

    for b in range(B):
        real = [i for i in range(N) if not padding_mask[b, i]]
        scores = {}
        for i in real:
            hidden = zip(times(K, elements[b, i]), times(U, query[b]))
            scores[i] = sum(w_a * math.tanh(k + u) for w_a, (k, u) in zip(w, hidden))
        total = sum(math.exp(s) for s in scores.values())
        expected = [math.exp(scores[i]) / total if i in scores else 0.0 for i in range(N)]
        torch.testing.assert_close(weights[b], torch.tensor(expected))
        mixture = [sum(expected[i] * float(elements[b, i, c]) for i in real) for c in range(C)]
        torch.testing.assert_close(context[b], torch.tensor(times(P, mixture)))
