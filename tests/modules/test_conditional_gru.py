"""The conditional GRU beside its equations."""

import torch

from fairseq_mm.models._hierarchical_rnn import ConditionalGRU

B, E, H, DIMS, LENGTHS = 3, 4, 5, (6, 7), (3, 2)


def gru(cell, x, h):
    """Cho et al. 2014 as PyTorch has it: reset, update and new gate."""
    i = (cell.weight_ih @ x + cell.bias_ih).chunk(3)
    r = (cell.weight_hh @ h + cell.bias_hh).chunk(3)
    reset, update = torch.sigmoid(i[0] + r[0]), torch.sigmoid(i[1] + r[1])
    new = torch.tanh(i[2] + reset * r[2])
    return (1 - update) * new + update * h


@torch.no_grad()
def test_a_step_equals_the_equations():
    torch.manual_seed(8)
    module = ConditionalGRU(E, H, DIMS)
    word, hidden = torch.randn(B, E), torch.randn(B, H)
    sources = [torch.randn(B, n, dim) for n, dim in zip(LENGTHS, DIMS)]
    masks = [torch.zeros(B, n, dtype=torch.bool) for n in LENGTHS]
    masks[0][1, 0] = True
    out, weights, modality_weights = module(word, hidden, module.project(sources), masks)
    for b in range(B):
        h1 = gru(module.first, word[b], hidden[b])
        contexts = []
        for m, (attention, source, mask) in enumerate(zip(module.attentions, sources, masks)):
            real = [x for x, is_padding in zip(source[b], mask[b]) if not is_padding]
            scores = torch.stack(
                [
                    attention.score_weight
                    @ torch.tanh(attention.key_proj(x) + attention.query_proj(h1))
                    for x in real
                ]
            )
            alpha = scores.exp() / scores.exp().sum()
            torch.testing.assert_close(weights[m][b][~mask[b]], alpha)
            contexts.append(attention.value_proj(sum(a * x for a, x in zip(alpha, real))))
        level = module.modality_attention
        scores = torch.stack(
            [
                level.score_weight @ torch.tanh(level.query_proj(h1) + proj(z))
                for proj, z in zip(level.context_projs, contexts)
            ]
        )
        beta = scores.exp() / scores.exp().sum()
        torch.testing.assert_close(modality_weights[b], beta)
        z = beta[0] * contexts[0] + beta[1] * contexts[1]
        torch.testing.assert_close(out[b], gru(module.second, z, h1))
