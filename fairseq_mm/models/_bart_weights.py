"""Weights of a text-only BART, or of another build of fairseq, for VG-BART."""

import logging
from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.models._added_parameters import ADDED
from fairseq_mm.models._provenance import STATE_KEY
from fairseq_mm.models._vg_bart_parts import DUPLICATES

logger = logging.getLogger(__name__)
Weights = dict[str, Tensor]


class BackboneSizes(NamedTuple):
    """Of a BART, as its weights tell them."""

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


def fit_weights(model: nn.Module, weights: Weights, arch: str) -> None:
    """Makes a checkpoint's weights those of ``model``, in place, as far as they are BART's.

    - Stock fairseq's second copies of encoder layers' parameters are dropped, where the model has
      none.
    - A text-only BART gets the model's added parameters, as they were initialised, and its
      provenance.

    Args:
        model: VG-BART.
        weights: of a VG-BART, or of a BART of fairseq's.
        arch: of the model, for the message.

    Raises:
        UserError: if the backbone is another one.
    """
    own = model.state_dict()
    _check_backbone(own, weights, arch)
    _check_vocabulary(own, weights, model)
    for key in list(weights):
        if key.startswith("encoder.layers.") and key.endswith(DUPLICATES) and key not in own:
            del weights[key]
    new = _added_keys(model)
    if not any(key in weights for key in new):
        logger.info(
            "the checkpoint is a text-only BART: %d added tensors keep their initial values",
            len(new),
        )
        weights.update({key: own[key] for key in new})
    if STATE_KEY not in weights:
        weights[STATE_KEY] = own[STATE_KEY]


def _added_keys(model: nn.Module) -> list[str]:
    return [
        name
        for name, parameter in model.named_parameters()
        if getattr(parameter, "param_group", None) == ADDED
    ]


def backbone_sizes(weights: Weights) -> Optional[BackboneSizes]:
    """Sizes of a BART; None where the weights are of no BART."""
    try:
        return BackboneSizes(
            _count_layers(weights, "encoder"),
            _count_layers(weights, "decoder"),
            weights["encoder.layernorm_embedding.weight"].size(0),
            weights["encoder.layers.0.fc1.weight"].size(0),
            # fairseq's tables count from padding_idx + 1
            weights["encoder.embed_positions.weight"].size(0) - 2,
            weights["decoder.embed_positions.weight"].size(0) - 2,
        )
    except KeyError:
        return None


def _count_layers(weights: Weights, side: str) -> int:
    numbers = {
        key.split(".")[2]
        for key in weights
        if key.startswith(f"{side}.layers.") and key.split(".")[2].isdigit()
    }
    return len(numbers)


def _check_backbone(own: Weights, weights: Weights, arch: str) -> None:
    expected, found = backbone_sizes(own), backbone_sizes(weights)
    if found is None:
        some = ", ".join(sorted(key for key in weights if key != STATE_KEY)[:2])
        raise UserError(
            f"the checkpoint's backbone is no BART of fairseq's (it has weights such as {some}), "
            f"but --arch {arch} was built on one."
        )
    if found != expected:
        raise UserError(
            f"the checkpoint's backbone is another BART than that of --arch {arch}: {found}; "
            f"expected {expected}."
        )


def _check_vocabulary(own: Weights, weights: Weights, model: Any) -> None:
    key = "encoder.embed_tokens.weight"
    found, expected = len(weights[key]), len(own[key])
    if found == expected:
        return
    if found == expected + 1 and "<mask>" not in model.encoder.dictionary:
        logger.info("the checkpoint's last embedding, that of <mask>, is left out")
        return
    if STATE_KEY in weights:
        return  # which dictionaries differ, and how, is said by their comparison
    raise UserError(
        f"the checkpoint has embeddings of {found} words, but the dictionary has {expected}: "
        "prepare the data with the checkpoint's own dict.txt, and --padding-factor 1."
    )
