"""Truncates long lines of text and long videos to the maximum input length of a model.

:class:`CutVideos` and :class:`NoiseVideos` wrap a feature store. They have the methods of a feature
store that a dataset calls, and can be sent to other processes.
"""

import hashlib
from typing import Any, Optional

import numpy as np
import torch

# the noise files that Yu et al. released are uniform between 0 and 3
NOISE_LIMIT = 3.0


class TensorLines(list):
    """List of token tensors with their lengths, like fairseq's datasets of lines."""

    @property
    def sizes(self) -> np.ndarray:
        return np.array([tokens.numel() for tokens in self], dtype=np.int64)


class CutLines:
    """Dataset of lines that cuts long lines; a cut line keeps its start and end tokens.

    Args:
        lines: fairseq's dataset of lines, each ending with ``</s>``.
        limit: Maximum length of a line, start and end tokens included; longer lines are cut.
        end: Index of ``</s>``.
        start: Index of a token that is put before each line; None for no start token.
        keeps_end: Keep ``</s>`` at the end of each line; if False, it is removed.

    Attributes:
        sizes: ``[lines]`` lengths, start and end tokens included.
        num_cut: Number of lines that were cut.
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
        words = np.asarray(lines.sizes, dtype=np.int64) - 1  # without </s>
        self.sizes = np.minimum(words, self.limit) + ends
        self.num_cut = int((words > self.limit).sum())

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> torch.Tensor:
        words = self.lines[index][:-1][: self.limit]
        before = [] if self.start is None else [words.new_tensor([self.start])]
        after = [] if self.end is None else [words.new_tensor([self.end])]
        return torch.cat([*before, words, *after])


class CutVideos:
    """Feature store that returns only the first ``max_frames`` frames of each video."""

    def __init__(self, features: Any, max_frames: int) -> None:
        self.features = features
        self.max_frames = max_frames
        self.path: str = features.path
        self.dim: int = features.dim
        self.dtype: np.dtype = features.dtype

    def __contains__(self, key: object) -> bool:
        return key in self.features

    def count_rows(self, key: str) -> int:
        """Return the number of frames of a video after the cut."""
        return min(self.features.count_rows(key), self.max_frames)

    def is_cut(self, key: str) -> bool:
        return self.features.count_rows(key) > self.max_frames

    def read(self, key: str) -> np.ndarray:
        """Return the first frames of a video, ``[frames, D]``."""
        return self.features.read(key)[: self.max_frames]


class NoiseVideos(CutVideos):
    """Feature store that replaces each video by uniform noise with as many frames and channels.

    Train a model on the noise, and compare it with a model without videos: this gain does not come
    from the content of the videos (Yu et al. 2021, Table 3). The noise of a video is the
    same in every epoch, process and split.
    """

    def __init__(self, features: Any, max_frames: int, *, seed: int) -> None:
        super().__init__(features, max_frames)
        self.seed = seed

    def read(self, key: str) -> np.ndarray:
        """Return noise between 0 and ``NOISE_LIMIT`` for a video, ``[frames, D]``."""
        # not hash(), which differs between processes
        digest = hashlib.sha256(f"{self.seed}\t{key}".encode()).digest()
        generator = np.random.default_rng(int.from_bytes(digest[:16], "little"))
        noise = generator.random((self.count_rows(key), self.dim), dtype=np.float32)
        return (NOISE_LIMIT * noise).astype(self.dtype)
