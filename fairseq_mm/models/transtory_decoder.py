"""Transtory-decoder: GLAC's encoder and a transformer decoder (``--arch transtory_decoder``).

Li, Liu, Mao, Wang. Transtory-XL: Tell Stories from Image Streams. 2020, sections 3.4 and 4.3.

The glocal vector g_i of image i (see ``glac.py``) becomes m_i = ReLU(dropout(W g_i + b)) of 256,
and a transformer decoder of one layer, 4 heads and sinusoidal positions writes sentence i with
m_i as its memory. Sentences see no other sentence: coherence comes from g_i alone.

Differs from the paper:
- Attention to a memory of one vector is that vector's value whatever the query is, so the
  decoder's attention to m_i has no weights for queries and keys; what is left of it in training is
  the dropout of the attention weight, which is 1.
- A separator is fed as the start token of sentences 2 to 5.
- A missing image's m_i tells of the others alone.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    register_model,
)

from fairseq_mm.models._image_sequence import GlocalEncoder, StoryModel, image_vectors
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._sentence_decoder import SentenceDecoder
from fairseq_mm.models._story_sizes import check_sizes


@dataclass
class TranstoryDecoderConfig(FairseqDataclass):
    """Sizes of section 4.3 and of the released code."""

    picture_dim: int = field(default=1024, metadata={"help": "projected features of an image"})
    encoder_hidden_dim: int = field(
        default=1024, metadata={"help": "LSTM over the images, each direction"}
    )
    encoder_layers: int = field(default=2, metadata={"help": "of the LSTM over the images"})
    glocal_dim: int = field(default=2048, metadata={"help": "glocal vectors"})
    embedding_dim: int = field(default=256, metadata={"help": "of words and of the memory"})
    decoder_layers: int = field(default=1, metadata={"help": "of the transformer"})
    decoder_attention_heads: int = field(default=4, metadata={"help": "of the transformer"})
    decoder_ffn_dim: int = field(default=2048, metadata={"help": "feed-forward layers"})
    encoder_dropout: float = field(default=0.5, metadata={"help": "of the encoder"})
    dropout: float = field(default=0.1, metadata={"help": "in the transformer"})
    attention_dropout: Optional[float] = field(
        default=None,
        metadata={"help": "dropout probability for attention weights (default: that of --dropout)"},
    )
    embedding_dropout: float = field(
        default=0.5, metadata={"help": "of words' embeddings with their positions"}
    )


@register_model("transtory_decoder", dataclass=TranstoryDecoderConfig)
class TranstoryDecoderModel(StoryModel):
    """Stories of five images by GLAC's encoder and a transformer decoder."""

    @classmethod
    def build_model(cls, cfg: TranstoryDecoderConfig, task: Any) -> "TranstoryDecoderModel":
        check_sizes(TranstoryDecoderConfig, cfg, heads={"decoder_attention_heads": "embedding_dim"})
        encoder = GlocalEncoder(
            image_vectors(task, cfg.picture_dim),
            vector_dim=cfg.picture_dim,
            hidden_dim=cfg.encoder_hidden_dim,
            num_layers=cfg.encoder_layers,
            glocal_dim=cfg.glocal_dim,
            output_dim=cfg.embedding_dim,
            dropout=cfg.encoder_dropout,
        )
        decoder = SentenceDecoder(
            task.target_dictionary,
            task.separator_index,
            embedding_dim=cfg.embedding_dim,
            num_layers=cfg.decoder_layers,
            num_heads=cfg.decoder_attention_heads,
            inner_dim=cfg.decoder_ffn_dim,
            dropout=cfg.dropout,
            attention_dropout=cfg.attention_dropout,
            embedding_dropout=cfg.embedding_dropout,
            sees_all_images=False,
            encodes_sentence=False,
        )
        return cls(encoder, decoder, task)


register_presets(
    "transtory_decoder",
    {
        "transtory_decoder_tiny": {  # for tests
            "picture_dim": 6,
            "encoder_hidden_dim": 4,
            "glocal_dim": 9,
            "embedding_dim": 8,
            "decoder_ffn_dim": 10,
        },
    },
)
