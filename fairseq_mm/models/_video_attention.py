"""Records the weights and gates with which the words of a model attend to video frames."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_mm.models._video_guided import VideoReader
from fairseq_mm.models._video_summary import TwoSourceDecoder
from fairseq_mm.modules.cross_fusion import CrossFusion
from fairseq_mm.modules.video_fusion import FusionTrace

TRANSCRIPT, SUMMARY = "transcript", "summary"


class TracedLayer(NamedTuple):
    """Attention of words to video frames in one layer, for one batch.

    Attributes:
        side: Text to which the words belong, ``transcript`` or ``summary``.
        weights: [B, N, M] mean over the heads of the weights of N words for M frames; None if only
            the gate is recorded.
        gates: [B] mean of the forget gate over channels and words without padding, or None.
        video_shares: [B, N] weight of the video against the transcript; None for other models.
    """

    name: str
    side: str
    weights: Optional[Tensor]
    gates: Optional[Tensor]
    video_shares: Optional[Tensor] = None


class VideoAttentionTracer:
    """Tracer that runs a model and records its attention to frames.

    Args:
        model: VG-BART, VG-T5, MFFG or a hierarchical attention model, in evaluation mode.

    Attributes:
        is_two_source: True for hierarchical attention and MFFG, False for VG-BART and VG-T5.
        gate_layers: Names of the layers with a forget gate, in the order of :meth:`trace`.
        sums_over_words: True if the weights of a frame sum to 1 over the words (``--compat
            released``); False if the weights of a word sum to 1 over the frames.
        attends_padding: True if padded frames are attended to (``--compat released``).
        has_decoder_fusions: True if the decoder of VG-BART or VG-T5 has fusions.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.is_two_source = isinstance(model.decoder, TwoSourceDecoder)
        self._fusions = {
            side: dict(getattr(part, "fusions", {}))
            for side, part in ((TRANSCRIPT, model.encoder), (SUMMARY, model.decoder))
        }
        every = [fusion for fusions in self._fusions.values() for fusion in fusions.values()]
        self.sums_over_words = any(fusion.text_axis for fusion in every)
        self.attends_padding = any(
            part.attends_padding for part in model.modules() if isinstance(part, VideoReader)
        )
        self.has_decoder_fusions = bool(self._fusions[SUMMARY])
        blocks = [part for part in model.modules() if isinstance(part, CrossFusion)]
        # A cross fusion block has two gates; this one scales what the text receives from the video.
        self._cross_gate = blocks[0].text_fusion.gate_proj if blocks else None
        self.gate_layers = [
            _name(side, number)
            for side, fusions in self._fusions.items()
            for number, fusion in fusions.items()
            if fusion.gate_proj is not None
        ] + (["cross fusion"] if blocks else [])

    @torch.no_grad()
    def trace(
        self, inputs: Mapping[str, Tensor], valid_mask: Mapping[str, Tensor], *, needs_decoder: bool
    ) -> list[TracedLayer]:
        """Run the model on a batch and return its attention to frames, one entry per layer.

        ``inputs`` is the ``net_input`` of the batch. ``valid_mask`` maps ``transcript`` and
        ``summary`` to masks [B, N] of their tokens, False at padding.
        """
        gates: list[Tensor] = []
        handle = None
        if self._cross_gate is not None:
            # A hook, because cross fusion is computed inside the encoder, which returns no gates.
            handle = self._cross_gate.register_forward_hook(lambda *call: gates.append(call[2]))
        trace = FusionTrace()
        try:
            encoder_out = self.model.encoder(
                *(inputs[name] for name in ("src_tokens", "src_lengths", "features")),
                inputs["padding_mask"],
                **self._option(trace),
            )
        finally:
            if handle is not None:
                handle.remove()
        layers = self._traced(TRANSCRIPT, trace, valid_mask[TRANSCRIPT])
        for gate in gates:
            mean = _mean_gate(gate.sigmoid(), valid_mask[TRANSCRIPT])
            layers.append(TracedLayer("cross fusion", TRANSCRIPT, None, mean))
        if not needs_decoder:
            return layers
        trace = FusionTrace()
        _, extra = self.model.decoder.extract_features(
            inputs["prev_output_tokens"], encoder_out, **self._option(trace)
        )
        layers += self._traced(SUMMARY, trace, valid_mask[SUMMARY])
        if self.is_two_source:
            # Weights of text and video sum to 1, so the second says everything.
            shares = extra["modality_attention"][..., 1]
            layers.append(TracedLayer("decoder", SUMMARY, extra["frame_attention"], None, shares))
        return layers

    def _option(self, trace: FusionTrace) -> dict[str, FusionTrace]:
        return {} if self.is_two_source else {"trace": trace}

    def _traced(self, side: str, trace: FusionTrace, valid_mask: Tensor) -> list[TracedLayer]:
        gates = iter(trace.gates)
        layers = []
        for (number, fusion), weights in zip(self._fusions[side].items(), trace.weights):
            gate = None if fusion.gate_proj is None else _mean_gate(next(gates), valid_mask)
            mean = weights.float().mean(dim=1)
            layers.append(TracedLayer(_name(side, number), side, mean, gate))
        return layers


def _name(side: str, number: str) -> str:
    return f"{'encoder' if side == TRANSCRIPT else 'decoder'} layer {number}"


def _mean_gate(gate: Tensor, valid_mask: Tensor) -> Tensor:
    """Average gates [B, N, W] over the channels and the positions without padding, to [B]."""
    by_position = gate.double().mean(dim=-1).masked_fill(~valid_mask, 0.0)
    return by_position.sum(dim=1) / valid_mask.sum(dim=1)
