"""Defines a transformer over the frames of a video.

It is the visual transformer encoder (VTF) of Yu et al. 2021, section 3.2.
"""

import math
from typing import Optional

import torch
from torch import Tensor, nn

from fairseq_mm.modules.positions import sinusoids
from fairseq_mm.modules.transformer_layer import TransformerEncoderLayer


class VideoTransformerEncoder(nn.Module):
    """Transformer encoder of the feature vectors of a video's frames (Yu et al. 2021, section 3.2).

    The input of the first layer is ``sqrt(dim) * frame + sinusoid of the frame's position``.

    Args:
        dim: Dimension of a frame's feature vector and of the layers.
        num_layers: Number of layers; 4 in the paper.
        num_heads: Number of heads, a divisor of ``dim``; 8 in the paper.
        ffn_dim: Inner dimension of the feed-forward layers; 2048 in the paper.
        dropout: Dropout of the input and in the layers.
        attention_dropout: Dropout of the attention weights; None for ``dropout``, as in PyTorch's
            ``nn.TransformerEncoderLayer``.

    Raises:
        ValueError: if ``num_heads`` does not divide ``dim``.
    """

    def __init__(
        self,
        dim: int,
        num_layers: int,
        num_heads: int,
        ffn_dim: int,
        dropout: float,
        attention_dropout: Optional[float] = None,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"`num_heads` must divide `dim` ({dim}), but is {num_heads} instead.")
        if attention_dropout is None:
            attention_dropout = dropout
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(dim, num_heads, ffn_dim, dropout, attention_dropout)
            for _ in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, padding_mask: Tensor) -> Tensor:
        """Encode the frames' features [B, M, dim], padded at the end.

        The shape does not change; values at padding are undefined. ``padding_mask`` is [B, M] bool,
        True at padding; at least one frame of each video is real.
        """
        M, D = features.shape[1:]
        frames = torch.arange(M, device=features.device)
        # Sines and cosines come in pairs; features of an odd dimension take one channel less.
        positions = sinusoids(frames, D + D % 2)[:, :D].to(features.dtype)
        # The released code multiplies by sqrt(2048), the dimension of its features.
        x = self.dropout(features * math.sqrt(D) + positions)
        attention_mask = ~padding_mask[:, None, None]
        for layer in self.layers:
            x = layer(x, attention_mask)
        return x
