"""Caches keys and values of earlier tokens between decoding steps."""

import itertools
from collections.abc import Callable
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_mm.modules.attention import attend

FIRST_CAPACITY = 16


def keeps_all(order: Tensor, count: int) -> bool:
    """Return True if ``order``, the rows to select, is 0, 1, ..., ``count - 1``: no change."""
    # True at most steps of a search with one beam, where copying a cache would take a good part of
    # the time of the step.
    return len(order) == count and torch.equal(order, torch.arange(count, device=order.device))


def keeps_items(items: Tensor, new_order: Tensor) -> bool:
    """Return True if the selected rows ``new_order`` belong to the same items (examples)."""
    return len(items) == len(new_order) and torch.equal(items[new_order], items)


def select_rows(x: Any, order: Tensor) -> Any:
    """Select rows ``order`` of every tensor in nested dicts, lists, tuples; None stays None."""
    if x is None:
        return None
    if isinstance(x, Tensor):
        return x.index_select(0, order)
    if isinstance(x, dict):
        return {key: select_rows(part, order) for key, part in x.items()}
    return type(x)(select_rows(part, order) for part in x)


def join_rows(x: Any, y: Any) -> Any:
    """Append the rows of every tensor in y to the tensor at the same place in x.

    ``x`` and ``y`` are nested dicts, lists and tuples of the same structure. If later dimensions
    differ, such as the number of source tokens, the smaller tensor is padded at its end: a mask
    with True, numbers with zeros.
    """
    if x is None:
        return None
    if isinstance(x, Tensor):
        sizes = [max(pair) for pair in zip(x.shape[1:], y.shape[1:])]
        parts = []
        for part in (x, y):
            missing = [size - present for size, present in zip(sizes, part.shape[1:])]
            if any(missing):
                # F.pad expects the last dimension first.
                amounts = [n for size in reversed(missing) for n in (0, size)]
                part = F.pad(part, amounts, value=part.dtype == torch.bool)
            parts.append(part)
        return torch.cat(parts)
    if isinstance(x, dict):
        return {key: join_rows(part, y[key]) for key, part in x.items()}
    return type(x)(join_rows(part, other) for part, other in zip(x, y))


