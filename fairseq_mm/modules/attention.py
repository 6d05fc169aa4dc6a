"""Computes scaled dot-product attention by PyTorch's fused kernel.

:class:`SourceAttention` is the attention of a convolutional decoder layer to the source text.
"""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.linear import WeightNormalized, linear, normal_linear, normalized


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the channels into heads: [B, T, heads * head_dim] -> [B, heads, T, head_dim]."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Undo :func:`split_heads`: [B, heads, T, head_dim] -> [B, T, heads * head_dim]."""
    return x.transpose(1, 2).flatten(2)


def attention_weights(
    query: Tensor, key: Tensor, attention_mask: Optional[Tensor] = None
) -> Tensor:
    """Compute attention weights ``softmax(query key^T / sqrt(head_dim))``, [..., T, S].

    The softmax is computed in float32; the result has the dtype of the query [..., T, head_dim].
    ``attention_mask`` broadcasts to [..., T, S]: bool, True where a query may attend, or numbers,
    such as ``-inf``, that are added to the scores.
    """
    # The product is in the dtype of the keys, as in the fused kernels, but the softmax in float32,
    # so that weights agree with :func:`attend`.
    scores = torch.matmul(query.to(key.dtype), key.transpose(-1, -2)).float()
    scores = scores * query.size(-1) ** -0.5
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        scores = scores + attention_mask
    elif attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    return scores.softmax(dim=-1).to(query.dtype)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor] = None,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Return the means [..., T, head_dim] of ``value`` [..., S, head_dim], weighted by attention.

    See :func:`attention_weights`. Keys and values in half precision may belong to a query in
    float32; the result has the dtype of the query. Pass a ``dropout`` of 0 in evaluation.
    """
    if key.dtype != query.dtype:
        weights = F.dropout(attention_weights(query, key, attention_mask), dropout)
        return torch.matmul(weights.to(value.dtype), value).to(query.dtype)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout
    )


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute :func:`attend` with a causal mask: query t attends to the keys 0 to t."""
    # A function of its own, because the fused kernels are faster without a mask.
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class SourceAttention(nn.Module):
    """Attention of a convolutional decoder layer with state u to the source:

        q = query(hidden(u) + e)
        u <- u + out(softmax(q k / sqrt(head_dim)) v)

    where e is the embedding of the decoder's input word. Gehring et al. 2017, section 3.3, with the
    weight-normalised projections of Fan et al. 2018's released code. The scale of the initial
    weights depends on the ``dropout`` of the layer's input.
    """

    def __init__(self, hidden_dim: int, embed_dim: int, num_heads: int, *, dropout: float) -> None:
        super().__init__()
        std = math.sqrt((1 - dropout) / hidden_dim)
        self.hidden_proj = normal_linear(hidden_dim, embed_dim, std)
        self.query_proj = WeightNormalized(embed_dim, embed_dim)
        self.key_proj = WeightNormalized(embed_dim, embed_dim)
        self.value_proj = WeightNormalized(embed_dim, embed_dim)
        self.output_proj = WeightNormalized(hidden_dim, embed_dim)
        self.num_heads = num_heads

    def project_source(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return project_sources([self], keys, values)[0]

    def forward(
        self,
        hidden: Tensor,
        embedding: Tensor,
        source: tuple[Tensor, Tensor],
        valid_mask: Optional[Tensor] = None,
        trace: Optional[list[Tensor]] = None,
    ) -> Tensor:
        """Attend from each position of the target to the source: returns new states [B, T,
        hidden_dim].

        Args:
            hidden: [B, T, hidden_dim] states of the decoder layer.
            embedding: [B, T, embed_dim] embeddings of the target's words.
            source: Keys and values, see :func:`project_sources`.
            valid_mask: [B, 1, 1, S] bool, False at padding of the source; None for no padding.
            trace: List to which the attention weights [B, heads, T, S] are appended.
        """
        B, T, _ = hidden.shape
        keys, values = source
        # Section 3.3 of Gehring et al.: the embedding of the last word tells the query which word
        # was just written.
        query = linear(hidden, self.hidden_proj.weight, self.hidden_proj.bias) + embedding
        query = linear(query, self.query_proj.weight(), self.query_proj.bias)
        query = query.view(B, T, self.num_heads, -1).transpose(1, 2)  # [B, heads, T, A]
        if trace is not None:
            trace.append(attention_weights(query, keys, valid_mask))
        context = attend(query, keys, values, valid_mask).transpose(1, 2).reshape(B, T, -1)
        # Added without the factor of root 0.5 that the layer applies to its own residual, as in the
        # released code.
        return hidden + linear(context, self.output_proj.weight(), self.output_proj.bias)

    def step(
        self,
        hidden: Tensor,
        embedding: Tensor,
        source: tuple[Tensor, Tensor],
        valid_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """Compute :meth:`forward` for the newest position only: [B, hidden_dim]."""
        return self(hidden.unsqueeze(1), embedding.unsqueeze(1), source, valid_mask).squeeze(1)


def project_sources(
    layers: list[SourceAttention], keys: Tensor, values: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Project the encoder's output to the keys and values of each layer, in two matrix products.

    Keys and values are [B, heads, S, embed_dim / heads] each. ``keys`` [B, S, embed_dim] is the
    output of the encoder's last layer, ``values`` its sum with the embeddings of the source.
    """
    B, S, _ = keys.shape
    projected = []
    for x, name in ((keys, "key_proj"), (values, "value_proj")):
        matrices = [getattr(layer, name) for layer in layers]
        bias = torch.cat([matrix.bias for matrix in matrices])
        if matrices[0].folded is not None:
            weight = torch.cat([matrix.weight() for matrix in matrices])
        else:
            parts = ([getattr(m, part) for m in matrices] for part in ("weight_v", "weight_g"))
            weight = normalized(*map(torch.cat, parts))
        heads = linear(x, weight, bias).view(B, S, len(layers), layers[0].num_heads, -1)
        projected.append(heads.permute(2, 0, 3, 1, 4).unbind(0))
    return list(zip(*projected))
