"""Defines options, checks and modules of the video fusion that VG-BART and VG-T5 share."""

import logging
import math
import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError
from fairseq_mm.modules.positions import sinusoids
from fairseq_mm.modules.transformer_layer import TransformerEncoderLayer
from fairseq_mm.modules.video_fusion import KINDS, VideoFusion

logger = logging.getLogger(__name__)


class VideoTransformerEncoder(nn.Module):
    """Transformer encoder of the feature vectors of a video's frames (Yu et al. 2021, section 3.2).

    The input of the first layer is ``sqrt(dim) * frame + sinusoid of the frame's position``. The
    paper has 4 layers of 8 heads and an ``ffn_dim`` of 2048. Without ``attention_dropout``, the
    dropout of attention weights is ``dropout``.
    """

    def __init__(
        self,
        dim: int,
        num_layers: int,
        num_heads: int,
        ffn_dim: int,
        dropout: float,
        attention_dropout: Optional[float] = None,
    ) -> None:
        super().__init__()
        if attention_dropout is None:
            attention_dropout = dropout
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(dim, num_heads, ffn_dim, dropout, attention_dropout)
            for _ in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, padding_mask: Tensor) -> Tensor:
        """Encode the frames' features [B, M, dim]; the shape does not change.

        ``padding_mask`` is [B, M] bool, True at padding; values at padding are undefined.
        """
        M, D = features.shape[1:]
        frames = torch.arange(M, device=features.device)
        # Sines and cosines come in pairs; features of an odd dimension take one channel less.
        positions = sinusoids(frames, D + D % 2)[:, :D].to(features.dtype)
        x = self.dropout(features * math.sqrt(D) + positions)
        attention_mask = ~padding_mask[:, None, None]
        for layer in self.layers:
            x = layer(x, attention_mask)
        return x


FusionKind: Any = ChoiceEnum(KINDS)
OnOff: Any = ChoiceEnum(("on", "off"))
Compat: Any = ChoiceEnum(("none", "released"))
# The paper gives no number: four heads of 64 channels are as wide as BART's own heads.
HEADS, RELEASED_HEADS = 4, 1

# Parameters that a pretrained model lacks are a parameter group with its own learning rate.
ADDED = "added"


def mark_added(module: nn.Module) -> None:
    """Mark the parameters of a module, so that they can have another learning rate."""
    for parameter in module.parameters():
        parameter.param_group = ADDED  # type: ignore[attr-defined]


def add_missing_weights(model: nn.Module, weights: dict[str, Tensor]) -> bool:
    """Add the parameters of the video fusion to the weights of a text-only backbone, in place.

    They get their initial values in ``model``. Returns False if ``weights`` has them already.
    """
    added = {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if getattr(parameter, "param_group", None) == ADDED
    }
    # One added parameter proves that the checkpoint is no text-only backbone. If others are
    # missing, PyTorch reports them.
    if added.keys() & weights.keys():
        return False
    logger.info(f"a text-only checkpoint: {len(added)} added tensors keep their initial values")
    weights.update(added)
    return True


@dataclass
class VideoGuidedConfig(FairseqDataclass):
    """Options of the video fusion. The defaults are the best system of Yu et al. 2021, Table 2."""

    fusion: FusionKind = option(
        "multi_head",
        "Attention of tokens to frames (Yu et al. 2021): equations 7 to 11 (multi_head), 4 to 6 "
        "(dot_product), or 4 to 6 with projected features as values (dot_product_projected).",
    )
    fusion_encoder_layers: str = option(
        "5,6", "Encoder layers with fusion, counted from 1, such as 5,6; '' or none for no layer."
    )
    fusion_decoder_layers: str = option(
        "", "Decoder layers with fusion, counted from 1, such as 5,6; '' or none for no layer."
    )
    forget_gate: OnOff = option(
        "on",
        "Multiply the output of the attention to frames by a forget gate (Yu et al. 2021, "
        "equations 12 and 13).",
    )
    fusion_dim: int = option(256, "Dimension d_c of queries, keys and values of multi_head fusion.")
    fusion_heads: int = option(
        0,
        f"Number of heads of multi_head fusion (0: {RELEASED_HEADS} with --compat released, "
        f"else {HEADS}, or fewer where {HEADS} do not divide --fusion-dim).",
        least=0,
        divides="fusion_dim",
    )
    fusion_output_projection: OnOff = option(
        "on",
        "Project the heads' output by W_o before the forget gate (Yu et al. 2021, appendix A).",
    )
    fusion_identity_init: bool = option(
        False,
        "Begin as the text-only model: output = text + mix (fused - text), where mix is a "
        "parameter that is initially 0.",
    )
    video_encoder_layers: int = option(
        4, "Number of layers of the transformer over the frames (VTF); 0 for none.", least=0
    )
    video_encoder_heads: int = option(8, "Number of attention heads of the VTF.")
    video_encoder_ffn_dim: int = option(2048, "Dimension of the VTF's feed-forward layers.")
    video_dropout: float = option(0.1, "Dropout probability in the VTF.")
    video_attention_dropout: Optional[float] = option(
        None,
        "Dropout probability of the VTF's attention weights (default: value of --video-dropout).",
    )
    compat: Compat = option(
        "none",
        "Compute as the code of Yu et al. 2021 does (released): attention to padded frames, one "
        "head, dropout of the forget gate, and a softmax of dot products over the words instead of "
        "the frames.",
    )


