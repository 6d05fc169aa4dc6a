"""Checks and converts the weights that are loaded into VG-BART, T5 and VG-T5.

VG-BART and VG-T5 can start from the weights of a text-only BART or T5, their backbone. The
parameters of the video fusion, which the backbone lacks, are added to the weights. A backbone with
another number or size of layers is refused.
"""

import logging
from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import STATE_KEY, decode_provenance, encode_json
from fairseq_mm.models._vg_bart_parts import DUPLICATES
from fairseq_mm.models._video_guided import ADDED

logger = logging.getLogger(__name__)
Weights = dict[str, Tensor]


class BartBackbone(NamedTuple):
    """Numbers and sizes of the layers of a BART, as read from its weights."""

    encoder_layers: int
    decoder_layers: int
    embed_dim: int
    ffn_dim: int
    source_positions: int
    target_positions: int

    def __str__(self) -> str:
        return (
            f"{self.encoder_layers} encoder and {self.decoder_layers} decoder layers, "
            f"{self.embed_dim} channels, feed-forward layers of {self.ffn_dim}, positions for "
            f"{self.source_positions} and {self.target_positions} tokens"
        )


class T5Backbone(NamedTuple):
    """Numbers and sizes of the layers of a T5, as read from its weights."""

    encoder_layers: int
    decoder_layers: int
    model_dim: int
    inner_dim: int
    attention_heads: int
    attention_dim: int
    is_gated: bool
    has_own_output: bool

    def __str__(self) -> str:
        return (
            f"{self.encoder_layers} encoder and {self.decoder_layers} decoder layers of "
            f"{self.model_dim} channels, {self.attention_heads} heads of "
            f"{self.attention_dim // self.attention_heads}, feed-forward layers of "
            f"{self.inner_dim} {'with' if self.is_gated else 'without'} gates, "
            f"{'an output layer of its own' if self.has_own_output else 'a tied output'}"
        )


def bart_backbone(weights: Weights) -> Optional[BartBackbone]:
    """Read the layer sizes of a BART from its weights; return None for weights of another model."""
    try:
        return BartBackbone(
            _count_layers(weights, "encoder"),
            _count_layers(weights, "decoder"),
            weights["encoder.layernorm_embedding.weight"].size(0),
            weights["encoder.layers.0.fc1.weight"].size(0),
            # fairseq numbers positions from padding_idx + 1, so the first two rows serve no token
            weights["encoder.embed_positions.weight"].size(0) - 2,
            weights["decoder.embed_positions.weight"].size(0) - 2,
        )
    except KeyError:
        return None


def t5_backbone(weights: Weights) -> Optional[T5Backbone]:
    """Read the layer sizes of a T5 from its weights; return None for weights of another model."""
    try:
        layer = "encoder.layers.0"
        return T5Backbone(
            _count_layers(weights, "encoder"),
            _count_layers(weights, "decoder"),
            weights["encoder.embedding.weight"].size(1),
            weights[f"{layer}.feed_forward.inner_proj.weight"].size(0),
            weights["encoder.relative_bias.weight"].size(1),
            weights[f"{layer}.self_attention.query_proj.weight"].size(0),
            f"{layer}.feed_forward.gate_proj.weight" in weights,
            "decoder.output_proj.weight" in weights,
        )
    except KeyError:
        return None


def _count_layers(weights: Weights, side: str) -> int:
    indices = {key.split(".")[2] for key in weights if key.startswith(f"{side}.layers.")}
    return sum(index.isdigit() for index in indices)


def fit_bart_weights(model: nn.Module, weights: Weights, arch: str) -> None:
    """Convert a checkpoint's weights in place so that they fit a VG-BART.

    - Stock fairseq saves some parameters of encoder layers twice; the second copies are dropped.
    - A text-only BART lacks the parameters of the video fusion; they are added with their initial
      values in ``model``.
    - Published BARTs contain no provenance (record of dictionaries and features); the provenance of
      ``model`` is added.

    Args:
        model: The VG-BART; not changed.
        weights: Weights of a VG-BART or a text-only BART by name.
        arch: Name of the model's architecture, for messages.
    """
    own = model.state_dict()
    expected, backbone = bart_backbone(own), bart_backbone(weights)
    if backbone != expected:
        raise UserError(
            f"the checkpoint's backbone is another than the BART of --arch {arch}: "
            f"{backbone or _examples(weights)}; expected {expected}."
        )
    _check_vocabulary(own, weights, model)
    for key in list(weights):
        if key.startswith("encoder.layers.") and key.endswith(DUPLICATES) and key not in own:
            del weights[key]
    _add_missing(model, weights, "BART")
    # Published BARTs have no record of their data.
    weights.setdefault(STATE_KEY, own[STATE_KEY])


def _check_vocabulary(own: Weights, weights: Weights, model: Any) -> None:
    key = "encoder.embed_tokens.weight"
    num_words, expected = len(weights[key]), len(own[key])
    if num_words == expected:
        return
    # fairseq's own BART task appends <mask> to the dictionary; a summarisation task has no such
    # symbol, and BARTModel drops the row.
    if num_words == expected + 1 and "<mask>" not in model.encoder.dictionary:
        logger.info("the checkpoint's last embedding, that of <mask>, is left out")
        return
    if STATE_KEY in weights:
        # a checkpoint of this package: the comparison of dictionaries gives a better message
        return
    raise UserError(
        f"the checkpoint has embeddings of {num_words} words, but the dictionary has {expected}: "
        "prepare the data with the checkpoint's own dict.txt, and --padding-factor 1."
    )


def check_t5_weights(model: nn.Module, weights: Weights) -> None:
    """Check that a checkpoint's weights have the layer sizes of ``model``, a T5 or VG-T5."""
    backbone, expected = t5_backbone(weights), t5_backbone(model.state_dict())
    if backbone != expected:
        raise UserError(
            "the checkpoint's backbone is another than the model's T5: "
            f"{backbone or _examples(weights)}; expected {expected}. fairseq-mm convert makes "
            "checkpoints of Hugging Face's T5."
        )


def add_missing_t5_weights(model: Any, weights: Weights) -> None:
    """Complete the weights of a text-only T5 in place, so that they fit the VG-T5 ``model``.

    The parameters of the video fusion are added, with their initial values in ``model``. If the
    weights contain provenance (record of dictionaries and features), its feature dimension becomes
    the feature dimension of ``model``. Weights of a VG-T5 do not change.
    """
    if _add_missing(model, weights, "T5") and STATE_KEY in weights:
        provenance = decode_provenance(weights[STATE_KEY])
        feature_dim = model.data_version.feature_dim
        # The record of a text-only T5 says "no features", for which the model would refuse it.
        weights[STATE_KEY] = encode_json({**provenance, "feature_dim": feature_dim})


def _add_missing(model: nn.Module, weights: Weights, backbone: str) -> bool:
    """Add the parameters of the video fusion to the weights of a text-only BART or T5, in place."""
    own = model.state_dict()
    added = [
        name
        for name, parameter in model.named_parameters()
        if getattr(parameter, "param_group", None) == ADDED
    ]
    # One added parameter proves that the checkpoint is no text-only backbone. If others are
    # missing, PyTorch reports them.
    if any(name in weights for name in added):
        return False
    logger.info(
        f"the checkpoint is a text-only {backbone}: {len(added)} added tensors keep their initial "
        "values"
    )
    weights.update({name: own[name] for name in added})
    return True


def _examples(weights: Weights) -> str:
    return ", ".join(sorted(key for key in weights if key != STATE_KEY)[:2])
