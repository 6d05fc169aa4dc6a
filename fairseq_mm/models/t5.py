"""T5, a text-to-text transformer (``--arch t5_small``, ``t5_base``, ``t5_large``).

Raffel et al. Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer.
JMLR 2020, section 2.1. It is the text-only baseline of Yu et al. 2021, and the backbone of VG-T5.

- A norm, which divides by the root mean square and has no bias, precedes each sub-layer and follows
  the last layer of encoder and decoder.
- Attention scores are not scaled. A learned bias for each head and each bucket (range of distances
  between tokens) is added to the scores, the same bias in all layers. There are 32 buckets, for
  distances up to 128; the buckets of the decoder are only for distances to earlier tokens. There
  are no other position embeddings. No linear layer has a bias.
- Encoder, decoder and output layer share one embedding of dimension D, and the inputs of the output
  layer are scaled by D^-0.5.
- The decoder's start token is the padding token (``start_index``), so the decoder masks no padding.
  No mask is needed: padding is on the right, and each token sees only earlier tokens.
- ``--feed-forward gated_gelu --untied-output`` is T5 version 1.1 and FLAN-T5, in which feed-forward
  layers have a gate, and the output layer has its own matrix.

``fairseq-mm convert`` converts Hugging Face's T5 to a checkpoint, a dictionary and a sentencepiece
model.

Differs from Yu et al. 2021: they write of six layers in T5-base's encoder and decoder (section
4.2); T5-base has twelve each, T5-small six.
"""

from dataclasses import dataclass
from typing import Any, Callable, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoderDecoderModel, register_model
from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.models._backbone_weights import check_t5_weights
from fairseq_mm.models._bases import LoadStateDictMixin
from fairseq_mm.models._options import check_one_dictionary, check_sizes, option
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance, list_words
from fairseq_mm.models._t5_stack import T5Decoder, T5Encoder

FeedForward: Any = ChoiceEnum(("relu", "gated_gelu"))


@dataclass
class T5Config(FairseqDataclass):
    """Options of T5. The default sizes follow T5-base (Raffel et al. 2020, section 3.1.1)."""

    model_dim: int = option(768, "Dimension of embeddings and layers.")
    attention_heads: int = option(12, "Number of heads of every attention.")
    head_dim: int = option(64, "Dimension of each attention head (d_kv).")
    ffn_dim: int = option(3072, "Dimension of the feed-forward layers.")
    encoder_layers: int = option(12, "Number of encoder layers.")
    decoder_layers: int = option(12, "Number of decoder layers.")
    dropout: float = option(
        0.1,
        "Dropout probability of embeddings, sub-layers, attention weights and inside feed-forward "
        "layers.",
    )
    feed_forward: FeedForward = option(
        "relu", "Feed-forward layer: relu as in T5, or gated_gelu as in T5 1.1 and FLAN-T5."
    )
    untied_output: bool = option(
        False, "Use an output layer with its own matrix and unscaled inputs, as T5 1.1 and FLAN-T5."
    )
    relative_buckets: int = option(
        32, "Number of buckets (ranges of distances between tokens) with a learned bias."
    )
    max_distance: int = option(128, "Distance from which on all distances are in one bucket.")
    norm_epsilon: float = option(1e-6, "Number added to mean squares before the root.")
    max_source_positions: int = option(1024, "Maximum length of a source, in tokens.")
    max_target_positions: int = option(1024, "Maximum length of a target, in tokens.")


def check_t5_options(config: type, cfg: Any, task: Any) -> None:
    """Check the options of a T5 before it is built.

    Args:
        config: Dataclass of the model; its fields are the options to check.
        cfg: Config with the values of these options.
        task: Task, whose dictionaries are checked.
    """
    check_sizes(config, cfg)
    # Half of the buckets serve each direction, and half of each hold one distance each.
    buckets = cfg.relative_buckets
    if buckets < 4 or buckets % 4 or cfg.max_distance <= buckets // 2:
        raise UserError(
            f"--relative-buckets must be a multiple of 4 and less than twice --max-distance "
            f"({cfg.max_distance}), but is {buckets}."
        )
    check_one_dictionary(task)


def build_t5_parts(
    cfg: Any, task: Any, encoder: Callable[..., Any], decoder: Callable[..., Any]
) -> tuple[Any, Any]:
    """Build an encoder and a decoder with a common word embedding.

    Args:
        cfg: Config with the fields of :class:`T5Config`.
        task: Task, whose dictionaries are used.
        encoder: :class:`T5Encoder`, or a function with the same arguments that builds an encoder.
        decoder: :class:`T5Decoder`, or a function with the same arguments that builds a decoder.
    """
    dictionary = task.target_dictionary
    # no padding_idx: the padding token is the start token, whose embedding must learn
    embedding = nn.Embedding(len(dictionary), cfg.model_dim)
    nn.init.normal_(embedding.weight)
    output: Optional[nn.Linear] = None
    if cfg.untied_output:
        output = nn.Linear(cfg.model_dim, len(dictionary), bias=False)
        nn.init.normal_(output.weight, std=cfg.model_dim**-0.5)
    return (
        encoder(task.source_dictionary, embedding, cfg),
        decoder(dictionary, embedding, cfg, output=output),
    )


@register_model("t5", dataclass=T5Config)
class T5Model(LoadStateDictMixin, FairseqEncoderDecoderModel):
    """T5 model.

    ``provenance``, the record of dictionary and subwords, becomes part of the state dict.
    """

    def __init__(self, encoder: T5Encoder, decoder: T5Decoder, provenance: Provenance) -> None:
        super().__init__(encoder, decoder)
        self.data_version = provenance
        # T5 starts from its padding token; the task hands start_index to the generator.
        self.start_index = decoder.dictionary.pad()

    @classmethod
    def build_model(cls, cfg: T5Config, task: Any) -> "T5Model":
        check_t5_options(T5Config, cfg, task)
        encoder, decoder = build_t5_parts(cfg, task, T5Encoder, T5Decoder)
        words = list_words(task.target_dictionary)
        subwords = getattr(task, "subwords_state", None)
        return cls(encoder, decoder, Provenance(words, {}, 0, words, subwords=subwords))

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute logits [B, T, V] from sources [B, S] and targets [B, T], padded on the right.

        The second result is a dict without attention weights. See :meth:`T5Encoder.forward` for the
        sources.
        """
        return self.decoder(prev_output_tokens, self.encoder(src_tokens, src_lengths))

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Check that a checkpoint's weights belong to a T5 with the sizes of this model."""
        check_t5_weights(self, state_dict)
        super().upgrade_state_dict_named(state_dict, name)


def _sizes(model_dim: int, attention_heads: int, ffn_dim: int, layers: int) -> dict[str, int]:
    return {
        "model_dim": model_dim,
        "attention_heads": attention_heads,
        "head_dim": 64,
        "ffn_dim": ffn_dim,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }


# the published sizes, of 60, 220 and 770 million parameters
SMALL = _sizes(512, 8, 2048, 6)
BASE = _sizes(768, 12, 3072, 12)
LARGE = _sizes(1024, 16, 4096, 24)
TINY = {
    "model_dim": 12,
    "attention_heads": 2,
    "head_dim": 5,
    "ffn_dim": 14,
    "encoder_layers": 3,
    "decoder_layers": 2,
}
register_presets(
    "t5",
    {
        "t5_small": SMALL,
        "t5_base": BASE,
        "t5_large": LARGE,
        "t5_tiny": TINY,
    },
)
