"""Lines of text and videos, cut to the longest that a model reads.

Videos have what a dataset asks of the feature store itself, and can be sent to other processes.
"""

import hashlib
from typing import Any, Optional

import numpy as np
import torch

# the released noise files are uniform between 0 and this
NOISE_LIMIT = 3.0


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


class CutVideos:
    """The first frames of each video.

    Args:
        features: feature stores, see :func:`fairseq_mm.data.feature_store.open_features`.
        max_frames: longest video.
    """

    def __init__(self, features: Any, max_frames: int) -> None:
        self.features = features
        self.max_frames = max_frames
        self.path: str = features.path
        self.dim: int = features.dim
        self.dtype: np.dtype = features.dtype

    def __contains__(self, key: object) -> bool:
        return key in self.features

    def count_rows(self, key: str) -> int:
        """Number of frames that are left of a video."""
        return min(self.features.count_rows(key), self.max_frames)

    def is_cut(self, key: str) -> bool:
        return self.features.count_rows(key) > self.max_frames

    def read(self, key: str) -> np.ndarray:
        """``[frames, D]`` of a video."""
        return self.features.read(key)[: self.max_frames]


class NoiseVideos(CutVideos):
    """Uniform noise in the place of each video, of as many frames and channels (Yu et al. 2021,
    Table 3: what is left of a gain without what the videos show).

    A video's noise is the same in every epoch, process and split.

    Args:
        features: feature stores: they give frames and channels alone.
        max_frames: longest video.
        seed: another one gives other noise.
    """

    def __init__(self, features: Any, max_frames: int, *, seed: int) -> None:
        super().__init__(features, max_frames)
        self.seed = seed

    def read(self, key: str) -> np.ndarray:
        """``[frames, D]`` between 0 and ``NOISE_LIMIT``."""
        digest = hashlib.sha256(f"{self.seed}\t{key}".encode()).digest()
        generator = np.random.default_rng(int.from_bytes(digest[:16], "little"))
        noise = generator.random((self.count_rows(key), self.dim), dtype=np.float32)
        return (NOISE_LIMIT * noise).astype(self.dtype)
