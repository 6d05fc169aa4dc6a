"""Restricts a search to the indexed out-of-vocabulary (OOV) tokens of the source text.

The tokens ``<unk-0>``, ``<unk-1>``, ... stand for the words of a source text that are not in the
vocabulary, in the order of the source (See, Liu, Manning. Get To The Point: Summarization with
Pointer-Generator Networks. ACL 2017, section 2.2). A generated token that does not occur in the
source would stand for no word and become ``<unk>``.
"""

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.search import Search
from torch import Tensor


class SourceOovSearch(Search):
    """Search strategy whose texts have no other indexed OOV tokens than their source text.

    Args:
        dictionary: Dictionary of the generated text.
        search: Search strategy that chooses among the allowed tokens.
        indices: Indices in the dictionary of the K indexed OOV tokens.
    """

    def __init__(self, dictionary: Dictionary, search: Search, indices: Sequence[int]) -> None:
        super().__init__(dictionary)
        self.search = search
        self.supports_constraints = search.supports_constraints
        self.stop_on_max_len = search.stop_on_max_len
        self.indices = torch.tensor(indices)
        self._is_absent = torch.empty(0)

    def begin(self, src_tokens: Tensor) -> None:
        """Set the source texts of the next batch.

        Args:
            src_tokens: [B, S] token indices of the source texts.
        """
        self.indices = self.indices.to(src_tokens.device)
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
        """Forbid OOV tokens that a text's source lacks, then call ``step`` of the wrapped strategy.

        The arguments are the same as in ``fairseq.search.Search.step``.
        """
        # the token of a forced prefix is the only candidate of its step, and stays
        is_free = lprobs.isfinite().sum(dim=2, keepdim=True) > 1  # [B, beam, 1]
        is_forbidden = self._is_absent.unsqueeze(1) & is_free  # [B, beam, K]
        values = lprobs[:, :, self.indices].masked_fill(is_forbidden, -math.inf)
        lprobs[:, :, self.indices] = values
        return self.search.step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)

    def init_constraints(self, batch_constraints: Optional[Tensor], beam_size: int) -> None:
        self.search.init_constraints(batch_constraints, beam_size)

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        self.search.set_src_lengths(src_lengths)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        # by rows, not by the indices of the sources: two inputs of a batch may have the same index
        self._is_absent = self._is_absent[batch_idxs]
        self.search.prune_sentences(batch_idxs)

    def update_constraints(self, active_hypos: Tensor) -> None:
        self.search.update_constraints(active_hypos)
