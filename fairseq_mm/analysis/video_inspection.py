"""Computes attention to video frames and forget gates of summarizers (Yu et al. 2021, section 5.4).

from fairseq_mm.analysis.video_inspection import VideoInspection
from fairseq_mm.inference.checkpoint import Checkpoint

checkpoints = Checkpoint.open_all("checkpoints/vg_bart")
inspection = VideoInspection.from_checkpoints(checkpoints, "data-bin/how2", "test")
gates = inspection.gate_scores()                  # one score per video
gates.ids, gates.scores, gates.by_layer           # for n videos: [n], [n], [n, layers]
for line in inspection.frame_attention([0, 7]):
    for attention in line.maps:
        attention.words, attention.weights        # W words, [layers, W, frames]
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_mm.analysis import rounded, to_array
from fairseq_mm.data.indexed_oov import index_with, restore_oov_words
from fairseq_mm.data.records import open_split
from fairseq_mm.data.subwords import by_word, join_pieces
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint, usable_device
from fairseq_mm.models._video_guided import VideoReader
from fairseq_mm.models._video_summary import TwoSourceDecoder
from fairseq_mm.modules.cross_fusion import CrossFusion
from fairseq_mm.modules.video_fusion import FusionTrace
from fairseq_mm.tasks.video_summarization import VideoSummarizationConfig, VideoSummarizationTask

TRANSCRIPT, SUMMARY = "transcript", "summary"
# Dict from video id to the summary that the decoder reads in place of the reference
Summaries = Optional[Mapping[str, str]]


class GateScores(NamedTuple):
    """Forget gates of n videos, averaged over the text's positions and the feature dimension."""

    lines: np.ndarray  # [n] indices of the lines in the split, from 0
    ids: list[str]  # ids of the videos
    layers: list[str]  # names of the L layers with a forget gate
    by_layer: np.ndarray  # [n, L] mean value of the gate in each layer

    @property
    def scores(self) -> np.ndarray:
        """Mean of each video's gate values over the layers, [n]."""
        return self.by_layer.mean(axis=1)

    def records(self) -> list[dict[str, Any]]:
        """Return a JSON record for each video with its gate values."""
        rows = zip(self.ids, self.lines.tolist(), rounded(self.scores), rounded(self.by_layer))
        return [
            {"id": key, "item": line, "score": score, "layers": dict(zip(self.layers, values))}
            for key, line, score, values in rows
        ]


class AttentionMap(NamedTuple):
    """Attention of the W words of one text to the M frames of a video."""

    side: str  # ``transcript`` or ``summary``, the kind of the text
    words: list[str]  # words as written, not subwords; the last is ``</s>``
    is_known: list[bool]  # [W] True if the word is in the dictionary
    layers: list[str]  # names of the L layers whose attention was recorded
    # [L, W, M] attention weights, averaged over the heads and over a word's subwords. The weights
    # of a word sum to 1.
    weights: np.ndarray
    # True if the softmax is over the words, as in the code that Yu et al. 2021 released. The
    # weights of a frame then sum to 1, and the weights of a word's subwords are added instead of
    # averaged.
    sums_over_words: bool = False
    # [W] weight that the model gives to the video at each word; the transcript has the rest up to
    # 1. None for models that do not weigh video and transcript.
    video_shares: Optional[np.ndarray] = None

    def record(self, *, layers: bool = False) -> dict[str, Any]:
        """Return a JSON record with an entry per word: its weights for the frames, averaged over
        the layers; with ``layers``, also the weights of each layer."""
        words = []
        for w, word in enumerate(self.words):
            entry = {"word": word, "known": self.is_known[w]}
            entry["weights"] = rounded(self.weights[:, w].mean(axis=0))
            if self.video_shares is not None:
                entry["video_share"] = rounded(self.video_shares[w])
            if layers:
                entry["layers"] = rounded(self.weights[:, w])
            words.append(entry)
        over = "words" if self.sums_over_words else "frames"
        return {"of": self.side, "layers": self.layers, "sums_over": over, "words": words}


