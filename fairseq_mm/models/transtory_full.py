"""Transtory-full: transformers as encoder and decoder (``--arch transtory_full``).

Li, Liu, Mao, Wang. Transtory-XL: Tell Stories from Image Streams. 2020, sections 3.4, 4.3 and 5.2.

With x_i the features of image i:

    v_i = BatchNorm(W x_i + b)                                       1024
    u_1 ... u_5 = transformer encoder(sqrt(1024) v_i + position i)   one layer, 4 heads
    m_i = W u_i + b                                                  256

A transformer decoder of one layer, 4 heads and sinusoidal positions writes each sentence with
m_1 ... m_5 as its memory: every word attends to all five images (Figure 5).

Differs from the paper:
- All sentences have the same memory, and words attend to no other sentence, so nothing in the
  paper's text tells the decoder which of the five sentences it writes. Here a sinusoidal encoding
  of the sentence's index is added to the embeddings of the sentence's words. The frequencies of
  this encoding are in reverse order, so that no two pairs of sentence and position have equal
  encodings.
- The start token of sentences 2 to 5 is the separator.
- Missing images are masked in the attention of encoder and decoder.

With ``--compat released``, the encoder has three layers, and the decoder's memory is only the
vector m_i of the sentence's image, as in the latest version of the released code.
"""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import BatchFirstEncoder
from fairseq_mm.models._image_sequence import ImageVectors, StoryModel
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._sentence_decoder import SentenceDecoder
from fairseq_mm.modules.positions import sinusoids
from fairseq_mm.modules.transformer_layer import TransformerEncoderLayer

Compat: Any = ChoiceEnum(("none", "released"))
PAPER_LAYERS, RELEASED_LAYERS = 1, 3


@dataclass
class TranstoryFullConfig(FairseqDataclass):
    """Options of Transtory-full, after Li et al. 2020, section 4.3, and the paper's code."""

    picture_dim: int = option(1024, "Dimension of an image's projected features.")
    encoder_layers: int = option(
        0,
        f"Number of encoder layers (0: {PAPER_LAYERS} as in the paper, or {RELEASED_LAYERS} with "
        "--compat released).",
        least=0,
    )
    encoder_attention_heads: int = option(
        4, "Number of attention heads of the encoder.", divides="picture_dim"
    )
    encoder_ffn_dim: int = option(2048, "Dimension of the encoder's feed-forward layers.")
    embedding_dim: int = option(256, "Dimension of token embeddings and of encoded images.")
    decoder_layers: int = option(1, "Number of decoder layers.")
    decoder_attention_heads: int = option(
        4, "Number of attention heads of the decoder.", divides="embedding_dim"
    )
    decoder_ffn_dim: int = option(2048, "Dimension of the decoder's feed-forward layers.")
    dropout: float = option(0.1, "Dropout probability in the transformers.")
    attention_dropout: Optional[float] = option(
        None, "Dropout probability of attention weights (default: value of --dropout)."
    )
    embedding_dropout: float = option(
        0.5, "Dropout probability of the sums of token embeddings and positions."
    )
    compat: Compat = option(
        "none",
        "Compute as the code of Li et al. 2020 does (released): three encoder layers, and tokens "
        "attend only to the image of their sentence.",
    )


class TranstoryFullEncoder(BatchFirstEncoder):
    """Transformer encoder over the five images of a story."""

    def __init__(self, images: ImageVectors, cfg: TranstoryFullConfig) -> None:
        super().__init__()
        self.pictures = images
        attention_dropout = cfg.attention_dropout
        if attention_dropout is None:
            attention_dropout = cfg.dropout
        # 0 stands for the number of the paper (section 4.3) or of the released code.
        default_layers = RELEASED_LAYERS if str(cfg.compat) == "released" else PAPER_LAYERS
        self.layers: Any = nn.ModuleList(
            TransformerEncoderLayer(
                cfg.picture_dim,
                cfg.encoder_attention_heads,
                cfg.encoder_ffn_dim,
                cfg.dropout,
                attention_dropout,
            )
            for _ in range(cfg.encoder_layers or default_layers)
        )
        self.output_proj = nn.Linear(cfg.picture_dim, cfg.embedding_dim)

    def forward(self, features: Tensor, padding_mask: Tensor) -> dict[str, list[Tensor]]:
        """Encode features [B, 5 R, D] of five images, as :meth:`GlocalEncoder.forward` does."""
        x, image_padding_mask = self.pictures(features, padding_mask)
        places = torch.arange(x.size(1), device=x.device)
        x = x * math.sqrt(x.size(-1)) + sinusoids(places, x.size(-1)).to(x.dtype)
        attention_mask = ~image_padding_mask[:, None, None]
        for layer in self.layers:
            x = layer(x, attention_mask)
        return {"vectors": [self.output_proj(x)], "image_padding_mask": [image_padding_mask]}


@register_model("transtory_full", dataclass=TranstoryFullConfig)
class TranstoryFullModel(StoryModel):
    """Model that writes a story from five images: transformer encoder and decoder."""

    @classmethod
    def build_model(cls, cfg: TranstoryFullConfig, task: Any) -> "TranstoryFullModel":
        images = ImageVectors(task.feature_dim, cfg.picture_dim, task.rows_per_image)
        encoder = TranstoryFullEncoder(images, cfg)
        # The released decoder sees only the image of its sentence, so it needs no encoding of the
        # sentence's index.
        is_released = str(cfg.compat) == "released"
        decoder = SentenceDecoder(
            task.target_dictionary,
            task.separator_index,
            cfg,
            sees_all_images=not is_released,
            encodes_sentence=not is_released,
        )
        return cls(encoder, decoder, task)


register_presets(
    "transtory_full",
    {
        "transtory_full_tiny": {
            "picture_dim": 12,
            "encoder_ffn_dim": 9,
            "embedding_dim": 8,
            "decoder_ffn_dim": 10,
        }
    },
)
