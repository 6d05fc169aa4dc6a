"""Search constraint for indexed out-of-vocabulary tokens.

``<unk-0>``, ``<unk-1>``, ... denote the words of a source that are not in the vocabulary, in the
order of the source: See, Liu, Manning. Get To The Point: Summarization with Pointer-Generator
Networks. ACL 2017, section 2.2. A token that the source does not contain denotes no word and would
become ``<unk>``.
"""

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.search import Search
from torch import Tensor


class SourceOovSearch(Search):
    """Search strategy whose texts contain only the indexed OOV tokens of their source.

    Args:
        search: Search strategy, which sees the other tokens.
        indices: Indices of the indexed OOV tokens.
    """

    def __init__(self, dictionary: Dictionary, search: Search, indices: Sequence[int]) -> None:
        super().__init__(dictionary)
        self.search = search
        self.supports_constraints = search.supports_constraints
        self.stop_on_max_len = search.stop_on_max_len
        self.indices = torch.tensor(indices)
        self._items = torch.empty(0)
        self._is_absent = torch.empty(0)

    def begin(self, items: Tensor, src_tokens: Tensor) -> None:
        """Prepare for the next batch.

        Args:
            items: [B] indices of the sources.
            src_tokens: [B, S] the sources.
        """
        self.indices = self.indices.to(src_tokens.device)
        self._items = items.to(src_tokens.device)
        is_there = src_tokens.unsqueeze(2).eq(self.indices).any(dim=1)
        self._is_absent = ~is_there  # [B, K]

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Optional[Tensor],
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ) -> Any:
        """Forbid the OOV tokens that the source lacks, then let the strategy choose."""
        assert original_batch_idxs is not None
        # complete sentences have left the batch, so rows are found by the indices of the sources
        items = original_batch_idxs.to(self._items)
        rows = items.unsqueeze(1).eq(self._items).int().argmax(dim=1)
        # the token of a forced prefix is the only candidate of its step, and stays
        is_free = lprobs.isfinite().sum(dim=2, keepdim=True) > 1  # [B, beam, 1]
        is_forbidden = self._is_absent[rows].unsqueeze(1) & is_free  # [B, beam, K]
        values = lprobs[:, :, self.indices].masked_fill(is_forbidden, -math.inf)
        lprobs[:, :, self.indices] = values
        return self.search.step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)

    def init_constraints(self, batch_constraints: Optional[Tensor], beam_size: int) -> None:
        self.search.init_constraints(batch_constraints, beam_size)

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        self.search.set_src_lengths(src_lengths)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        self.search.prune_sentences(batch_idxs)

    def update_constraints(self, active_hypos: Tensor) -> None:
        self.search.update_constraints(active_hypos)
