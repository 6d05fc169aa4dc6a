"""Computes log P of each token of a story given a prompt or images, by a model or an ensemble.

    likelihood = StoryLikelihood(load_models(path))
    pairs = [(likelihood.encode_prompt(prompt), likelihood.encode_story(story)), ...]
    for numbers, log_probs in likelihood.batches(pairs):
        ...

Stories of similar length share a batch, so that little padding is computed. An image sequence is
encoded once, however many stories are scored with it. A prompt is encoded anew for each of its
stories.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_mm.data.collate import pad_tokens, shift_right
from fairseq_mm.data.feature_store import FeatureStores
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.likelihood import check_finite
from fairseq_mm.retrieval.word_likelihood import CHUNK_BYTES, mean_log_probs, word_log_probs

SEQUENCES_AT_ONCE = 32  # image sequences whose encodings are in memory at once
# condition of the story, and the tokens of the story, with the end token if it is scored
Pair = tuple[Any, list[int]]
# function from each model's hidden states [N, E] and targets [N] to log P of the targets [N]
LogProbs = Callable[[Sequence[Tensor], Tensor], Tensor]


class TextLikelihood:
    """Base class of scorers of log P(text | condition), for a prompt or an image sequence.

    Subclasses encode the condition. A pair is a condition and the token indices of a text.

    Args:
        models: One model or an ensemble, :class:`fairseq_mm.inference.checkpoint.LoadedModels`.
        precision: ``float32``, or ``bfloat16`` to run the networks under autocast. Sums are float32
            in any case, and so are the logits of the text's tokens if the output layer is linear.
        batch_tokens: Maximum number of text tokens in a batch, padding included; a longer text is a
            batch of its own.
        chunk_bytes: Maximum size of the logits in memory, in bytes.
    """

    def __init__(
        self,
        models: Any,
        *,
        precision: str = "float32",
        batch_tokens: int = 4000,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.models = models.models
        self.dictionary = models.dictionary
        self.device = models.device
        self.precision = precision
        self.batch_tokens = batch_tokens
        self.chunk_bytes = chunk_bytes

    def encode_story(self, words: Sequence[str], *, num_words: Optional[int] = None) -> list[int]:
        """Return the token indices of a story, with the end token.

        A story of more than ``num_words`` words (None: unlimited) is truncated, and then has no end
        token, because the story does not end there.
        """
        tokens = [self.dictionary.index(word) for word in words]
        if num_words is not None and len(tokens) > num_words:
            return tokens[:num_words]
        return [*tokens, self.dictionary.eos()]

    @torch.no_grad()
    def batches(
        self, pairs: Sequence[Pair], *, log_probs_of: Optional[LogProbs] = None
    ) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Score the texts of pairs, batch by batch.

        Yields, for each batch, the indices of its pairs in ``pairs``, and for each of these pairs
        log P of the text's tokens, [tokens] float32 on the CPU. Every pair is in exactly one batch.

        ``log_probs_of`` computes log P [N] of N tokens from a list of the hidden states [N, E] of
        each model, and the tokens' indices [N]; by default, probabilities are averaged over models.
        """
        for numbers, encoded in self._encoded_batches(pairs):
            stories = [pairs[number][1] for number in numbers]
            yield numbers, self._score(encoded, stories, log_probs_of or self._log_probs)

    def _encoded_batches(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[Any]]]:
        """Yield, for each batch, its indices in ``pairs`` and the encoder output of each model."""
        raise NotImplementedError

    def _can_share(self, pair: Pair, other: Pair) -> bool:
        """Return True if the conditions of the two pairs can be encoded in one batch."""
        return True

    def _split_batches(
        self, pairs: Sequence[Pair], numbers: Iterable[int], key: Callable[[int], Any]
    ) -> Iterator[list[int]]:
        """Divide the pairs with the indices ``numbers`` into batches, by descending ``key``."""
        batch: list[int] = []
        width = 0
        # the longest first: a batch that does not fit into memory fails at once, not after hours
        for number in sorted(numbers, key=key, reverse=True):
            story = pairs[number][1]
            fits = max(width, len(story)) * (len(batch) + 1) <= self.batch_tokens
            if batch and not (fits and self._can_share(pairs[batch[0]], pairs[number])):
                yield batch
                batch, width = [], 0
            batch.append(number)
            width = max(width, len(story))
        if batch:
            yield batch

    def _score(
        self, encoded: Sequence[Any], stories: Sequence[list[int]], log_probs_of: LogProbs
    ) -> list[Tensor]:
        pad, start = self.dictionary.pad(), self.dictionary.eos()
        targets = [torch.tensor(story) for story in stories]
        lengths = [len(story) for story in stories]
        target = pad_tokens(targets, pad).to(self.device)
        previous = pad_tokens(shift_right(targets, start), pad).to(self.device)
        valid_mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
        valid_mask = valid_mask.to(self.device)
        # without padding: the output layer is the largest part of the work
        with self.autocast():
            features = [
                model.decoder.extract_features(previous, encoder_out)[0][valid_mask]
                for model, encoder_out in zip(self.models, encoded)
            ]
            log_probs = log_probs_of(features, target[valid_mask])
        check_finite(log_probs, "a word")
        return list(log_probs.cpu().split(lengths))

    def _log_probs(self, features: Sequence[Tensor], target: Tensor) -> Tensor:
        log_probs = [
            word_log_probs(model.decoder, hidden, target, chunk_bytes=self.chunk_bytes)
            for model, hidden in zip(self.models, features)
        ]
        return log_probs[0] if len(log_probs) == 1 else mean_log_probs(torch.stack(log_probs))

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"
        )


