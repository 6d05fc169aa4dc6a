"""Speeds up generation with fairseq's own BART, the text-only baseline of VG-BART."""

from typing import Any

from fairseq.models.bart import BARTModel
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerDecoderBase,
    TransformerEncoder,
    TransformerEncoderBase,
)
from torch import Tensor, nn

from fairseq_mm.models._shared_memory import ROWS, EncoderOut, reorder_items
from fairseq_mm.models._vg_bart_parts import VgBartDecoder, let_layers_use_packed_weights

# Attributes of fairseq's decoder layers that change the computation of a step, with the value that
# leaves it as VG-BART's decoder computes it.
_PLAIN_LAYER = {"c_attn": None, "w_resid": None, "attn_ln": None, "ffn_layernorm": None}
_PLAIN_DECODER = {
    "adaptive_softmax": None,
    "project_in_dim": None,
    "project_out_dim": None,
    "quant_noise": None,
    "cross_self_attention": False,
}


class _SharedEncoder(TransformerEncoder):
    """Encoder of fairseq's BART whose output the beams of an example share."""

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOut:
        out = super().forward(*args, **kwargs)
        return {**out, "video": [], "video_padding_mask": [], ROWS: []}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return reorder_items(encoder_out, new_order, encoder_out["encoder_out"][0].size(1))

    # BARTModel.set_beam_size puts this method in the place of the other.
    _reorder_encoder_out = reorder_encoder_out


def _is_plain(module: nn.Module, values: dict[str, Any]) -> bool:
    """Return True if no attribute of a module differs from ``values`` (name -> value)."""
    return all(getattr(module, name, value) == value for name, value in values.items())


def share_beams(model: nn.Module) -> None:
    """Let fairseq's BART generate with the decoding steps of VG-BART, see :class:`VgBartDecoder`.

    The beams of an example then share the keys and values of its source. Texts and scores stay the
    same. Other models, and a BART with options that VG-BART lacks, do not change.

    Args:
        model: Model in evaluation mode, which is not trained afterwards.
    """
    if type(model) is not BARTModel:
        return
    encoder: Any = model.encoder
    decoder: Any = model.decoder
    if (
        type(encoder) in (TransformerEncoder, TransformerEncoderBase)
        and type(decoder) in (TransformerDecoder, TransformerDecoderBase)
        and decoder.embed_positions is not None
        and _is_plain(decoder, _PLAIN_DECODER)
        and all(_is_plain(layer, _PLAIN_LAYER) for layer in decoder.layers)
    ):
        let_layers_use_packed_weights(encoder)
        # The classes add methods and no state but the fusions, of which a text-only BART has none.
        encoder.__class__ = _SharedEncoder
        # Left by BARTModel.set_beam_size, if a generator was built before.
        vars(encoder).pop("reorder_encoder_out", None)
        decoder.__class__ = VgBartDecoder
        decoder.fusions = nn.ModuleDict()
