"""Computes gates, attention and likelihood of a convolutional story model at each word of a story.

Fan et al. 2018, Figure 8: "the values of the fusion gates for an example story, averaged at each
timestep".
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_mm.analysis import rounded, to_array
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.models._conv_decoder import StoryDecoder
from fairseq_mm.models._conv_trunk import Trace
from fairseq_mm.models._fusion import FusionDecoder
from fairseq_mm.retrieval.text_likelihood import encode_prompt, encode_text, max_words
from fairseq_mm.retrieval.word_likelihood import word_log_probs

PARTS = ("trained", "pretrained")


class PastAttention(NamedTuple):
    """Self-attention of one layer, for each of its H heads at each of T words."""

    layer: int  # index of the decoder layer, from 0
    strides: list[int]  # [H] stride of each head, which attends to every stride-th position
    zero: np.ndarray  # [H, T] weight of the zero slot, whose key and value are zeros
    # [H, T] mean distance in words to the attended words, 2 or more, without the zero slot; NaN if
    # only the zero slot has weight
    distance: np.ndarray

    def record(self, head: int, zero: float, distance: float) -> dict[str, Any]:
        """Build the JSON record of one head; the values are for one word or means over words."""
        place = {"layer": self.layer, "head": head, "stride": self.strides[head]}
        return {**place, "zero": rounded(zero), "distance": rounded(distance)}


class Inspection(NamedTuple):
    """Gates, attention and likelihood of one story of T words.

    The end of the story (``</s>``) counts as a word, unless the story was truncated."""

    words: list[str]  # words as written, even if the dictionary does not contain them
    is_known: list[bool]  # [T] True if the word is in the dictionary
    log_probs: np.ndarray  # [T] natural logarithms of the words' probabilities
    # [2, T] gates g1 of the trained and g2 of the pretrained model when the word is predicted,
    # averaged over channels; None without fusion
    gates: Optional[np.ndarray]
    prompt: list[str]  # S words of the prompt, including ``</s>``; empty for a language model
    source: dict[int, np.ndarray]  # [H, T, S] attention to the prompt by layer
    past: list[PastAttention]  # self-attention of each layer that has self-attention

    @property
    def prompt_attention(self) -> Optional[np.ndarray]:
        """[T, S] attention to the prompt, averaged over layers and heads; None without a prompt."""
        if not self.source:
            return None
        return np.mean([weights.mean(0) for weights in self.source.values()], axis=0)

    def records(self, *, layers: bool = False) -> list[dict[str, Any]]:
        """Return a JSON record for each word of the story; with ``layers``, also the attention to
        the prompt in each layer."""
        mean = self.prompt_attention
        records = []
        for t, word in enumerate(self.words):
            record: dict[str, Any] = {"position": t, "word": word, "known": self.is_known[t]}
            record["log_prob"] = rounded(self.log_probs[t])
            if self.gates is not None:
                record["gates"] = dict(zip(PARTS, rounded(self.gates[:, t])))
            if mean is not None:
                # pairs, not an object: a prompt can have a word twice
                record["prompt_attention"] = [*map(list, zip(self.prompt, rounded(mean[t])))]
            if mean is not None and layers:
                record["prompt_attention_layers"] = [
                    {"layer": layer, "weights": rounded(weights[:, t].mean(0))}
                    for layer, weights in self.source.items()
                ]
            heads = [(past, head) for past in self.past for head in range(len(past.strides))]
            if heads:
                record["self_attention"] = [
                    past.record(head, past.zero[head, t], past.distance[head, t])
                    for past, head in heads
                ]
            records.append(record)
        return records

    def head_figures(self) -> list[dict[str, Any]]:
        """Return JSON records, one per layer and head, of self-attention averaged over words."""
        figures = []
        for past in self.past:
            for head, (zero, distance) in enumerate(zip(past.zero, past.distance)):
                # not nanmean, which warns if a head attends only to the zero slot
                distances = distance[~np.isnan(distance)]
                mean = distances.mean() if len(distances) else np.nan
                figures.append(past.record(head, zero.mean(), mean))
        return figures


@torch.no_grad()
def inspect_story(
    models: LoadedModels,
    prompt: Optional[Sequence[str]],
    story: Sequence[str],
    *,
    num_words: Optional[int] = None,
) -> Inspection:
    """Compute gates, attention and likelihood at each word of a story, with one model.

    ``prompt`` is None for a language model. The story is truncated after ``num_words`` words, by
    default the model's number of positions.
    """
    (model,) = models.models
    decoder = model.decoder
    if not isinstance(decoder, StoryDecoder):
        raise UserError(
            f"{models.files[0]}: must be a convolutional story or language model, but is "
            f"--arch {models.architectures[0]} instead."
        )
    is_fusion = isinstance(decoder, FusionDecoder)
    target = encode_text(models.dictionary, story, num_words or max_words(models, "story"))
    types = torch.tensor(target, device=models.device)
    # fairseq's decoders start from </s>
    previous = torch.tensor([[models.dictionary.eos(), *target[:-1]]], device=models.device)
    source = None if prompt is None else encode_prompt(models, prompt)
    encoder_out = None
    if source is not None:
        tokens = torch.tensor([source], device=models.device)
        lengths = torch.tensor([len(source)], device=models.device)
        encoder_out = model.encoder(tokens, src_lengths=lengths)
    trace = Trace()
    gates, trunk = None, decoder.trunk
    if is_fusion:
        # the decoder's own steps: extract_features returns neither the states nor the gates
        states = decoder.hidden_states(previous, encoder_out, trace=trace)
        gates = torch.stack([gate[0].mean(1) for gate in decoder.fusion.gates(*states)])
        features = decoder.fusion(*states)
    else:
        features, _ = decoder.extract_features(previous, encoder_out, trace=trace)
    end = models.dictionary.symbols[models.dictionary.eos()]
    return Inspection(
        words=[*story, end][: len(target)],  # a truncated story has no end
        is_known=[word != models.dictionary.unk() for word in target],
        log_probs=to_array(word_log_probs(decoder, features[0], types)),
        gates=None if gates is None else to_array(gates),
        prompt=[] if source is None else [*(prompt or ()), end],
        source=_by_layer(trunk, "source_attention", trace.source) if source is not None else {},
        past=[
            _past_attention(layer, trunk.layers[layer].self_attention, weights)
            for layer, weights in _by_layer(trunk, "self_attention", trace.past).items()
        ],
    )


def _by_layer(trunk: Any, name: str, weights: Sequence[Tensor]) -> dict[int, np.ndarray]:
    """Return the weights [heads, words, ...] of the first example by layer; ``weights`` has an
    entry for each layer whose attribute ``name`` is not None."""
    # the trace is a list without indices: layers without this attention add nothing to it
    layers = [i for i, layer in enumerate(trunk.layers) if getattr(layer, name) is not None]
    return {layer: to_array(x[0]) for layer, x in zip(layers, weights)}


def _past_attention(layer: int, attention: Any, weights: np.ndarray) -> PastAttention:
    """Compute a layer's :class:`PastAttention` from its weights [H, T, 1 + T]."""
    # key 0 is the zero slot, key 1 + s is input s, which is word s - 1
    H, T, _ = weights.shape
    zero, past = weights[:, :, 0], weights[:, :, 1:]
    times = np.arange(T)
    distances = times[:, None] - times + 1  # from word t to word s - 1
    # a head that attends only to the zero slot has no distance: 0 / 0
    mass = past.sum(2)
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.where(mass > 0, (past * distances).sum(2) / mass, np.nan)
    # the module lists one stride for all heads if the attention is not multi-scale
    strides = list(attention.strides) * (H // len(attention.strides))
    return PastAttention(layer, strides, zero, distance)