class StoryLikelihood(TextLikelihood):
    """Scorer of stories given prompts, or of texts by language models.

    The condition of a pair is the token indices of a prompt, or None for a language model.
    """

    def __init__(self, models: Any, **options: Any) -> None:
        super().__init__(models, **options)
        self.source_dictionary = models.source_dictionary
        # a model that attends to padding gives a pair another probability in another batch
        self.pads_prompts = self.source_dictionary is not None and all(
            getattr(part, "masks_padding", False) and getattr(part, "frozen_masks_padding", True)
            for part in (model.decoder for model in self.models)
        )

    def _can_share(self, pair: Pair, other: Pair) -> bool:
        return self.pads_prompts or len(pair[0] or ()) == len(other[0] or ())

    @property
    def max_story_words(self) -> int:
        """Maximum number of words of a story, without end token, that all models can read."""
        return self._max_positions(-1) - 1

    @property
    def max_prompt_words(self) -> int:
        return self._max_positions(0) - 1

    def _max_positions(self, side: int) -> int:
        # language models of fairseq return one number, encoder-decoder models a pair
        limits = [model.max_positions() for model in self.models]
        return min(n[side] if isinstance(n, (tuple, list)) else n for n in limits)

    def encode_prompt(self, words: Sequence[str]) -> Optional[list[int]]:
        """Return the token indices of a prompt, with the end token; None for language models."""
        if self.source_dictionary is None:
            return None
        if len(words) > self.max_prompt_words:
            raise UserError(
                f"a prompt has {len(words)} words, but the model has positions for "
                f"{self.max_prompt_words}: {' '.join(words[:8])} ..."
            )
        return [*map(self.source_dictionary.index, words), self.source_dictionary.eos()]

    def _encoded_batches(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[Any]]]:
        def get_lengths(number: int) -> tuple[int, int]:
            prompt, story = pairs[number]
            lengths = len(story), len(prompt or ())
            # without a mask, only prompts of equal length may share a batch: they must be adjacent
            return lengths if self.pads_prompts else lengths[::-1]

        for numbers in self._split_batches(pairs, range(len(pairs)), get_lengths):
            if self.source_dictionary is None:
                yield numbers, [None] * len(self.models)
                continue
            prompts = [torch.tensor(pairs[number][0]) for number in numbers]
            lengths = torch.tensor([len(prompt) for prompt in prompts]).to(self.device)
            # on the left, as fairseq pads sources in training
            source = pad_tokens(prompts, self.source_dictionary.pad(), left=True).to(self.device)
            with self.autocast():
                encoded = [model.encoder(source, src_lengths=lengths) for model in self.models]
            yield numbers, encoded


