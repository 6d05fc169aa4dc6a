"""Encoder and decoder of the transformers that summarise transcripts and videos.

All layers of the decoder attend to the transcript. Selected layers also attend to the video; a
second attention then weighs the result for the transcript and the result for the video.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError
from fairseq_mm.models._bases import check_one_dictionary
from fairseq_mm.models._video_summary import (
    EncoderOut,
    TwoSourceDecoder,
    TwoSourceEncoder,
    attention_extra,
    get_sources,
)
from fairseq_mm.modules.cross_fusion import CrossFusion
from fairseq_mm.modules.positions import PositionedEmbedding
from fairseq_mm.modules.pre_norm_layer import PreNormDecoderLayer, PreNormEncoderLayer


class FramePositions(nn.Module):
    """Learned position embeddings that are added to M frames."""

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
    """Cross fusion (:class:`CrossFusion`) of S encoded words and M frames with positions."""

    def __init__(self, text_dim: int, feature_dim: int, num_positions: int) -> None:
        super().__init__()
        self.positions = FramePositions(num_positions, feature_dim)
        self.cross_fusion = CrossFusion(text_dim, feature_dim)
        self.text_norm = nn.LayerNorm(text_dim)
        self.video_norm = nn.LayerNorm(feature_dim)

    def forward(
        self, text: Tensor, features: Tensor, text_padding: Tensor, video_padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Fuse encoded words [B, S, text_dim] and frames [B, M, feature_dim] with each other.

        The shapes do not change. The masks are bool, True at padding.
        """
        video = self.positions(features, video_padding)
        text, video = self.cross_fusion(text, video, text_padding, video_padding)
        return self.text_norm(text), self.video_norm(video)


@dataclass
class HierarchicalTransformerConfig(FairseqDataclass):
    """Options of the transformers that summarise transcripts and videos, after the code of Liu et
    al. 2020.
    """

    embed_dim: int = option(512, "Dimension of token embeddings and layers.")
    encoder_layers: int = option(4, "Number of encoder layers.")
    decoder_layers: int = option(4, "Number of decoder layers.")
    ffn_dim: int = option(2048, "Dimension of the feed-forward layers.")
    attention_heads: int = option(8, "Number of heads of every attention.", divides="embed_dim")
    dropout: float = option(
        0.1, "Dropout probability of embeddings, sub-layers and attention weights."
    )
    text_positions: int = option(1024, "Maximum length of a transcript, in tokens.")
    video_positions: int = option(1030, "Maximum length of a video, in frames.")
    summary_positions: int = option(1024, "Maximum length of a summary, in tokens.")


