"""Attention over modalities beside its equation."""

import math

import torch

from fairseq_mm.modules.additive_attention import ModalityAttention

B, T, M, Q, C, A = 2, 4, 3, 5, 6, 7


def make():
    torch.manual_seed(4)
    module = ModalityAttention(Q, C, A, num_modalities=M)
    return module, torch.randn(B, T, Q), [torch.randn(B, T, C) for _ in range(M)]


def test_modality_attention_equals_loops():
    module, query, contexts = make()
    with torch.no_grad():
        out, weights = module(query, contexts)
    v = module.score_weight.tolist()
    for b in range(B):
        for t in range(T):
            scores = []
            for m in range(M):
                inner = (
                    module.query_proj.weight @ query[b, t]
                    + module.query_proj.bias
                    + module.context_projs[m].weight @ contexts[m][b, t]
                ).tolist()
                scores.append(sum(v_a * math.tanh(x) for v_a, x in zip(v, inner)))
            total = sum(math.exp(s) for s in scores)
            betas = [math.exp(s) / total for s in scores]
            torch.testing.assert_close(weights[b, t], torch.tensor(betas))
            expected = sum(beta * z[b, t] for beta, z in zip(betas, contexts))
            torch.testing.assert_close(out[b, t], expected)
