"""Videos of a feature store as a model reads them: cut to a number of frames, or as noise.

Both have what a dataset asks of the store itself, and can be sent to other processes with it.
"""

import hashlib
from typing import Any

import numpy as np

# the released noise files are uniform between 0 and this
NOISE_LIMIT = 3.0


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

    def rows_of(self, key: str) -> int:
        """Number of frames that are left of a video."""
        return min(self.features.rows_of(key), self.max_frames)

    def is_cut(self, key: str) -> bool:
        return self.features.rows_of(key) > self.max_frames

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
        noise = generator.random((self.rows_of(key), self.dim), dtype=np.float32)
        return (NOISE_LIMIT * noise).astype(self.dtype)
