"""log P(story | prompt), word by word, under a model or an ensemble; of texts for language models.

    likelihood = StoryLikelihood(load_models(path))
    pairs = [(likelihood.encode_prompt(prompt), likelihood.encode_story(story)), ...]
    for batch in likelihood.batches(pairs):
        for number, log_probs in zip(batch, likelihood([pairs[i] for i in batch])):
            ...

A pair's words are one row of a batch; of rows of similar length, so that little padding is
computed. Between the pairs of one story nothing can be shared: its hidden states depend on the
prompt from the first layer on.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.word_likelihood import SLICE_BYTES, mean_log_probs, word_log_probs

PRECISIONS = ("float32", "bfloat16")

# words of the prompt (None for language models) and of the story, their ends included where meant
Pair = tuple[Optional[list[int]], list[int]]


class BatchFeatures(NamedTuple):
    """Hidden states of a batch's words, rows side by side, padding left out.

    Attributes:
        features: of each model, ``[N, E]``.
        target: ``[N]`` the words that they predict.
        lengths: of each row.
    """

    features: list[Tensor]
    target: Tensor
    lengths: list[int]


class StoryLikelihood:
    """
    Args:
        models: of :func:`fairseq_mm.inference.loading.load_models`.
        precision: ``bfloat16`` runs the networks under autocast; a word's own logit, where the
            output layer is linear, and all sums are float32.
        batch_tokens: story words, padding included, in a batch; one pair is always one.
        slice_bytes: of logits that are held at once.
    """

    def __init__(
        self,
        models: Any,
        *,
        precision: str = "float32",
        batch_tokens: int = 4000,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"`precision` must be of {PRECISIONS}, but is {precision!r} instead.")
        self.models = models.models
        self.dictionary = models.dictionary
        self.source_dictionary = models.source_dictionary
        self.device = models.device
        self.precision = precision
        self.batch_tokens = batch_tokens
        self.slice_bytes = slice_bytes
        # a model that attends to padding gives a pair another probability in another batch
        self.pads_prompts = self.source_dictionary is not None and all(
            getattr(part, "masks_padding", False) and getattr(part, "frozen_masks_padding", True)
            for part in (model.decoder for model in self.models)
        )

    @property
    def max_story_words(self) -> int:
        """Words, without the end, that all models have positions for."""
        return self._max_positions(-1) - 1

    @property
    def max_prompt_words(self) -> int:
        return self._max_positions(0) - 1

    def _max_positions(self, side: int) -> int:
        found = [model.max_positions() for model in self.models]
        return min(n[side] if isinstance(n, (tuple, list)) else n for n in found)

    def encode_story(self, words: Sequence[str], *, num_words: Optional[int] = None) -> list[int]:
        """Types of the words and the end; of the first ``num_words`` alone, without an end, if
        there are more: where a story was cut, it does not end."""
        types = [self.dictionary.index(word) for word in words]
        if num_words is not None and len(types) > num_words:
            return types[:num_words]
        return [*types, self.dictionary.eos()]

    def encode_prompt(self, words: Sequence[str]) -> Optional[list[int]]:
        """Types of the words and the end; None for language models.

        Raises:
            UserError: if the models have no positions for so many.
        """
        if self.source_dictionary is None:
            return None
        if len(words) > self.max_prompt_words:
            raise UserError(
                f"a prompt has {len(words)} words, but the model has positions for "
                f"{self.max_prompt_words}: {' '.join(words[:8])} ..."
            )
        return [*map(self.source_dictionary.index, words), self.source_dictionary.eos()]

    def batches(self, pairs: Sequence[Pair]) -> Iterator[list[int]]:
        """Numbers of the pairs, each once, in batches; the longest first."""

        def key(number: int) -> tuple[int, int]:
            prompt, story = pairs[number]
            lengths = len(story), len(prompt or ())
            return lengths if self.pads_prompts else lengths[::-1]

        batch: list[int] = []
        width = prompt_width = 0
        for number in sorted(range(len(pairs)), key=key, reverse=True):
            prompt, story = pairs[number]
            fits = max(width, len(story)) * (len(batch) + 1) <= self.batch_tokens
            is_alike = self.pads_prompts or len(prompt or ()) == prompt_width
            if batch and not (fits and is_alike):
                yield batch
                batch, width = [], 0
            batch.append(number)
            width, prompt_width = max(width, len(story)), len(prompt or ())
        if batch:
            yield batch

    @torch.no_grad()
    def __call__(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """log P of the words of each pair of a batch: ``[words]`` each, float32 on the CPU."""
        batch = self.features(pairs)
        with self.autocast():
            log_probs = [
                word_log_probs(model.decoder, features, batch.target, slice_bytes=self.slice_bytes)
                for model, features in zip(self.models, batch.features)
            ]
        joined = log_probs[0] if len(log_probs) == 1 else mean_log_probs(torch.stack(log_probs))
        if not bool(torch.isfinite(joined).all()):
            raise UserError(
                "the checkpoint gives a word a probability that is no number: its weights hold NaN "
                "or infinite values."
            )
        return list(joined.cpu().split(batch.lengths))

    @torch.no_grad()
    def features(self, pairs: Sequence[Pair]) -> BatchFeatures:
        """Hidden states of a batch's words, of each model."""
        stories = [story for _, story in pairs]
        pad = self.dictionary.pad()
        target = _padded(stories, pad).to(self.device)
        shifted = [[self.dictionary.eos(), *story[:-1]] for story in stories]
        previous = _padded(shifted, pad).to(self.device)
        is_real = _padded([[1] * len(story) for story in stories], 0).bool().to(self.device)
        prompts = [prompt for prompt, _ in pairs if prompt is not None]
        features = []
        with self.autocast():
            for model in self.models:
                kwargs = {}
                if prompts:
                    lengths = torch.tensor([len(prompt) for prompt in prompts])
                    source = _padded(prompts, self.source_dictionary.pad(), left=True)
                    kwargs["encoder_out"] = model.encoder(
                        source.to(self.device), src_lengths=lengths.to(self.device)
                    )
                hidden, _ = model.decoder.extract_features(previous, **kwargs)
                features.append(hidden[is_real])
        return BatchFeatures(features, target[is_real], [len(story) for story in stories])

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"
        )


def _padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool = False) -> Tensor:
    width = max(map(len, rows))
    padding = [[pad] * (width - len(row)) for row in rows]
    return torch.tensor(
        [[*p, *row] if left else [*row, *p] for row, p in zip(rows, padding)], dtype=torch.long
    )
