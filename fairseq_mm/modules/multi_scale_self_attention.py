"""Self-attention of Fan et al. 2018, section 3.3, with or without gates and multiple scales.

Head h of multi-scale attention, counted from 0, has stride n = h + 1: it sees positions 0, n, 2n,
... This subsampling starts at the beginning of the text, so the keys of earlier positions stay the
same while decoding and can be cached. A position sees only earlier positions, and a zero slot,
whose key and value are zero. It attends to the zero slot if it needs nothing from the past.

With the zero slot as key 0, position t of a head of stride n sees the first 1 + ceil(t / n) keys.
Positions at distances of n therefore form a sequence with ordinary causal attention. A head of
stride n is computed as n such sequences side by side, for which PyTorch's fused kernels need no
mask. On a GPU, one call with a mask for all heads is faster than these many small operations.
"""

import functools
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_mm.modules.attention import attend, attend_causally, attention_weights
from fairseq_mm.modules.linear import WeightNormalized, grouped_linear, linear, normal_linear

_FIRST_CAPACITY = 64
# Networks with more input numbers than this are computed again in the backward pass. Their hidden
# layers then take more than 20 MB; recomputing fewer would cost a small model a sixth of its time.
_RECOMPUTED_NUMBERS = 2**19


def visible_past(num_times: int, strides: list[int], device: torch.device) -> Tensor:
    """Compute the mask [heads, T, 1 + T] of the keys that each of T steps may attend to.

    Key 0 is the zero slot, which all steps see; key 1 + s belongs to step s. With stride n of a
    head, the steps 0, n, 2n, ... are keys of all later steps.
    """
    times = torch.arange(num_times, device=device)
    # Strictly before: as in the released code, a step does not see itself, so that a decoder can
    # append its key after attending.
    is_past = times.unsqueeze(0) < times.unsqueeze(1)  # [T, T]
    is_kept = times % torch.tensor(strides, device=device).unsqueeze(1) == 0  # [H, T]
    return F.pad(is_past & is_kept.unsqueeze(1), (1, 0), value=True)


