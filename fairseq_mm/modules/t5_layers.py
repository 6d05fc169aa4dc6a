"""Layers of T5: attention, feed-forward layer, RMS norm and relative position bias."""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.attention import merge_heads, split_heads
from fairseq_mm.modules.linear import linear

# On a GPU, rms_norm is a single kernel since PyTorch 2.9, which computes in float32 for inputs in
# half precision. On a CPU, it has as many operations as here.
_HAS_RMS_KERNEL = hasattr(torch, "_fused_rms_norm")
_HALF = (torch.float16, torch.bfloat16)
# Divisor of queries in half precision, because unscaled scores may leave the range of float16. It
# is a power of two, so that nothing is rounded.
_SCORE_SCALE = 8.0


def attend_unscaled(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor], dropout: float = 0.0
) -> Tensor:
    """Compute ``softmax(query key^T + bias) value``, with the softmax in float32.

    Query is [B, heads, T, head_dim], key and value are [B, heads, S, head_dim]. ``bias`` broadcasts
    to [B, heads, T, S] and is ``-inf`` at masked keys. Keys and values in half precision may belong
    to a query in float32; the result has the dtype of the query.
    """
    is_half_on_cpu = query.dtype in _HALF and query.device.type == "cpu"
    is_mixed = key.dtype != query.dtype
    if not is_half_on_cpu and not is_mixed:
        if bias is not None:
            # The fused kernel refuses a bias of another dtype than the query.
            bias = bias.to(query.dtype)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=dropout, scale=1.0
        )
    if query.dtype in _HALF:
        scores = torch.matmul(query / _SCORE_SCALE, key.transpose(-1, -2)).float() * _SCORE_SCALE
    else:
        scores = torch.matmul(query.to(key.dtype), key.transpose(-1, -2)).to(query.dtype)
    if bias is not None:
        scores = scores + bias
    weights = F.dropout(scores.softmax(dim=-1), dropout, dropout > 0)
    return torch.matmul(weights.to(value.dtype), value).to(query.dtype)


