"""Weights of a text-only T5 for VG-T5, and of another backbone for neither."""

import logging
from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.models._added_parameters import ADDED
from fairseq_mm.models._provenance import STATE_KEY, decode_provenance, encode_json

logger = logging.getLogger(__name__)
Weights = dict[str, Tensor]


class T5Backbone(NamedTuple):
    """What weights tell of a T5."""

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


def t5_backbone(weights: Weights) -> Optional[T5Backbone]:
    """None where the weights are of no T5."""
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
    return len({key.split(".")[2] for key in weights if key.startswith(f"{side}.layers.")})


def check_t5_weights(model: nn.Module, weights: Weights) -> None:
    """
    Args:
        model: T5 or VG-T5.
        weights: of a checkpoint.

    Raises:
        UserError: if the checkpoint's backbone is another one.
    """
    found, expected = t5_backbone(weights), t5_backbone(model.state_dict())
    if found is None:
        some = ", ".join(sorted(key for key in weights if key != STATE_KEY)[:2])
        raise UserError(
            f"the checkpoint is of no T5 (it has weights such as {some}), but the model is one; "
            "fairseq-mm convert makes checkpoints of Hugging Face's T5."
        )
    if found != expected:
        raise UserError(
            f"the checkpoint's T5 is another than the model's: it has {found}, the model has "
            f"{expected}."
        )


def add_missing_weights(model: Any, weights: Weights) -> None:
    """Gives a text-only T5's checkpoint, in place, what VG-T5 has besides, as it was initialised.

    Args:
        model: VG-T5.
        weights: of a checkpoint; those of a VG-T5 stay as they are.
    """
    own = model.state_dict()
    new = [name for name, x in model.named_parameters() if getattr(x, "param_group", None) == ADDED]
    if any(name in weights for name in new):
        return
    logger.info(f"the checkpoint is a text-only T5: {len(new)} added tensors keep their values")
    weights.update({name: own[name] for name in new})
    if STATE_KEY not in weights:
        return
    provenance = decode_provenance(weights[STATE_KEY])
    weights[STATE_KEY] = encode_json({**provenance, "feature_dim": model.data_version.feature_dim})