def attend_to_past(query: Tensor, key: Tensor, value: Tensor, stride: int) -> Tensor:
    """Attend from each step t to the zero slot and to the steps 0, stride, 2 * stride, ... below t.

    All tensors are [B, heads, T, head_dim].
    """
    B, heads, T, A = query.shape
    # Ceiling division: the longest past of a head, and the zero slot.
    length = 1 + -(-(T - 1) // stride)
    sampled = [
        F.pad(x[:, :, : (length - 1) * stride : stride], (0, 0, 1, 0)) for x in (key, value)
    ]  # [B, heads, length, A]
    if stride == 1:
        return attend_causally(query, sampled[0], sampled[1])
    # step t is cell t + n - 1 of a grid with `length` rows and n columns; each column is a sequence
    first = stride - 1
    grid = F.pad(query, (0, 0, first, length * stride - T - first))
    sequences = grid.view(B, heads, length, stride, A).transpose(2, 3).flatten(1, 2)
    keys, values = (x.repeat_interleave(stride, dim=1) for x in sampled)
    out = attend_causally(sequences, keys, values)  # [B, heads n, length, A]
    out = out.view(B, heads, stride, length, A).transpose(2, 3).reshape(B, heads, -1, A)
    return out[:, :, first : first + T]


# one table for all layers and for all texts up to a length
@functools.lru_cache(maxsize=8)
def _past_bias(
    capacity: int, strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the bias [heads, capacity, capacity]: 0 where a step may attend to a key, else -inf.

    PyTorch's fused kernels need rows that begin at multiples of eight numbers.
    """
    mask = visible_past(capacity, list(strides), torch.device("cpu"))[:, :, :capacity]
    bias = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, float("-inf"))
    return bias.to(device, non_blocking=True)


class RowTimes:
    """Numbers of earlier steps [B], for rows that have joined the batch at different steps."""

    def __init__(self, times: Tensor) -> None:
        self.times = times
        self._masks: dict[tuple[int, int], Tensor] = {}

    def count_keys(self, stride: int) -> Tensor:
        return 1 + torch.div(self.times + stride - 1, stride, rounding_mode="floor")

    def mask(self, stride: int, num_keys: int) -> Tensor:
        """Return a mask [B, 1, 1, num_keys], True at the keys that a row sees."""
        # Computed once for all layers of a step.
        if (stride, num_keys) not in self._masks:
            places = torch.arange(num_keys, device=self.times.device)
            is_seen = places < self.count_keys(stride).unsqueeze(1)
            self._masks[stride, num_keys] = is_seen[:, None, None]
        return self._masks[stride, num_keys]


class KeyValueCache:
    """Keys and values of one layer during decoding; each stride has ``num_heads`` heads.

    Attributes:
        num_times: Number of cached steps of the longest row.
        scales: Keys and values [2, B, num_heads, capacity, head_dim] of each stride; the first of
            the ``capacity`` positions holds zeros.
    """

    def __init__(self, strides: list[int], num_heads: int, head_dim: int) -> None:
        self.strides = strides
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_times = 0
        self.scales: list[Tensor] = []

    def count_keys(self, scale: int) -> int:
        """Return the number of cached keys of a stride, with the key of zeros."""
        return 1 + -(-self.num_times // self.strides[scale])

    def append(self, entries: Tensor, times: Optional[RowTimes] = None) -> None:
        """Append keys and values [2, B, heads, head_dim] of the newest step; heads of the first
        stride first.

        ``times`` is None if all rows have equally many earlier steps.
        """
        if not self.scales:
            shape = (2, entries.size(1), self.num_heads, _FIRST_CAPACITY, self.head_dim)
            self.scales = [entries.new_zeros(shape) for _ in self.strides]
        for number, entry in enumerate(entries.split(self.num_heads, dim=2)):
            # Step s is a key of stride n only if n divides s: subsampling is anchored at the
            # beginning of the text, so old keys never change.
            if times is None and self.num_times % self.strides[number]:
                continue
            place = self.count_keys(number)
            if place == self.scales[number].size(3):
                # Doubling copies each position at most twice on average.
                self.scales[number] = F.pad(self.scales[number], (0, 0, 0, place))
            if times is None:
                self.scales[number][:, :, :, place] = entry
                continue
            # A step that is no key of this stride is written as well, behind the keys that its row
            # sees, where the row's next key will replace it.
            places = times.count_keys(self.strides[number])
            rows = torch.arange(len(places), device=places.device)
            self.scales[number][:, rows, :, places] = entry.transpose(0, 1)
        self.num_times += 1

    def join(self, other: "KeyValueCache") -> None:
        """Append the batch rows of another cache, which may have more or fewer steps."""
        num_times = max(self.num_times, other.num_times)
        for number, (ours, theirs) in enumerate(zip(self.scales, other.scales)):
            shape = list(ours.shape)
            shape[1] += theirs.size(1)
            shape[3] = max(shape[3], theirs.size(3))
            joined, first = ours.new_zeros(shape), 0
            for cache, scale in ((self, ours), (other, theirs)):
                used, last = cache.count_keys(number), first + scale.size(1)
                joined[:, first:last, :, :used] = scale[:, :, :, :used]
                first = last
            self.scales[number] = joined
        self.num_times = num_times

    def reorder(self, new_order: Tensor) -> None:
        for number, scale in enumerate(self.scales):
            if new_order.is_cuda:
                # Copying the unused part takes less time than two more operations.
                self.scales[number] = scale.index_select(1, new_order)
                continue
            used = self.count_keys(number)
            # Only the used part is copied. The rest must be zeros all the same: slot 0 is never
            # written, it is the zero slot itself.
            reordered = scale.new_zeros(2, len(new_order), *scale.shape[2:])
            reordered[:, :, :, :used] = scale[:, :, :, :used].index_select(1, new_order)
            self.scales[number] = reordered


class MultiScaleSelfAttention(nn.Module):
    """Self-attention layer ``LayerNorm(x + out(attention of x to earlier positions))``.

    Fan et al. 2018, section 3.3.

    Args:
        hidden_dim: Channels of the layer.
        embed_dim: Channels of queries, keys and values, divided between the heads.
        is_gated: True to compute queries, keys and values by networks of three layers with gated
            linear units between them; False for networks of one layer.
        is_multi_scale: True to give each head its own networks and its own stride. False if every
            head sees all earlier positions, and the heads divide the channels of common networks.
    """

    def __init__(
        self,
        hidden_dim: int,
        embed_dim: int,
        num_heads: int,
        *,
        is_gated: bool,
        is_multi_scale: bool,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.is_gated = is_gated
        self.head_dim = embed_dim // num_heads
        # Section 3.3: the first head sees the full input, the second every other step, the third
        # every third.
        self.strides = list(range(1, num_heads + 1)) if is_multi_scale else [1]
        # Gehring et al. 2017, section 3.5, without the dropout that the other layers of this model
        # have on their inputs.
        self.input_proj = normal_linear(hidden_dim, 3 * embed_dim, hidden_dim**-0.5)
        networks = 3 * num_heads if is_multi_scale else 3
        width = self.head_dim if is_multi_scale else embed_dim
        shapes = [(width, embed_dim)]
        if is_gated:
            shapes = [(4 * width, embed_dim), (2 * width, 2 * width), (width, width)]
        self.networks: Any = nn.ModuleList(WeightNormalized(networks, *shape) for shape in shapes)
        # Matrices of the first layer for queries, keys and values; None before :meth:`fold`.
        self.query_weight: Optional[Tensor] = None
        self.key_weight: Optional[Tensor] = None
        self.value_weight: Optional[Tensor] = None
        self.head_proj = None
        if is_multi_scale:
            self.head_proj = WeightNormalized(num_heads, self.head_dim, self.head_dim)
        self.output_proj = WeightNormalized(hidden_dim, embed_dim)
        self.norm = nn.LayerNorm(hidden_dim)

    def forward(self, x: Tensor, trace: Optional[list[Tensor]] = None) -> Tensor:
        """Compute the layer: [B, T, hidden_dim] -> [B, T, hidden_dim].

        The attention weights [B, heads, T, 1 + T] are appended to the list ``trace``, if it is
        given.
        """
        B, T, _ = x.shape
        rows = linear(x, self.input_proj.weight, self.input_proj.bias).view(B * T, -1)  # [BT, 3 E]
        weights = [network.weight() for network in self.networks]
        is_large = rows.dtype == torch.float32 and rows.numel() > _RECOMPUTED_NUMBERS
        if self.is_gated and is_large and not rows.is_cuda and torch.is_grad_enabled():
            # the networks' hidden layers need most of a decoder's memory, but only a fifth of its
            # time, so they are recomputed in the backward pass; on a GPU, the time to start their
            # operations would be needed twice
            projected = checkpoint(
                self._project, rows, weights, use_reentrant=False, preserve_rng_state=False
            )
        else:
            projected = self._project(rows, weights)
        projected = projected.view(3, B, T, self.num_heads, self.head_dim)
        query, key, value = projected.transpose(2, 3).unbind(0)  # [B, H, T, A]
        if trace is not None:
            attention_mask = visible_past(T, self.strides, x.device)
            # Fused kernels return no weights, so they are computed a second time where somebody
            # wants to see them.
            trace.append(attention_weights(query, F.pad(key, (0, 0, 1, 0)), attention_mask))
        if x.is_cuda and len(self.strides) > 1:
            # one call for the heads of all strides
            capacity = max(64, 1 << T.bit_length())  # a power of two, so that there are few tables
            bias = _past_bias(capacity, tuple(self.strides), query.dtype, query.device)
            key, value = F.pad(torch.stack([key, value]), (0, 0, 1, 0)).unbind(0)
            heads = attend(query, key, value, bias[:, :T, : 1 + T].unsqueeze(0))
        else:
            count = self.num_heads // len(self.strides)
            scales = zip(self.strides, *(x.split(count, dim=1) for x in (query, key, value)))
            heads = torch.cat([attend_to_past(q, k, v, n) for n, q, k, v in scales], dim=1)
        return self._join(heads.transpose(1, 2).flatten(0, 1), x)

    def fold(self) -> None:
        self.networks[0].fold()
        matrices = self.networks[0].weight()
        # Tensors of their own, because a part of a tensor cannot be packed.
        parts = matrices.view(3, -1, matrices.size(-1))
        self.query_weight, self.key_weight, self.value_weight = (part.clone() for part in parts)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "MultiScaleSelfAttention":
        super()._apply(fn, *args, **kwargs)
        # Moving or casting reaches only parameters and buffers.
        if self.query_weight is not None:
            self.fold()
        return self

    def new_cache(self) -> KeyValueCache:
        return KeyValueCache(self.strides, self.num_heads // len(self.strides), self.head_dim)

    def step(self, x: Tensor, cache: KeyValueCache, times: Optional[RowTimes] = None) -> Tensor:
        """Compute the layer at the newest step, [B, hidden_dim], and append its keys and values."""
        rows = linear(x, self.input_proj.weight, self.input_proj.bias)
        weights = [network.weight() for network in self.networks]
        projected = self._project(rows, weights)  # [3, B, H, A]
        query = projected[0]
        if cache.num_times:
            heads = []
            queries = query.split(cache.num_heads, dim=1)
            for number, (scale_query, scale) in enumerate(zip(queries, cache.scales)):
                used = cache.count_keys(number)
                mask = None if times is None else times.mask(self.strides[number], used)
                keys, values = scale[:, :, :, :used].unbind(0)
                heads.append(attend(scale_query.unsqueeze(2), keys, values, mask).squeeze(2))
            context = torch.cat(heads, dim=1)  # [B, H, A]
        else:
            # If the zero slot is the only key, its weight is 1 and its value 0; an empty cache has
            # no tensors.
            context = torch.zeros_like(query)
        # After attending, because a step does not see itself.
        cache.append(projected[1:], times)
        return self._join(context, x)

    def _project(self, rows: Tensor, weights: list[Tensor]) -> Tensor:
        """Compute queries, keys and values of N positions, [3, N, heads, head_dim].

        ``rows`` [N, 3 * embed_dim] has the inputs of their networks side by side, ``weights`` the
        matrices of ``self.networks``.
        """
        N = rows.size(0)
        # Heads of a kind share their input, so their matrices make one wide product.
        first = weights[0].view(3, -1, weights[0].size(-1))
        bias = self.networks[0].bias.view(3, -1)
        if rows.is_cuda:
            maps = grouped_linear(rows.view(N, 3, -1).transpose(0, 1), first, bias)
        else:
            folded = self.query_weight, self.key_weight, self.value_weight
            matrices: Any = first if self.query_weight is None else folded
            kinds = zip(rows.chunk(3, dim=1), matrices, bias)
            maps = torch.stack([linear(x, matrix, b) for x, matrix, b in kinds])
        for network, weight in list(zip(self.networks, weights))[1:]:
            maps = F.glu(self._by_network(maps, len(network.bias)), dim=2)
            maps = grouped_linear(maps, weight, network.bias)
        maps = self._by_network(maps, 3 * len(self.strides))  # [3 strides, N, heads A]
        maps = maps.view(3, len(self.strides), N, -1, self.head_dim).transpose(1, 2)
        return maps.flatten(2, 3)

    def _join(self, heads: Tensor, x: Tensor) -> Tensor:
        if self.head_proj is not None:
            weight, bias = self.head_proj.weight(), self.head_proj.bias
            heads = grouped_linear(heads.transpose(0, 1), weight, bias).transpose(0, 1)
        out = linear(heads.flatten(1), self.output_proj.weight(), self.output_proj.bias)
        return self.norm(out.view_as(x) + x)

    @staticmethod
    def _by_network(rows: Tensor, networks: int) -> Tensor:
        """Split channels among small networks: [groups, N, C] -> [networks, N, groups * C /
        networks].
        """
        G, B, _ = rows.shape
        return rows.view(G, B, networks // G, -1).transpose(1, 2).flatten(0, 1)