class LineAttention(NamedTuple):
    """Attention in one line of a split."""

    line: int  # index of the line, from 0
    id: str  # id of the video
    num_frames: int  # number M of the video's frames
    # attention of the words of the transcript, of the summary, or of both texts
    maps: list[AttentionMap]
    # [L] mean value of the forget gate in each layer that has one, as in :class:`GateScores`; empty
    # for models without gates
    gates: np.ndarray


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


class VideoInspection:
    """Inspection of a summarization model: its attention and forget gates on a split of videos.

    Args:
        model: Model in evaluation mode.
        task: Task of the data folder, for which the model was built.
        batch_size: Number of examples per batch, by default 8 on a CPU and 32 elsewhere.

    Attributes:
        gate_layers: Names of the layers with a forget gate.
        attributes: Attributes of the feature store.
    """

    def __init__(
        self,
        model: Any,
        task: VideoSummarizationTask,
        split: str,
        *,
        file: str,
        device: Optional[torch.device] = None,
        batch_size: Optional[int] = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.model = model.to(self.device)
        self.task = task
        self.file = file
        self.batch_size = batch_size or (8 if self.device.type == "cpu" else 32)
        # before load_dataset, which reads it: --lines counts also several lines of one video
        task.cfg.all_lines = True
        task.load_dataset(split)
        self.dataset: Any = task.datasets[split]
        self.sides = {TRANSCRIPT: task.cfg.source_lang, SUMMARY: task.cfg.target_lang}
        self.split = open_split(task.cfg.data, split, (self.sides[TRANSCRIPT], self.sides[SUMMARY]))
        self.unknowns = self.split.field("unknowns")
        self._written: dict[str, list[list[str]]] = {}
        assert task.features is not None
        self.attributes: Mapping[str, Any] = task.features.attributes
        self._tracer = VideoAttentionTracer(self.model)
        self.gate_layers = self._tracer.gate_layers
        if self._tracer.sums_over_words or self._tracer.attends_padding:
            # in the released code, padding takes part in the softmax: in a batch, the weights of a
            # video would depend on the length of the others
            self.batch_size = 1

    @classmethod
    def from_checkpoints(
        cls,
        checkpoints: Sequence[Checkpoint],
        data: str,
        split: str = "valid",
        *,
        features: Optional[str] = None,
        device: Optional[str] = None,
        batch_size: Optional[int] = None,
    ) -> "VideoInspection":
        """Build the inspection of one checkpoint's model on a split of a data folder; ``features``
        is by default ``features.h5`` in the folder."""
        place = usable_device(device)  # first: a wrong name is found before a model is built
        (checkpoint,) = checkpoints
        trained = checkpoint.cfg.task
        cfg = VideoSummarizationConfig(
            data=data,
            features=features,
            source_lang=getattr(trained, "source_lang", None) or "tran",
            target_lang=getattr(trained, "target_lang", None) or "desc",
            # a model that was trained on the first frames of a video must not see the others
            max_frames=checkpoint.provenance.get("max_frames")
            or VideoSummarizationConfig.max_frames,
            seed=1,  # required by the config; nothing is sampled here
        )
        task = VideoSummarizationTask.setup_task(cfg)
        task.load_state_dict(checkpoint.task_state)
        model = checkpoint.build_model(task)
        if not task.reads_video:
            raise UserError(
                f"{checkpoint.path}: reads no video (--arch {checkpoint.arch}): there is nothing "
                "to show."
            )
        return cls(model, task, split, file=checkpoint.path, device=place, batch_size=batch_size)

    def transcript(self, line: int) -> str:
        """Return the transcript of a line of the split, truncated like the model's input."""
        return self._decode(self._tokens(TRANSCRIPT, line))

    def _decode(self, tokens: Sequence[str]) -> str:
        return self.task.subwords.decode(" ".join(tokens))

    def gate_scores(
        self,
        lines: Optional[Sequence[int]] = None,
        *,
        summaries: Summaries = None,
        on_batch: Optional[Callable[[int], None]] = None,
    ) -> GateScores:
        """Compute each video's mean value of the forget gates: 0 blocks the video, 1 lets all pass.

        Yu et al. 2021, section 5.4 and Figure 3: for each example, the mean of the gate F (equation
        12) over the text's positions, without padding, and over the feature dimension. If the
        decoder fuses video and text, the text is the summary. If the encoder does, as in multistage
        fusion with forget gate (``mffg_*``), the text is the transcript. A model ``mffg_*`` has two
        gates; the score is computed from the gate that limits what the transcript takes from the
        video.

        Args:
            lines: Indices of lines of the split (default: the first line of each video).
            summaries: Dict from video id to the text that the decoder reads in place of the
                reference (default: the references).
            on_batch: Function that is called after each batch with the batch's number of lines.
        """
        if not self.gate_layers:
            raise UserError(
                f"{self.file}: has no forget gate: VG-BART and VG-T5 have it with --forget-gate "
                "on, MFFG always."
            )
        if lines is None:
            lines = np.flatnonzero(self.dataset.is_first).tolist()
        # by length, so that a batch has little padding; `by_layer` has the order of the lines
        order = sorted(range(len(lines)), key=lambda i: self.dataset.num_tokens(lines[i]))
        by_layer = np.zeros((len(lines), len(self.gate_layers)))
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            layers, rows = self._trace([lines[i] for i in places], summaries, only_gates=True)
            gates = torch.stack([layer.gates for layer in layers if layer.gates is not None], dim=1)
            by_layer[places] = gates.cpu().numpy()[rows]
            if on_batch is not None:
                on_batch(len(places))
        ids = [self.dataset.visual_ids[line] for line in lines]
        return GateScores(np.array(lines), ids, self.gate_layers, by_layer)

    def frame_attention(
        self, lines: Sequence[int], *, summaries: Summaries = None
    ) -> Iterator[LineAttention]:
        """Compute the attention of words to the frames of a video, line by line.

        If the encoder fuses video and text, the attention of the transcript's words is computed; if
        the decoder fuses them, the attention of the summary's words. In models with hierarchical
        attention and in multistage fusion with forget gate (``mffg_*``), the words of the summary
        attend, and the weights are those of the last layer that reads the video.

        ``summaries`` maps video ids to the texts that the decoder reads in place of the references.
        """
        # a generator: the maps of a whole split do not fit into memory
        for start in range(0, len(lines), self.batch_size):
            batch = list(lines[start : start + self.batch_size])
            layers, rows = self._trace(batch, summaries, only_gates=False)
            for line, row in zip(batch, rows):
                yield self._line_attention(line, layers, row, summaries)

    def _summary(self, line: int, summaries: Summaries) -> list[str]:
        """Return the tokens of the summary that the decoder reads; keep unknown words."""
        if summaries is None:
            return self._tokens(SUMMARY, line)
        key = self.dataset.visual_ids[line]
        if key not in summaries:
            raise UserError(f"{key}: there is no summary of this video (line {line}).")
        tokens = self.task.subwords.encode(summaries[key])
        return [*tokens[: self.task.max_positions()[1] - 1], "</s>"]

    def _tokens(self, side: str, line: int) -> list[str]:
        """Return the tokens of a line's text, truncated as for the model.

        Unknown words are returned as written, not as ``<unk>``.
        """
        lines = self.dataset.source if side == TRANSCRIPT else self.dataset.target
        tokens = [self.task.dictionary.symbols[index] for index in lines[line].tolist()]
        unknowns = self.unknowns[line]
        if unknowns is not None:
            tokens = [restore_oov_words(token, unknowns) for token in tokens]
        unk = self.task.dictionary.unk_word
        if unk in tokens:
            if side not in self._written:  # read once: only unknown words need it
                self._written[side] = self.split.tokens(self.sides[side])
            # <s> is added when the text is read: the written words begin after it
            start = int(tokens[0] == "<s>")
            for i, word in enumerate(self._written[side][line][: len(tokens) - start], start):
                if tokens[i] == unk:
                    tokens[i] = word
        return tokens

    def _indices(self, tokens: Sequence[str], line: int) -> Tensor:
        """Return the indices of tokens; unknown words of ``line`` become ``<unk-0>``, ``<unk-1>``,
        ..."""
        dictionary = self.task.dictionary
        if self.unknowns[line] is not None:
            tokens = index_with(tokens, dictionary.indices, self.unknowns[line])
        return torch.tensor([dictionary.index(token) for token in tokens])

    def _trace(
        self, lines: list[int], summaries: Summaries, *, only_gates: bool
    ) -> tuple[list[TracedLayer], list[int]]:
        """Run the model on a batch of lines, and record attention and gates.

        Returns:
            The record of each layer, and each line's row in the batch, which is sorted by length.
        """
        tracer = self._tracer
        needs_decoder = tracer.has_decoder_fusions or (tracer.is_two_source and not only_gates)
        # gates of an encoder do not depend on the summary: the decoder is then not run
        examples = [self.dataset[line] for line in lines]
        for position, (line, example) in enumerate(zip(lines, examples)):
            example["id"] = position  # not the line's number: a line may be asked for twice
            if needs_decoder and summaries is not None:
                example["target"] = self._indices(self._summary(line, summaries), line)
        sample = self.dataset.collater(examples)
        # fairseq's collater sorts a batch by length
        rows = np.argsort(sample["id"].numpy()).tolist()
        inputs = {key: x.to(self.device) for key, x in sample["net_input"].items()}
        pad = self.task.dictionary.pad()
        valid_masks = {
            TRANSCRIPT: inputs["src_tokens"].ne(pad),
            # by the target: T5's decoder starts from its padding token, which is no padding there
            SUMMARY: sample["target"].to(self.device).ne(pad),
        }
        return tracer.trace(inputs, valid_masks, needs_decoder=needs_decoder), rows

    def _line_attention(
        self, line: int, traced: list[TracedLayer], row: int, summaries: Summaries
    ) -> LineAttention:
        num_frames = self.dataset.features.count_rows(self.dataset.visual_ids[line])
        maps = []
        for side in (TRANSCRIPT, SUMMARY):
            layers: list[Any] = [x for x in traced if x.side == side and x.weights is not None]
            if not layers:
                continue
            # as in fairseq, transcripts are padded at the left and summaries at the right
            if side == TRANSCRIPT:
                tokens = self._tokens(side, line)
                place = slice(-len(tokens), None)
            else:
                tokens = self._summary(line, summaries)
                place = slice(0, len(tokens))
            words, owners = join_pieces(tokens, self.task.subwords)
            is_unknown = self._indices(tokens, line).eq(self.task.dictionary.unk()).numpy()
            unknown = set(owners[is_unknown].tolist())
            sums = self._tracer.sums_over_words
            weights = torch.stack([layer.weights[row] for layer in layers])
            weights = to_array(weights[:, place, :num_frames])
            shares: Any = layers[0].video_shares
            if shares is not None:
                shares = by_word(to_array(shares[row, place])[:, None], owners)[:, 0]
            maps.append(
                AttentionMap(
                    side,
                    words,
                    [w not in unknown for w in range(len(words))],
                    [layer.name for layer in layers],
                    by_word(weights, owners, sums=sums),
                    sums,
                    shares,
                )
            )
        gates = [float(layer.gates[row]) for layer in traced if layer.gates is not None]
        return LineAttention(line, self.dataset.visual_ids[line], num_frames, maps, np.array(gates))
