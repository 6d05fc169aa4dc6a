"""Defines encoders of video frames for the transformers that summarise transcripts and videos."""

from typing import Any

from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.modules.cross_fusion import CrossFusion
from fairseq_mm.modules.pre_norm_layer import PreNormEncoderLayer


class FramePositions(nn.Module):
    """Learned position embeddings that are added to M frames of D features."""

    def __init__(self, num_positions: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_positions, dim)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Add position embeddings to x [B, M, D]; ``padding_mask`` [B, M] is True at padding."""
        # Counted over real frames, so that padding before or between frames shifts no position.
        numbers = (~padding_mask).long().cumsum(dim=1)
        limit = self.table.num_embeddings
        # The first comparison spares a GPU the second, which waits for the device; padding needs no
        # position.
        if x.size(1) > limit and int(numbers.max()) > limit:
            raise UserError(
                f"a video has {int(numbers.max())} frames, but the model has positions for {limit}:"
                " train with a larger --video-positions, or cut videos with --max-frames."
            )
        # Clamped for padding, whose numbers run beyond the table or are 0.
        return x + self.table((numbers - 1).clamp(min=0, max=limit - 1))


class VideoLayers(nn.Module):
    """Transformer encoder over M frames: [B, M, feature_dim] -> [B, M, cfg.embed_dim]."""

    def __init__(self, feature_dim: int, cfg: Any) -> None:
        super().__init__()
        self.proj = nn.Linear(feature_dim, cfg.embed_dim)
        self.positions = FramePositions(cfg.video_positions, cfg.embed_dim)
        self.dropout = nn.Dropout(cfg.dropout)
        self.layers: Any = nn.ModuleList(
            PreNormEncoderLayer(cfg.embed_dim, cfg.attention_heads, cfg.ffn_dim, cfg.dropout)
            for _ in range(cfg.video_encoder_layers)
        )
        self.norm = nn.LayerNorm(cfg.embed_dim)

    def forward(self, features: Tensor, padding_mask: Tensor) -> Tensor:
        x = self.dropout(self.positions(self.proj(features), padding_mask))
        for layer in self.layers:
            x = layer(x, padding_mask)
        return self.norm(x)


class FusedVideo(nn.Module):
    """Cross fusion (:class:`CrossFusion`) of S encoded words and M frames.

    Position embeddings are added to the frames. Then each word is fused with frames, and each frame
    with words.
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
        """Fuse encoded words and frames with each other.

        Args:
            text: [B, S, text_dim] encoded words.
            features: [B, M, feature_dim] frames.
            text_padding: [B, S] bool, True at padding.
            video_padding: [B, M] bool, True at padding.

        Returns:
            Fused words and fused frames, with the shapes of ``text`` and ``features``.
        """
        video = self.positions(features, video_padding)
        text, video = self.cross_fusion(text, video, text_padding, video_padding)
        return self.text_norm(text), self.video_norm(video)