def reorder_state(state: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
    """Select rows (beams) of a decoder's state; copy tensors only if necessary.

    ``state["item"]`` [R] is the index of each row's item (example), and ``state["past"]`` depends
    on the words of a row. All other tensors are equal for all rows of an item.
    """
    keeps = keeps_items(state["item"], new_order)
    return {
        key: x if keeps and key != "past" else select_rows(x, new_order) for key, x in state.items()
    }


def project_items(project: Callable[[Any], Any], sources: Any, items: Optional[Tensor]) -> Any:
    """Project the encoder's output once for each item (example), and copy the result to its rows.

    ``items`` [R] is the index of each row's item; None to project every row.
    """
    if items is None:
        return project(sources)
    unique, rows = items.unique(return_inverse=True)
    # One row per item; any will do, because the beams of an item have equal outputs of the encoder.
    numbers = torch.arange(len(rows), device=rows.device)
    chosen = torch.zeros_like(unique).scatter_(0, rows, numbers)
    return select_rows(project(select_rows(sources, chosen)), rows)


def group_rows(rows: Tensor, num_items: int) -> tuple[Optional[Tensor], int]:
    """Choose which items (examples) to store, so that each has equally many rows (beams).

    Items without rows are dropped. If the remaining items have unequal numbers of rows, every row
    gets its own copy of its item. ``rows`` [R] is the index of each row's item; the rows of an item
    are neighbours.

    Returns:
        Indices of the items to store from now on, or None if the stored items do not change; and
            the number of rows of each item.
    """
    # Making this list waits for a GPU, once; the lines below read the list alone.
    numbers = rows.tolist()
    sizes = {len(list(group)) for _, group in itertools.groupby(numbers)}
    # Unequal numbers of rows cannot be viewed as a tensor.
    size = sizes.pop() if len(sizes) == 1 else 1
    return (None if numbers[::size] == list(range(num_items)) else rows[::size]), size


class SentenceCache:
    """Cache of states, such as keys and values, of each row's current sentence during decoding.

    Rows may be at different positions. A new sentence overwrites the entries of the last sentence
    from the first position on. Entries beyond a row's position are never visible.

    Args:
        parts: Tensors [B, ..., capacity, dim], such as keys and values of every layer.
        memory_length: Number of positions at the beginning that stay the same for a whole sentence,
            see :meth:`begin_memory`; 0 for none.
    """

    def __init__(self, parts: list[Tensor], *, memory_length: int = 0) -> None:
        self.parts = parts
        self.memory_length = memory_length
        # Number of each row's memory. Rows with equal numbers have equal entries in the memory.
        self._memories = torch.arange(len(parts[0]), device=parts[0].device)
        self._num_memories = len(self._memories)
        self._num_used = memory_length  # positions of the longest row

    @classmethod
    def empty(
        cls,
        shapes: list[tuple[int, ...]],
        like: Tensor,
        *,
        capacity: int = FIRST_CAPACITY,
        memory_length: int = 0,
    ) -> "SentenceCache":
        """Create a cache of zeros; ``shapes`` are (B, ..., dim) of its tensors, ``like`` has their
        dtype.
        """
        total = memory_length + capacity
        parts = [like.new_zeros(*shape[:-1], total, shape[-1]) for shape in shapes]
        return cls(parts, memory_length=memory_length)

    @property
    def capacity(self) -> int:
        return self.parts[0].size(-2)

    def reserve(self, positions: Tensor) -> None:
        """Double the capacity until each row has room for an entry at its ``positions`` [B]."""
        needed = int(positions.max()) + 1
        self._num_used = needed
        while self.capacity < needed:
            # Doubling copies each entry at most twice on average. Zeros, not empty memory: 0 times
            # NaN is NaN, even for a masked entry.
            self.parts = [torch.cat([x, torch.zeros_like(x)], dim=-2) for x in self.parts]

    def write(self, part: int, values: Tensor, positions: Tensor) -> Tensor:
        """Write the newest entries [B, ..., dim] of one tensor at ``positions`` [B].

        Returns the whole tensor, [B, ..., capacity, dim].
        """
        x = self.parts[part]
        rows = torch.arange(len(positions), device=positions.device)
        # a slice between two indices puts their dimension first: x[rows, ..., positions, :]
        x.movedim(-2, 1)[rows, positions] = values.to(x.dtype)
        return x

    def attention_mask(self, positions: Tensor) -> Tensor:
        """Return a mask [B, 1, 1, capacity], True at entries up to the rows' ``positions`` [B]."""
        places = torch.arange(self.capacity, device=positions.device)
        return (places <= positions.unsqueeze(1))[:, None, None]

    def begin_memory(self, rows: Tensor) -> None:
        """Tell the cache that the caller has written new memory entries for ``rows`` [r]."""
        last = self._num_memories + len(rows)
        self._memories[rows] = torch.arange(self._num_memories, last, device=rows.device)
        self._num_memories = last

    def select(self, order: Tensor) -> None:
        """Select rows, as beam search does: the new row i is the old row ``order[i]``."""
        if keeps_all(order, len(self.parts[0])):
            return
        memories = self._memories.index_select(0, order)
        # On a GPU, to find the rows whose memory changes would mean to wait for it.
        if not self.memory_length or order.is_cuda or len(order) != len(self._memories):
            self.parts = [x.index_select(0, order) for x in self.parts]
            self._memories = memories
            return
        # Two words into a sentence, nearly all beams of a story descend from one beam, so that
        # their memories are equal. In Python, where freed memory is not kept, copying all of them
        # took a quarter of a step of Transtory-XL.
        changed = memories.ne(self._memories).nonzero().squeeze(1)
        self._memories = memories
        for x in self.parts:
            memory = x.narrow(-2, 0, self.memory_length)
            if len(changed):
                memory[changed] = memory[order[changed]]
            words = x.narrow(-2, self.memory_length, self._num_used - self.memory_length)
            words.copy_(words.index_select(0, order))


# Positions are added by the block, so that 15 of 16 steps copy nothing. The rows of the bias then
# begin at multiples of 16 numbers, as PyTorch's fused attention for GPUs needs them.
_BLOCK = 16


class BeamCache:
    """Keys and values of all tokens so far in all layers, which beam search does not move.

    An item is an example of the batch, a row is one of its beams; the rows of an item are
    neighbours. Every row attends to the tokens of all rows of its item, and a bias of ``-inf``
    hides the tokens of the other rows. Reordering the beams then changes only the bias; copying
    keys and values took 7 % of the time of BART with 5 beams. The drawback: if a row's keys or
    values are not finite, all rows of its item become not finite. ``like`` has the number of rows,
    the dtype and device of the cache; ``length`` is the number of tokens that each row has so far.
    """

    def __init__(
        self, num_layers: int, num_heads: int, head_dim: int, num_items: int, like: Tensor
    ) -> None:
        self.length = 0
        self.beams = len(like) // num_items
        # Keys and values of each layer: 2 * layers, items, heads, tokens, beams, head_dim.
        self._entries = like.new_empty(
            2 * num_layers, num_items, num_heads, 0, self.beams, head_dim
        )
        # [R, tokens, slots] bias of each row for each row's tokens: 0 for its own, else -inf.
        self._bias = like.new_empty(len(like), 0, self.beams)
        self._newest = self._bias_of_newest()

    def add_position(self) -> None:
        """Advance all rows to the next token, whose key and value must be written to each layer."""
        layers, items, heads, capacity, slots, head_dim = self._entries.shape
        if self.length == capacity:
            # Zeros, because the product of a weight 0 with a NaN of unused memory would be NaN.
            block = self._entries.new_zeros(layers, items, heads, _BLOCK, slots, head_dim)
            self._entries = torch.cat([self._entries, block], dim=3)
            added = self._bias.new_zeros(len(self._bias), _BLOCK, slots)
            self._bias = torch.cat([self._bias, added], dim=1)
        self._bias[:, self.length] = self._newest
        self.length += 1

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest token's keys and values [B, heads, beams, head_dim] in a layer.

        Returns keys and values [B, heads, tokens * slots, head_dim] of all tokens so far of all
        rows of each item. ``slots`` is the number of rows of an item, or an earlier, larger number.
        """
        length = self.length
        keys, values = self._entries[2 * layer], self._entries[2 * layer + 1]
        keys[:, :, length - 1, : self.beams] = key
        values[:, :, length - 1, : self.beams] = value
        return keys[:, :, :length].flatten(2, 3), values[:, :, :length].flatten(2, 3)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, dropout: float = 0.0
    ) -> Tensor:
        """Write the newest token's key and value in a layer, and attend to all tokens so far.

        All tensors are [R, heads * head_dim]; the query is not scaled.
        """
        _, items, heads, _, _, head_dim = self._entries.shape
        shape = (items, self.beams, heads, head_dim)
        newest, keys, values = (x.view(shape).transpose(1, 2) for x in (query, key, value))
        keys, values = self.write(layer, keys, values)
        attended = attend(newest, keys, values, self._bias_of_items(), dropout=dropout)
        return attended.transpose(1, 2).reshape(query.shape)

    def mask_bias(self, bias: Tensor) -> Tensor:
        """Return the bias of the attention to the keys of :meth:`write`, from a bias [heads,
        tokens].

        It is [B, heads, beams, tokens * slots], ``-inf`` at the tokens of other rows; [1, heads, 1,
        tokens] if every item has one slot.
        """
        repeated = bias[None, :, None].repeat_interleave(self._entries.size(4), dim=-1)
        of_items = self._bias_of_items()
        return repeated if of_items is None else repeated + of_items

    def select(self, order: Tensor, items: Optional[Tensor], beams: int) -> None:
        """Select rows, as beam search does: the new row i is the old row ``order[i]``.

        ``items`` has the index of the old item for each new item; None if all items stay. ``beams``
        is the number of rows of each new item.
        """
        before, self.beams = self.beams, beams
        self._bias = self._bias.index_select(0, order)
        if beams > self._entries.size(4):
            # More rows than before: each token is copied to the row that reads it.
            self._copy_to_rows(torch.div(order, before, rounding_mode="floor"))
        elif items is not None:
            self._entries = self._entries.index_select(1, items)
        if beams != before or len(order) != len(self._newest):
            self._newest = self._bias_of_newest()

    def _bias_of_newest(self) -> Tensor:
        slots = self._bias.size(2)
        own = torch.arange(len(self._bias), device=self._bias.device) % self.beams
        is_own = own.unsqueeze(1) == torch.arange(slots, device=own.device)
        return self._bias.new_zeros(is_own.shape).masked_fill(~is_own, float("-inf"))

    def _bias_of_items(self) -> Optional[Tensor]:
        """Return the bias [B, 1, beams, tokens * slots]; None if each item has one slot."""
        if self._bias.size(2) == 1:
            return None
        bias = self._bias.view(-1, 1, self.beams, self._bias.size(1) * self._bias.size(2))
        return bias[..., : self.length * self._bias.size(2)]

    def _copy_to_rows(self, of_rows: Tensor) -> None:
        """Copy keys and values so that each row stores its tokens; ``of_rows`` [R] are its
        items."""
        layers, _, heads, capacity, _, head_dim = self._entries.shape
        length = self.length
        entries = self._entries.index_select(1, of_rows)[:, :, :, :length]
        writers = self._bias[:, :length].eq(0).long().argmax(dim=2)
        index = writers[None, :, None, :, None, None].expand(layers, -1, heads, -1, 1, head_dim)
        own = entries.gather(4, index).squeeze(4)  # [layers, R, heads, tokens, head_dim]
        grouped = own.unflatten(1, (-1, self.beams)).permute(0, 1, 3, 4, 2, 5)
        items = grouped.size(1)
        self._entries = own.new_zeros(layers, items, heads, capacity, self.beams, head_dim)
        self._entries[:, :, :, :length] = grouped
        self._bias = own.new_zeros(len(of_rows), capacity, self.beams)
        self._bias[:, :length] = self._bias_of_newest().unsqueeze(1)
