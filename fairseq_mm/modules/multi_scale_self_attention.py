"""Gated multi-scale self-attention of Fan et al. 2018, section 3.3, and its simpler relatives.

Head h of ``multi-scale`` attention sees every (h+1)th position: 0, h + 1, 2 (h + 1), ... Since the
subsampling is anchored at the beginning, a position is a key of a head for ever or never, and its
projections can be kept. A position sees those strictly before it, and a slot whose key and value
are zero: attending there, it takes nothing from the past.

With the zero slot as key 0, a position t of a head of stride n sees the first 1 + ceil(t / n) keys.
So every nth position makes up a sequence whose attention is causal as usual: a stride is n such
sequences side by side, which PyTorch's fused kernels take without a mask.
"""

from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_mm.modules.attention import attend, attend_causally, attention_weights
from fairseq_mm.modules.linear import WeightNormalized, grouped_linear, linear

_FIRST_CAPACITY = 64


def visible_past(num_times: int, strides: list[int], device: torch.device) -> Tensor:
    """Compute the mask of the keys that each step may attend to.

    Args:
        num_times: T.
        strides: Stride of each head; one stride if all are equal.
        device: Device of the mask.

    Returns:
        [len(strides), T, 1 + T] bool. Key 0 is the zero slot, key 1 + s is step s.
    """
    times = torch.arange(num_times, device=device)
    is_past = times.unsqueeze(0) < times.unsqueeze(1)  # [T, T]
    is_kept = times % torch.tensor(strides, device=device).unsqueeze(1) == 0  # [H, T]
    return F.pad(is_past & is_kept.unsqueeze(1), (1, 0), value=True)


