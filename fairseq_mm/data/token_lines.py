"""Lines of binarised text, cut to the longest that a model reads, with the ends that it knows."""

from typing import Any, Optional

import numpy as np
import torch


class TensorLines(list):
    """Token tensors with their lengths, as fairseq's datasets of lines have them."""

    @property
    def sizes(self) -> np.ndarray:
        return np.array([tokens.numel() for tokens in self], dtype=np.int64)


class CutLines:
    """Lines with the longer ones cut; what is left of them has its ends as well.

    Args:
        lines: fairseq's dataset of lines, each ending with ``</s>``.
        limit: longest line, its ends included.
        end: number of ``</s>``.
        start: number of a token before each line, if there is to be one.
        keeps_end: each line ends with ``</s>``.

    Attributes:
        sizes: ``[lines]`` lengths, ends included.
        num_cut: how many lines were longer.
    """

    def __init__(
        self,
        lines: Any,
        limit: int,
        end: int,
        *,
        start: Optional[int] = None,
        keeps_end: bool = True,
    ) -> None:
        self.lines = lines
        self.start = start
        self.end = end if keeps_end else None
        ends = (start is not None) + keeps_end
        self.limit = limit - ends
        words = np.asarray(lines.sizes, dtype=np.int64) - 1
        self.sizes = np.minimum(words, self.limit) + ends
        self.num_cut = int((words > self.limit).sum())

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> torch.Tensor:
        words = self.lines[index][:-1][: self.limit]
        before = [] if self.start is None else [words.new_tensor([self.start])]
        after = [] if self.end is None else [words.new_tensor([self.end])]
        return torch.cat([*before, words, *after])
