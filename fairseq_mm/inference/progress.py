"""Passes the incomplete texts of a batch to a function while they are generated."""

from collections.abc import Sequence
from typing import Callable

import torch

from fairseq_mm.inference.processor import Decoded, Example, Processor


class Progress:
    """Incomplete texts of a batch, which change at every step of the search.

    Args:
        processor: Processor that decodes tokens.
        examples: Inputs of the batch.
        positions: Position of each input of the batch among all inputs of
            :meth:`.Generator.stream`.
        watch: Function that is called with this object before each step.
    """

    def __init__(
        self,
        processor: Processor,
        examples: Sequence[Example],
        positions: Sequence[int],
        watch: "Callable[[Progress], None]",
    ) -> None:
        self._processor = processor
        self._examples = examples
        self._positions = positions
        self._watch = watch
        self._rows: Sequence[int] = range(len(positions))
        self._tokens = torch.empty(len(positions), 0, dtype=torch.long)

    @property
    def positions(self) -> list[int]:
        """Positions, among all inputs, of the inputs whose text is still being generated."""
        return [self._positions[row] for row in self._rows]

    def decode(self, position: int) -> Decoded:
        """Return the text so far of the input at ``position``.

        In a beam search, the text is the best beam so far; after the next step, another beam may be
        the best.
        """
        place = self.positions.index(position)
        tokens = self._tokens[place].cpu()
        # processors expect no start token, but the end of the text
        ended = torch.cat([tokens[1:], tokens.new_tensor([self._processor.dictionary.eos()])])
        return self._processor.decode(ended, self._examples[self._rows[place]])

    def on_step(self, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """Store the incomplete texts after a step, and call ``watch`` with this object.

        Args:
            rows: Indices, in the batch, of the inputs whose text is still being generated.
            tokens: [rows, t] tokens of these texts, beginning with fairseq's start token.
        """
        self._rows, self._tokens = rows, tokens
        self._watch(self)
