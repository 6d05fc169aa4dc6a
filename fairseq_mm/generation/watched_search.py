"""Calls a function at each step of fairseq's search, to show texts or end the search early."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from torch import Tensor

# receives the rows of a batch whose texts are incomplete, and their tokens
OnStep = Callable[[Sequence[int], Tensor], None]


@contextlib.contextmanager
def watched(search: Any, num_rows: int, on_step: OnStep) -> Iterator[None]:
    """Call a function before each step of a search, in a ``with`` block.

    Args:
        search: Search strategy of a generator of fairseq.
        num_rows: Number of inputs of the batch that is generated in the block.
        on_step: Function of the indices of the inputs whose texts are incomplete, and of tokens
            [inputs, t]: the incomplete text of each input, beginning with fairseq's start token. In
            a beam search, it is the beam with the highest score. If the function raises an
            exception, the search ends.
    """
    rows = list(range(num_rows))
    step, prune_sentences = search.step, search.prune_sentences

    def watched_step(
        number: int, lprobs: Tensor, scores: Any, prev_output_tokens: Tensor, *others: Any
    ) -> Any:
        # [rows * beam, t]: fairseq keeps the beams of a row in the order of their scores
        tokens = prev_output_tokens.view(len(rows), -1, prev_output_tokens.size(1))
        on_step(rows, tokens[:, 0])
        return step(number, lprobs, scores, prev_output_tokens, *others)

    def watched_prune(batch_idxs: Tensor) -> None:
        # rows with complete texts leave the batch
        rows[:] = [rows[i] for i in batch_idxs.tolist()]
        prune_sentences(batch_idxs)

    # not a search around the search: tasks look for the classes of their own searches
    search.step, search.prune_sentences = watched_step, watched_prune
    try:
        yield
    finally:
        del search.step, search.prune_sentences
