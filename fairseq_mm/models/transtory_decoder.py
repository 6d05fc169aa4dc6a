"""Transtory-decoder: GLAC's encoder and a transformer decoder (``--arch transtory_decoder``).

Li, Liu, Mao, Wang. Transtory-XL: Tell Stories from Image Streams. 2020, sections 3.4 and 4.3.

The glocal vector g_i of image i (see ``glac.py``) becomes m_i = ReLU(dropout(W g_i + b)) of 256
dimensions. A transformer decoder of one layer, 4 heads and sinusoidal positions writes sentence i
and attends to m_i as its memory. Words attend to no other sentence, so that coherence comes only
from g_i, which depends on all images.

Differs from the paper:
- Attention to a memory of one vector returns that vector's value for every query, so the decoder's
  attention to m_i has no matrices for queries and keys. In training, dropout is still applied to
  the attention weight, which is 1.
- The start token of sentences 2 to 5 is the separator.
- The m_i of a missing image depends only on the other images.
"""

from dataclasses import dataclass
from typing import Any, Optional

from fairseq.models import register_model

from fairseq_mm.compat.options import option
from fairseq_mm.models._image_sequence import GlocalConfig, GlocalEncoder, ImageVectors, StoryModel
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._sentence_decoder import SentenceDecoder


@dataclass
class TranstoryDecoderConfig(GlocalConfig):
    """Options of Transtory-decoder, after Li et al. 2020, section 4.3, and the paper's code."""

    embedding_dim: int = option(256, "Dimension of token embeddings and of encoded images.")
    decoder_layers: int = option(1, "Number of decoder layers.")
    decoder_attention_heads: int = option(
        4, "Number of attention heads of the decoder.", divides="embedding_dim"
    )
    decoder_ffn_dim: int = option(2048, "Dimension of the decoder's feed-forward layers.")
    encoder_dropout: float = option(0.5, "Dropout probability of the encoder.")
    dropout: float = option(0.1, "Dropout probability in the transformer.")
    attention_dropout: Optional[float] = option(
        None, "Dropout probability of attention weights (default: value of --dropout)."
    )
    embedding_dropout: float = option(
        0.5, "Dropout probability of the sums of token embeddings and positions."
    )


@register_model("transtory_decoder", dataclass=TranstoryDecoderConfig)
class TranstoryDecoderModel(StoryModel):
    """Model that writes a story from five images: GLAC's encoder and a transformer decoder."""

    @classmethod
    def build_model(cls, cfg: TranstoryDecoderConfig, task: Any) -> "TranstoryDecoderModel":
        images = ImageVectors(task.feature_dim, cfg.picture_dim, task.rows_per_image)
        encoder = GlocalEncoder(images, cfg, cfg.embedding_dim)
        decoder = SentenceDecoder(
            task.target_dictionary,
            task.separator_index,
            cfg,
            sees_all_images=False,
            encodes_sentence=False,
        )
        return cls(encoder, decoder, task)


register_presets(
    "transtory_decoder",
    {
        "transtory_decoder_tiny": {
            "picture_dim": 6,
            "encoder_hidden_dim": 4,
            "glocal_dim": 9,
            "embedding_dim": 8,
            "decoder_ffn_dim": 10,
        }
    },
)
