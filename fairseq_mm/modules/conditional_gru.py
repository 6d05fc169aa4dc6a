"""Computes a decoder step of two GRUs with hierarchical attention between them.

The first level of attention is to the elements of each modality, the second to the modalities.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fairseq_mm.modules.additive_attention import AdditiveAttention, ModalityAttention
from fairseq_mm.modules.recurrent_steps import step_gru


class ConditionalGRU(nn.Module):
    """Conditional GRU with one source per modality m:

        h1 = GRU_1(word, h)
        z_m = attention_m(h1)
        z = sum_m b_m z_m
        h2 = GRU_2(z, h1)

    where h is the state after the previous word, h2 the new state, z_m the context of modality m
    (its elements, weighted by attention), and b_m the attention weight of modality m. Firat and
    Cho 2016 (dl4mt-tutorial, one source); Libovicky and Helcl 2017, section 3.2.

    Args:
        input_dim: Dimension of the word vectors.
        hidden_dim: Dimension of states, hidden layers of the attentions, and contexts.
        source_dims: Dimension of the elements of each modality.
    """

    def __init__(self, input_dim: int, hidden_dim: int, source_dims: Sequence[int]) -> None:
        super().__init__()
        self.first = nn.GRUCell(input_dim, hidden_dim)
        self.attentions: Any = nn.ModuleList(
            AdditiveAttention(hidden_dim, dim, hidden_dim, hidden_dim) for dim in source_dims
        )
        self.modality_attention = ModalityAttention(
            hidden_dim, hidden_dim, hidden_dim, num_modalities=len(source_dims)
        )
        self.second = nn.GRUCell(hidden_dim, hidden_dim)

    def project(self, sources: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Compute each modality's keys and values from its elements [B, N, C], once per batch."""
        return [attention.project(x) for attention, x in zip(self.attentions, sources)]

    def forward(
        self,
        word: Tensor,
        hidden: Tensor,
        projected: Sequence[tuple[Tensor, Tensor]],
        padding_masks: Sequence[Tensor],
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute the state of the decoder after one word.

        Args:
            word: [B, input_dim] vector of the word.
            hidden: [B, hidden_dim] state after the previous word.
            projected: Result of :meth:`project`.
            padding_masks: [B, N] bool for each modality, True at padding.

        Returns:
            The new state [B, hidden_dim], the attention weights [B, N] over the elements of each
                modality, and the weights [B, modalities] of the modalities.
        """
        hidden = step_gru(self.first, word, hidden)
        contexts, weights = [], []
        for attention, source, mask in zip(self.attentions, projected, padding_masks):
            context, weight = attention(hidden, *source, mask)
            contexts.append(context)
            weights.append(weight)
        context, modality_weights = self.modality_attention(hidden, contexts)
        return step_gru(self.second, context, hidden), weights, modality_weights