class HierarchicalTransformerEncoder(TwoSourceEncoder):
    """Encoder with a transformer over the words, and a module ``video`` for the frames:
    :class:`VideoLayers` or :class:`FusedVideo`.
    """

    def __init__(self, dictionary: Any, cfg: Any, video: nn.Module) -> None:
        super().__init__(dictionary)
        rows = cfg.text_positions + self.padding_idx + 1
        self.embedding = PositionedEmbedding(len(dictionary), cfg.embed_dim, self.padding_idx, rows)
        self.dropout = nn.Dropout(cfg.dropout)
        self.layers: Any = nn.ModuleList(
            PreNormEncoderLayer(cfg.embed_dim, cfg.attention_heads, cfg.ffn_dim, cfg.dropout)
            for _ in range(cfg.encoder_layers)
        )
        self.norm = nn.LayerNorm(cfg.embed_dim)
        self.video = video

    def encode(
        self, tokens: Tensor, features: Tensor, text_padding: Tensor, video_padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        text = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            text = layer(text, text_padding)
        text = self.norm(text)
        if isinstance(self.video, FusedVideo):
            return self.video(text, features, text_padding, video_padding)
        return text, self.video(features, video_padding)

    def max_positions(self) -> int:
        return self.embedding.max_positions()


class HierarchicalTransformerDecoder(TwoSourceDecoder):
    """Decoder whose layers attend to words, and in the layers where ``sees_video`` is True also to
    frames.
    """

    def __init__(
        self, dictionary: Any, cfg: Any, video_dim: int, sees_video: Sequence[bool]
    ) -> None:
        super().__init__(dictionary)
        dim, padding_idx = cfg.embed_dim, dictionary.pad()
        rows = cfg.summary_positions + padding_idx + 1
        self.embedding = PositionedEmbedding(len(dictionary), dim, padding_idx, rows)
        self.dropout = cfg.dropout
        self.layers: Any = nn.ModuleList(
            PreNormDecoderLayer(
                dim,
                cfg.attention_heads,
                cfg.ffn_dim,
                cfg.dropout,
                [dim, video_dim] if sees else [dim],
            )
            for sees in sees_video
        )
        self.sees_video = list(sees_video)
        self.norm = nn.LayerNorm(dim)
        self.output_proj = nn.Linear(dim, len(dictionary), bias=False)
        nn.init.normal_(self.output_proj.weight, std=dim**-0.5)

    def project(self, sources: list[Tensor]) -> Any:
        return [layer.project(sources) for layer in self.layers]

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[dict] = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute features [B, T, C], or [B, 1, C] when decoding incrementally, and a dict of
        attention weights, see :func:`attention_extra`.

        The weights are means over the heads of the last layer that attends to frames; None in
        training.
        """
        _, masks = get_sources(encoder_out)
        saved = self.saved_state(incremental_state)
        if saved is None:
            projected = self.project_source(encoder_out, has_beams=incremental_state is not None)
            past: list = [None] * len(self.layers)
        else:
            projected, past = saved["projected"], saved["past"]
        if incremental_state is None:
            x = self.embedding(prev_output_tokens)
        else:
            number = prev_output_tokens.size(1)
            x = self.embedding.step(prev_output_tokens[:, -1], number).unsqueeze(1)
        x = F.dropout(x, self.dropout, self.training)
        last = max(i for i, sees in enumerate(self.sees_video) if sees)
        trace, new_past = None, []
        for i, layer in enumerate(self.layers):
            x, keys_and_values, layer_trace = layer(
                x,
                projected[i],
                masks,
                past=past[i],
                # Weights need a slower kernel, so they are computed in one layer and not in
                # training.
                needs_weights=i == last and not self.training,
            )
            new_past.append(keys_and_values)
            trace = layer_trace or trace
        if incremental_state is not None:
            self.save_state(incremental_state, encoder_out, projected, new_past)
        extra = attention_extra(None, None, None)
        if trace is not None:
            word_weights, frame_weights = trace.weights
            extra = attention_extra(word_weights, frame_weights, trace.modality_weights)
        return self.norm(x), extra

    def max_positions(self) -> int:
        return self.embedding.max_positions()


def build_hierarchical_transformer(
    cfg: Any, task: Any, *, video: nn.Module, video_dim: int, sees_video: Sequence[bool]
) -> tuple[HierarchicalTransformerEncoder, HierarchicalTransformerDecoder]:
    """Build encoder and decoder, which share the word embeddings.

    Args:
        video: Module for the frames, see :class:`HierarchicalTransformerEncoder`.
        video_dim: Dimension of the encoded frames.
        sees_video: For each decoder layer, True if it attends to frames as well as words.
    """
    check_one_dictionary(task)
    encoder = HierarchicalTransformerEncoder(task.source_dictionary, cfg, video)
    decoder = HierarchicalTransformerDecoder(task.target_dictionary, cfg, video_dim, sees_video)
    # As in Liu et al.'s transformer, only word embeddings are shared: transcript and summary have
    # position embeddings of their own.
    decoder.embedding.tokens = encoder.embedding.tokens
    with torch.no_grad():
        encoder.embedding.tokens.weight[task.source_dictionary.pad()].zero_()
    return encoder, decoder


TINY = {
    "embed_dim": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "ffn_dim": 20,
    "attention_heads": 2,
    "dropout": 0.0,
}