def check_video_guided(cfg: Any, *, video_dim: int) -> None:
    """Check the options of the video fusion; ``video_dim`` is 0 if the task has no features."""
    layers = _parse_fusion_layers(cfg)
    for is_wrong, message in (
        (
            not any(layers.values()),
            "--fusion-encoder-layers and --fusion-decoder-layers are both empty: no layer would "
            "read the video; for a text-only model take the backbone's own --arch.",
        ),
        (
            is_released(cfg) and layers["decoder"],
            "--compat released must be without --fusion-decoder-layers: the released code has no "
            "fusion there, and a softmax over the text's positions would see the words to come.",
        ),
        (video_dim < 1, "this --arch reads features of videos, but the task gives none."),
        (
            cfg.video_encoder_layers and video_dim % cfg.video_encoder_heads,
            f"--video-encoder-heads must divide the feature dimension {video_dim}, but is "
            f"{cfg.video_encoder_heads}.",
        ),
    ):
        if is_wrong:
            raise UserError(message)


def _parse_fusion_layers(cfg: Any) -> dict[str, list[int]]:
    """Return the numbers of the layers with video fusion, by ``encoder`` and ``decoder``."""
    return {
        side: _parse_layer_numbers(
            getattr(cfg, f"fusion_{side}_layers"),
            f"--fusion-{side}-layers",
            getattr(cfg, f"{side}_layers"),
        )
        for side in ("encoder", "decoder")
    }


def _parse_layer_numbers(text: Optional[str], flag: str, num_layers: int) -> list[int]:
    text = (text or "").strip()
    if text in ("", "none"):
        return []
    parts = [x.strip() for x in text.split(",")]
    numbers = {int(x) for x in parts if re.fullmatch("[0-9]+", x) and 1 <= int(x) <= num_layers}
    if len(numbers) < len(parts):
        raise UserError(
            f"{flag} must be different numbers of layers from 1 to {num_layers}, such as 5,6, but "
            f"is {text!r}."
        )
    return sorted(numbers)


def is_released(cfg: Any) -> bool:
    return str(cfg.compat) == "released"


def complete_video_guided(config: Any, cfg: Any) -> Namespace:
    """Return a copy of a model's options, in which ``fusion_heads`` 0 is replaced by the default.

    ``config`` is the dataclass of the model, a subclass of :class:`VideoGuidedConfig`.
    """
    fields = config.__dataclass_fields__
    completed = Namespace(**{name: getattr(cfg, name) for name in fields})
    if not completed.fusion_heads:
        most = RELEASED_HEADS if is_released(completed) else HEADS
        dim = completed.fusion_dim
        completed.fusion_heads = next(heads for heads in range(most, 0, -1) if dim % heads == 0)
    return completed


def build_fusions(cfg: Any, *, text_dim: int, video_dim: int) -> dict[str, nn.ModuleDict]:
    """Build a :class:`VideoFusion` for each layer that the options name.

    Returns a dict with the keys ``encoder`` and ``decoder``. Each value is a module dict from the
    number of a layer, as a string, to the fusion after this layer.
    """
    is_dot_product = str(cfg.fusion) != "multi_head"
    fusions = {}
    for side, numbers in _parse_fusion_layers(cfg).items():
        fusions[side] = nn.ModuleDict()
        for number in numbers:
            fusions[side][str(number)] = VideoFusion(
                text_dim,
                video_dim,
                kind=str(cfg.fusion),
                common_dim=cfg.fusion_dim,
                num_heads=cfg.fusion_heads,
                forget_gate=str(cfg.forget_gate) == "on",
                dropout=cfg.dropout,
                identity_init=cfg.fusion_identity_init,
                text_axis=is_released(cfg) and is_dot_product,
                gate_dropout=cfg.dropout if is_released(cfg) else 0.0,
                output_projection=str(cfg.fusion_output_projection) == "on",
            )
        mark_added(fusions[side])
    return fusions


class VideoReader(nn.Module):
    """Module that encodes video features for the fusions by a transformer over the frames (VTF).

    Args:
        encoder: The VTF; None to leave the features as they are.
        attends_padding: True to replace padded frames by zeros and attend to them, as in the code
            of Yu et al. 2021; False to mask them.
    """

    def __init__(
        self, encoder: Optional[VideoTransformerEncoder], *, attends_padding: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.attends_padding = attends_padding
        mark_added(self)

    @classmethod
    def of_config(cls, cfg: Any, *, video_dim: int) -> "VideoReader":
        encoder = None
        if cfg.video_encoder_layers:
            encoder = VideoTransformerEncoder(
                video_dim,
                cfg.video_encoder_layers,
                cfg.video_encoder_heads,
                cfg.video_encoder_ffn_dim,
                cfg.video_dropout,
                cfg.video_attention_dropout,
            )
        return cls(encoder, attends_padding=is_released(cfg))

    def forward(
        self, features: Optional[Tensor], padding_mask: Optional[Tensor], dtype: torch.dtype
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Encode frames [B, M, D], padded at the end, in the type ``dtype`` of the text encoder.

        ``padding_mask`` is [B, M] bool, True at padding; None for no padding. Returns encoded
        frames [B, M, D], and their padding mask; None instead of the mask if padding is attended
        to.
        """
        assert features is not None
        if padding_mask is None:
            padding_mask = torch.zeros(features.shape[:2], dtype=torch.bool, device=features.device)
        # Generation casts the model, but not the batch.
        video = features.to(dtype)
        if self.attends_padding:
            # Zeros, as the released code pads its batches: features of padding are undefined here.
            video = video.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        if self.encoder is not None:
            video = self.encoder(video, padding_mask)
        return video, None if self.attends_padding else padding_mask


def numbered(layers: nn.ModuleList) -> Iterator[tuple[int, nn.Module]]:
    """Yield pairs (number from 1, layer) of the layers that layer dropout does not skip."""
    # LayerDropModuleList yields only the layers that it keeps in a training step, so layers are
    # found by identity.
    numbers = {id(layer): i for i, layer in enumerate(layers._modules.values(), start=1)}
    for layer in layers:
        yield numbers[id(layer)], layer
