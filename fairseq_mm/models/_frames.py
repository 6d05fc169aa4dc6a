"""Projection and positions of video frames, for the transformers of videos."""

from typing import Any

from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.modules.cross_fusion import CrossFusion
from fairseq_mm.modules.pre_norm_layer import PreNormEncoderLayer


class FramePositions(nn.Module):
    """Adds a learned vector for its number to each real frame.

    Args:
        dim: D.
    """

    def __init__(self, num_positions: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_positions, dim)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """
        Args:
            x: ``[B, M, D]``.
            padding_mask: ``[B, M]`` bool, True at padding.

        Raises:
            UserError: if a video has more frames than there are positions.
        """
        numbers = (~padding_mask).long().cumsum(dim=1)  # from 1 on
        limit = self.table.num_embeddings
        if x.size(1) > limit and int(numbers.max()) > limit:
            raise UserError(
                f"a video has {int(numbers.max())} frames, but the model has positions for {limit}:"
                " train with a larger --video-positions, or cut videos with --max-frames."
            )
        return x + self.table((numbers - 1).clamp(min=0, max=limit - 1))


class VideoLayers(nn.Module):
    """A transformer encoder of frames.

    Args:
        feature_dim: D of the features.
        dim: C of the layers.
        num_heads: a divisor of C.
        dropout: in the layers and of their input.
    """

    def __init__(
        self,
        feature_dim: int,
        *,
        dim: int,
        num_layers: int,
        num_heads: int,
        inner_dim: int,
        dropout: float,
        num_positions: int,
    ) -> None:
        super().__init__()
        self.proj = nn.Linear(feature_dim, dim)
        self.positions = FramePositions(num_positions, dim)
        self.dropout = nn.Dropout(dropout)
        self.layers: Any = nn.ModuleList(
            PreNormEncoderLayer(dim, num_heads, inner_dim, dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, features: Tensor, padding_mask: Tensor) -> Tensor:
        """``[B, M, C]`` of ``[B, M, D]``."""
        x = self.dropout(self.positions(self.proj(features), padding_mask))
        for layer in self.layers:
            x = layer(x, padding_mask)
        return self.norm(x)


class FusedVideo(nn.Module):
    """Cross fusion of the text's states and the frames' features with their positions.

    Args:
        text_dim: C.
        feature_dim: D.
    """

    def __init__(self, text_dim: int, feature_dim: int, num_positions: int) -> None:
        super().__init__()
        self.positions = FramePositions(num_positions, feature_dim)
        self.cross_fusion = CrossFusion(text_dim, feature_dim)
        self.text_norm = nn.LayerNorm(text_dim)
        self.video_norm = nn.LayerNorm(feature_dim)

    def forward(
        self, text: Tensor, features: Tensor, text_padding: Tensor, video_padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``[B, S, C]`` and ``[B, M, D]`` of the same."""
        video = self.positions(features, video_padding)
        text, video = self.cross_fusion(text, video, text_padding, video_padding)
        return self.text_norm(text), self.video_norm(video)