class T5Attention(nn.Module):
    """Multi-head attention without scaling and without biases (Raffel et al. 2020, section 2.1).

    ``head_dim`` may differ from ``dim / num_heads``.
    """

    def __init__(self, dim: int, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        inner_dim = num_heads * head_dim
        self.query_proj = nn.Linear(dim, inner_dim, bias=False)
        self.key_proj = nn.Linear(dim, inner_dim, bias=False)
        self.value_proj = nn.Linear(dim, inner_dim, bias=False)
        self.output_proj = nn.Linear(inner_dim, dim, bias=False)
        # scores are not divided by sqrt(head_dim), so the initial queries are smaller instead
        nn.init.normal_(self.query_proj.weight, std=(dim * head_dim) ** -0.5)
        nn.init.normal_(self.key_proj.weight, std=dim**-0.5)
        nn.init.normal_(self.value_proj.weight, std=dim**-0.5)
        nn.init.normal_(self.output_proj.weight, std=inner_dim**-0.5)

    def queries(self, x: Tensor) -> Tensor:
        """Project x [B, T, dim] to queries [B, heads, T, head_dim]."""
        return split_heads(linear(x, self.query_proj.weight), self.num_heads)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project x [B, S, dim] to keys and values, [B, heads, S, head_dim] each."""
        return (
            split_heads(linear(x, self.key_proj.weight), self.num_heads),
            split_heads(linear(x, self.value_proj.weight), self.num_heads),
        )

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor]) -> Tensor:
        """Compute :func:`attend_unscaled`, and project the result to [B, T, dim]."""
        dropout = self.dropout if self.training else 0.0
        attended = merge_heads(attend_unscaled(query, key, value, bias, dropout))
        return linear(attended, self.output_proj.weight)


# Scale of the inner layer in float16, because T5's outputs exceed its largest number. It is a power
# of two, so only numbers close to zero are rounded.
_INNER_SCALE = 16.0


class T5FeedForward(nn.Module):
    """Feed-forward layer ``W_o relu(W_i x)`` (Raffel et al. 2020, section 2.1).

    With ``gated``, it is ``W_o (gelu(W_g x) * W_i x)`` (Shazeer 2020), where GELU is approximated
    with tanh.
    """

    def __init__(self, dim: int, inner_dim: int, dropout: float, *, gated: bool) -> None:
        super().__init__()
        self.inner_proj = nn.Linear(dim, inner_dim, bias=False)
        self.gate_proj = nn.Linear(dim, inner_dim, bias=False) if gated else None
        self.output_proj = nn.Linear(inner_dim, dim, bias=False)
        self.dropout = dropout
        nn.init.normal_(self.inner_proj.weight, std=dim**-0.5)
        if self.gate_proj is not None:
            nn.init.normal_(self.gate_proj.weight, std=dim**-0.5)
        nn.init.normal_(self.output_proj.weight, std=inner_dim**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer: [..., dim] -> [..., dim]; the output is float32 for float16 inputs."""
        inner = linear(x, self.inner_proj.weight)
        if self.gate_proj is None:
            inner = F.relu(inner)
        else:
            gate = F.gelu(linear(x, self.gate_proj.weight), approximate="tanh")
            if inner.dtype == torch.float16:
                # The gate is scaled before the product: gate times inner is the number that leaves
                # the range.
                gate = gate / _INNER_SCALE
            inner = gate * inner
        inner = F.dropout(inner, self.dropout, self.training)
        if inner.dtype != torch.float16:
            return linear(inner, self.output_proj.weight)
        if self.gate_proj is None:
            inner = inner / _INNER_SCALE
        return linear(inner, self.output_proj.weight).float() * _INNER_SCALE


class RMSNorm(nn.Module):
    """Root mean square norm ``weight x / sqrt(mean(x^2) + epsilon)``, without mean and bias.

    Raffel et al. 2020, section 2.1; Zhang and Sennrich 2019. Computed in float32.
    """

    def __init__(self, dim: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., dim] of any dtype; the result has the dtype of the weight."""
        if x.is_cuda and _HAS_RMS_KERNEL and x.dtype == self.weight.dtype == torch.bfloat16:
            return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
        x = x.float()
        if x.is_cuda:
            weight = self.weight.float()
            return F.rms_norm(x, weight.shape, weight, self.epsilon).to(self.weight.dtype)
        # The square of a value above 256 is infinite in float16.
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.epsilon)
        return self.weight * (x * scale).to(self.weight.dtype)


def relative_buckets(
    offsets: Tensor, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> Tensor:
    """Compute the bucket of each distance between two tokens (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each. The others hold ranges that grow logarithmically up
    to ``max_distance``; the last bucket also holds all larger distances. ``offsets`` [...] are key
    minus query positions. With ``bidirectional``, half of the buckets are for keys after the query;
    otherwise these count as distance 0.
    """
    if bidirectional:
        num_buckets //= 2
        first = (offsets > 0).long() * num_buckets
        distances = offsets.abs()
    else:
        first = torch.zeros_like(offsets)
        # Later keys are masked in a decoder; they only need some valid bucket.
        distances = (-offsets).clamp(min=0)
    num_exact = num_buckets // 2
    # in float32, as the published models were trained: rounding decides the bucket of a distance on
    # the border of two ranges
    shares = torch.log(distances.clamp(min=1).float() / num_exact)
    shares = shares / math.log(max_distance / num_exact) * (num_buckets - num_exact)
    ranges = (num_exact + shares.long()).clamp(max=num_buckets - 1)
    return first + torch.where(distances < num_exact, distances, ranges)


class RelativeBias(nn.Module):
    """Learned attention bias for each head and each bucket of distances, for all layers."""

    def __init__(
        self, num_buckets: int, num_heads: int, *, max_distance: int, bidirectional: bool
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def _look_up(self, offsets: Tensor) -> Tensor:
        buckets = relative_buckets(
            offsets,
            bidirectional=self.bidirectional,
            num_buckets=len(self.weight),
            max_distance=self.max_distance,
        )
        return F.embedding(buckets, self.weight).t()

    def forward(self, length: int) -> Tensor:
        """Return the biases [1, heads, length, length] of ``length`` queries and as many keys."""
        offsets = torch.arange(1 - length, length, device=self.weight.device)
        # window i begins at offset i + 1 - length, the first offset of query length - 1 - i
        # There are only 2 length - 1 different biases, so they are looked up once and viewed as a
        # matrix.
        windows = self._look_up(offsets).unfold(-1, length, 1)
        return windows.flip(1).unsqueeze(0)

    def newest(self, length: int) -> Tensor:
        """Return the biases [heads, length] of ``length`` keys for a query at the last position."""
        return self._look_up(torch.arange(1 - length, 1, device=self.weight.device))