def attend_to_past(query: Tensor, key: Tensor, value: Tensor, stride: int) -> Tensor:
    """Attention of each time to the zero slot and to every ``stride``-th time before it.

    Args:
        query: ``[B, heads, T, A]``.
        key: ``[B, heads, T, A]``.
        value: ``[B, heads, T, A]``.
        stride: n.

    Returns:
        ``[B, heads, T, A]``.
    """
    B, heads, T, A = query.shape
    length = 1 + -(-(T - 1) // stride)  # of the sequences: the longest past, and the zero slot
    kept = [
        F.pad(x[:, :, : (length - 1) * stride : stride], (0, 0, 1, 0)) for x in (key, value)
    ]  # [B, heads, length, A]
    if stride == 1:
        return attend_causally(query, kept[0], kept[1])
    # time t is place t + n - 1 in a grid of `length` rows and n columns, a column a sequence
    first = stride - 1
    grid = F.pad(query, (0, 0, first, length * stride - T - first))
    sequences = grid.view(B, heads, length, stride, A).transpose(2, 3).flatten(1, 2)
    keys, values = (x.repeat_interleave(stride, dim=1) for x in kept)
    out = attend_causally(sequences, keys, values)  # [B, heads n, length, A]
    out = out.view(B, heads, stride, length, A).transpose(2, 3).reshape(B, heads, -1, A)
    return out[:, :, first : first + T]


class Scale(NamedTuple):
    """Keys and values of the heads of one stride, the zero slot first.

    Attributes:
        keys: [B, heads, capacity, A].
        values: [B, heads, capacity, A].
    """

    keys: Tensor
    values: Tensor


class KeyValueCache:
    """Past of one layer during decoding: for each stride, the positions that its heads may attend
    to.

    Args:
        strides: One stride per entry.
        num_heads: Number of heads of each entry.
        head_dim: A.
    """

    def __init__(self, strides: list[int], num_heads: int, head_dim: int) -> None:
        self.strides = strides
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_times = 0
        self.scales: list[Scale] = []

    def visible(self, scale: int) -> int:
        """Number of keys of an entry, the zero slot included."""
        return 1 + -(-self.num_times // self.strides[scale])

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Append the newest step.

        Args:
            keys: [B, entries x heads, A].
            values: [B, entries x heads, A].
        """
        if not self.scales:
            shape = (keys.size(0), self.num_heads, _FIRST_CAPACITY, self.head_dim)
            self.scales = [
                Scale(keys.new_zeros(shape), keys.new_zeros(shape)) for _ in self.strides
            ]
        of_scale = zip(keys.split(self.num_heads, dim=1), values.split(self.num_heads, dim=1))
        for number, (key, value) in enumerate(of_scale):
            if self.num_times % self.strides[number] == 0:
                self._put(number, self.visible(number), key, value)
        self.num_times += 1

    def _put(self, number: int, place: int, key: Tensor, value: Tensor) -> None:
        scale = self.scales[number]
        capacity = scale.keys.size(2)
        if place == capacity:  # doubled, so that each position is copied twice at most
            scale = Scale(*(F.pad(x, (0, 0, 0, capacity)) for x in scale))
            self.scales[number] = scale
        scale.keys[:, :, place] = key
        scale.values[:, :, place] = value

    def reorder(self, new_order: Tensor) -> None:
        for number, scale in enumerate(self.scales):
            used = self.visible(number)
            reordered = [x.new_zeros(len(new_order), *x.shape[1:]) for x in scale]
            for x, source in zip(reordered, scale):
                x[:, :, :used] = source[:, :, :used].index_select(0, new_order)
            self.scales[number] = Scale(*reordered)


class MultiScaleSelfAttention(nn.Module):
    """``LayerNorm(x + out(attention of x to its past))``.

    Args:
        hidden_dim: C, channels of the layer.
        embed_dim: E, channels of queries, keys and values, divided between the heads.
        num_heads: H.
        is_gated: queries, keys and values pass three layers with gated linear units between them
            instead of one.
        is_multi_scale: each head has its own stride and its own layers; else all positions are
            keys, and the heads divide the output of common layers.
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
        self.strides = list(range(1, num_heads + 1)) if is_multi_scale else [1]
        self.input_proj = nn.Linear(hidden_dim, 3 * embed_dim)
        nn.init.normal_(self.input_proj.weight, std=hidden_dim**-0.5)
        nn.init.zeros_(self.input_proj.bias)
        # networks of queries, keys and values, each of all heads or one for each head
        networks = 3 * num_heads if is_multi_scale else 3
        width = self.head_dim if is_multi_scale else embed_dim
        shapes = [(width, embed_dim)]
        if is_gated:
            shapes = [(4 * width, embed_dim), (2 * width, 2 * width), (width, width)]
        self.networks: Any = nn.ModuleList(WeightNormalized(networks, *shape) for shape in shapes)
        self.head_proj = None
        if is_multi_scale:
            self.head_proj = WeightNormalized(num_heads, self.head_dim, self.head_dim)
        self.output_proj = WeightNormalized(hidden_dim, embed_dim)
        self.norm = nn.LayerNorm(hidden_dim)

    def forward(self, x: Tensor, trace: Optional[list[Tensor]] = None) -> Tensor:
        """
        Args:
            x: ``[B, T, C]``.
            trace: gets the weights ``[B, H, T, 1 + T]``, the zero slot's first.

        Returns:
            ``[B, T, C]``.
        """
        B, T, _ = x.shape
        rows = linear(x, self.input_proj.weight, self.input_proj.bias).view(B * T, -1)  # [BT, 3 E]
        if self.is_gated and rows.dtype == torch.float32 and torch.is_grad_enabled():
            # their hidden layers are most of a decoder's memory and a fifth of its work
            networks = checkpoint(self._networks_of, rows, use_reentrant=False)
        else:
            networks = self._networks_of(rows)
        networks = networks.view(3, B, T, self.num_heads, self.head_dim)
        query, key, value = networks.transpose(2, 3).unbind(0)  # [B, H, T, A]
        if trace is not None:
            attention_mask = visible_past(T, self.strides, x.device)
            trace.append(attention_weights(query, F.pad(key, (0, 0, 1, 0)), attention_mask))
        count = self.num_heads // len(self.strides)
        of_scale = zip(self.strides, *(x.split(count, dim=1) for x in (query, key, value)))
        heads = torch.cat([attend_to_past(q, k, v, stride) for stride, q, k, v in of_scale], dim=1)
        return self._joined(heads.transpose(1, 2).flatten(0, 1), x)

    def new_cache(self) -> KeyValueCache:
        return KeyValueCache(self.strides, self.num_heads // len(self.strides), self.head_dim)

    def step(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """Compute :meth:`forward` for the newest step only: [B, C] -> [B, C].

        Args:
            x: [B, C].
            cache: Cache of this layer; the newest step is appended to it.
        """
        rows = linear(x, self.input_proj.weight, self.input_proj.bias)
        query, key, value = self._networks_of(rows).unbind(0)  # [B, H, A]
        if cache.num_times:
            heads = [
                attend(
                    of_scale.unsqueeze(2),
                    scale.keys[:, :, : cache.visible(number)],
                    scale.values[:, :, : cache.visible(number)],
                ).squeeze(2)
                for number, (of_scale, scale) in enumerate(
                    zip(query.split(cache.num_heads, dim=1), cache.scales)
                )
            ]
            context = torch.cat(heads, dim=1)  # [B, H, A]
        else:  # the first step attends only to the zero slot
            context = torch.zeros_like(query)
        cache.append(key, value)
        return self._joined(context, x)

    def _networks_of(self, rows: Tensor) -> Tensor:
        """``[N, 3 E]`` give queries, keys and values ``[3, N, H, A]``."""
        N = rows.size(0)
        maps = self._first_layer(rows)
        for network in list(self.networks)[1:]:
            maps = F.glu(self._by_network(maps, len(network.bias)), dim=2)
            maps = grouped_linear(maps, network.weight(), network.bias)
        maps = self._by_network(maps, 3 * len(self.strides))  # [3 strides, N, heads A]
        maps = maps.view(3, len(self.strides), N, -1, self.head_dim).transpose(1, 2)
        return maps.flatten(2, 3)

    def _joined(self, heads: Tensor, x: Tensor) -> Tensor:
        """Heads ``[N, H, A]`` and the layer's input, of N rows, give the layer's output."""
        if self.head_proj is not None:
            weight, bias = self.head_proj.weight(), self.head_proj.bias
            heads = grouped_linear(heads.transpose(0, 1), weight, bias).transpose(0, 1)
        out = linear(heads.flatten(1), self.output_proj.weight(), self.output_proj.bias)
        return self.norm(out.view_as(x) + x)

    def _first_layer(self, rows: Tensor) -> Tensor:
        """``[N, 3 E]`` give ``[3, N, O]``: the networks of a kind share their input."""
        network = self.networks[0]
        weights = network.weight().view(3, -1, network.weight_v.size(-1))
        kinds = zip(rows.chunk(3, dim=1), weights, network.bias.view(3, -1))
        return torch.stack([linear(x, weight, bias) for x, weight, bias in kinds])

    @staticmethod
    def _by_network(rows: Tensor, networks: int) -> Tensor:
        """``[G, B, O]`` as ``[networks, B, O G / networks]``: networks of a kind side by side."""
        G, B, _ = rows.shape
        return rows.view(G, B, networks // G, -1).transpose(1, 2).flatten(0, 1)