class SequenceImages:
    """Reader of the features of image sequences, which are keys separated by tabs.

    Args:
        features: Feature stores of the images.
        missing: Keys of images that have no features; in a batch they are padding.
        rows_per_image: Number of regions of every image that has features.
    """

    def __init__(
        self, features: FeatureStores, missing: frozenset[str], rows_per_image: int
    ) -> None:
        self.features = features
        self.missing = missing
        self.rows_per_image = rows_per_image

    def check(self, sequences: Sequence[str]) -> None:
        """Raise UserError if an image is neither in the stores nor in ``missing``, or has another
        number of regions than ``rows_per_image``.
        """
        for image in dict.fromkeys(key for line in sequences for key in line.split("\t")):
            if image in self.missing:
                continue
            rows = self.features.count_rows(image)
            if rows != self.rows_per_image:
                raise UserError(
                    f"{self.features.path}: {image!r} has {rows} regions, but the "
                    f"model was trained on {self.rows_per_image} an image."
                )

    def read(self, sequences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Read the features of B image sequences.

        Returns features [B, N R, D] and their padding mask [B, N R] for N images per sequence, R
        regions per image and D features per region. Missing images have zeros as features, and True
        in the mask.
        """
        B, R = len(sequences), self.rows_per_image
        N = len(sequences[0].split("\t"))
        features = np.zeros((B, N, R, self.features.dim), dtype=self.features.dtype)
        padding_mask = np.ones((B, N, R), dtype=bool)
        for b, line in enumerate(sequences):
            for n, image in enumerate(line.split("\t")):
                if image not in self.missing:
                    features[b, n] = self.features.read(image)
                    padding_mask[b, n] = False
        return (
            torch.from_numpy(features).flatten(1, 2),
            torch.from_numpy(padding_mask).flatten(1, 2),
        )


class VisualStoryLikelihood(TextLikelihood):
    """Scorer of stories given image sequences, which ``images`` reads.

    The condition of a pair is an image sequence: keys separated by tabs.
    """

    def __init__(self, models: Any, images: SequenceImages, **options: Any) -> None:
        super().__init__(models, **options)
        self.images = images

    def _encoded_batches(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[Any]]]:
        numbers_by_sequence: dict[str, list[int]] = {}
        for number, (sequence, _) in enumerate(pairs):
            numbers_by_sequence.setdefault(sequence, []).append(number)
        sequences = list(numbers_by_sequence)
        for start in range(0, len(sequences), SEQUENCES_AT_ONCE):
            chosen = sequences[start : start + SEQUENCES_AT_ONCE]
            row_by_sequence = {sequence: row for row, sequence in enumerate(chosen)}
            features, padding_mask = (x.to(self.device) for x in self.images.read(chosen))
            with self.autocast():
                encoded = [
                    model.encoder(features=features, padding_mask=padding_mask)
                    for model in self.models
                ]
            numbers = [number for sequence in chosen for number in numbers_by_sequence[sequence]]
            for batch in self._split_batches(pairs, numbers, lambda n: len(pairs[n][1])):
                rows = torch.tensor([row_by_sequence[pairs[number][0]] for number in batch]).to(
                    self.device
                )
                with self.autocast():
                    reordered = [
                        model.encoder.reorder_encoder_out(encoder_out, rows)
                        for model, encoder_out in zip(self.models, encoded)
                    ]
                yield batch, reordered
