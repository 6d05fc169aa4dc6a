"""log P(story | five images), word by word, under a visual storyteller or an ensemble.

    likelihood = VisualStoryLikelihood(models, task, images, device)
    pairs = [(line of visual_ids, likelihood.encode_story(words)), ...]
    for numbers, log_probs in likelihood.batches(pairs):
        ...

A photo sequence is encoded once, however many stories are held against it; stories of similar
length share a batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_mm.data.collate import pad_tokens, shift_right
from fairseq_mm.data.feature_store import FeatureStores
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.word_likelihood import SLICE_BYTES, mean_log_probs, word_log_probs

PRECISIONS = ("float32", "bfloat16")

# line of visual_ids, and words of a story with its end
Pair = tuple[str, list[int]]


class SequenceImages:
    """Features of photo sequences; missing images are padding at their place.

    Args:
        features: opened stores.
        missing: images that are left out, as in training.
        rows_per_image: R rows of each image.
    """

    def __init__(
        self, features: FeatureStores, missing: frozenset[str], rows_per_image: int
    ) -> None:
        self.features = features
        self.missing = missing
        self.rows_per_image = rows_per_image

    def check(self, sequences: Sequence[str]) -> None:
        """
        Raises:
            UserError: if an image has no features and is not known to be missing, or has another
                number of rows.
        """
        for image in dict.fromkeys(key for line in sequences for key in line.split("\t")):
            if image in self.missing:
                continue
            rows = self.features.rows_of(image)
            if rows != self.rows_per_image:
                raise UserError(
                    f"{self.features.path}: {image!r} has {rows} rows of features, but the "
                    f"model was trained on {self.rows_per_image} an image."
                )

    def read(self, sequences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """
        Args:
            sequences: B lines of visual_ids of equally many images N.

        Returns:
            features: ``[B, N R, D]``, zero for missing images.
            padding_mask: ``[B, N R]`` bool, True there.
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


class VisualStoryLikelihood:
    """
    Args:
        models: encoders and decoders of one dictionary, in evaluation mode, on ``device``.
        dictionary: theirs.
        images: features of the sequences.
        device: of the models.
        precision: ``bfloat16`` runs the networks under autocast; sums are float32.
        batch_tokens: story words, padding included, in a batch; one pair is always one.
        sequences_at_once: photo sequences whose encodings are held.
        slice_bytes: of logits that are held at once.
    """

    def __init__(
        self,
        models: Sequence[Any],
        dictionary: Any,
        images: SequenceImages,
        device: torch.device,
        *,
        precision: str = "float32",
        batch_tokens: int = 4000,
        sequences_at_once: int = 32,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"`precision` must be of {PRECISIONS}, but is {precision!r} instead.")
        self.models = models
        self.dictionary = dictionary
        self.images = images
        self.device = device
        self.precision = precision
        self.batch_tokens = batch_tokens
        self.sequences_at_once = sequences_at_once
        self.slice_bytes = slice_bytes

    def encode_story(self, words: Sequence[str]) -> list[int]:
        """Types of the words and the end; unknown words are ``<unk>``."""
        return [*map(self.dictionary.index, words), self.dictionary.eos()]

    @torch.no_grad()
    def batches(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[Tensor]]]:
        """
        Yields:
            numbers of some pairs, each once in all, and for each ``[words]`` log P of its words,
            the end among them, float32 on the CPU.

        Raises:
            UserError: if a probability is no number.
        """
        numbers_of: dict[str, list[int]] = {}
        for number, (sequence, _) in enumerate(pairs):
            numbers_of.setdefault(sequence, []).append(number)
        sequences = list(numbers_of)
        for start in range(0, len(sequences), self.sequences_at_once):
            chosen = sequences[start : start + self.sequences_at_once]
            row_of = {sequence: row for row, sequence in enumerate(chosen)}
            encoded = self._encode(chosen)
            for batch in self._batches([n for line in chosen for n in numbers_of[line]], pairs):
                rows = torch.tensor([row_of[pairs[number][0]] for number in batch])
                yield batch, self._log_probs(encoded, rows, [pairs[number][1] for number in batch])

    def _encode(self, sequences: Sequence[str]) -> list[Any]:
        features, padding_mask = (x.to(self.device) for x in self.images.read(sequences))
        with self._autocast():
            return [
                model.encoder(features=features, padding_mask=padding_mask) for model in self.models
            ]

    def _batches(self, numbers: list[int], pairs: Sequence[Pair]) -> Iterator[list[int]]:
        """The longest first, so that little padding is computed."""
        batch: list[int] = []
        for number in sorted(numbers, key=lambda number: -len(pairs[number][1])):
            width = len(pairs[batch[0] if batch else number][1])
            if batch and width * (len(batch) + 1) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(number)
        if batch:
            yield batch

    def _log_probs(
        self, encoded: list[Any], rows: Tensor, stories: Sequence[list[int]]
    ) -> list[Tensor]:
        pad, start = self.dictionary.pad(), self.dictionary.eos()
        targets = [torch.tensor(story) for story in stories]
        target = pad_tokens(targets, pad).to(self.device)
        previous = pad_tokens(shift_right(targets, start), pad).to(self.device)
        lengths = torch.tensor([len(story) for story in stories])
        is_real = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).to(self.device)
        rows = rows.to(self.device)
        log_probs = []
        with self._autocast():
            for model, encoder_out in zip(self.models, encoded):
                hidden, _ = model.decoder.extract_features(
                    previous, model.encoder.reorder_encoder_out(encoder_out, rows)
                )
                log_probs.append(
                    word_log_probs(
                        model.decoder,
                        hidden[is_real],
                        target[is_real],
                        slice_bytes=self.slice_bytes,
                    )
                )
        joined = log_probs[0] if len(log_probs) == 1 else mean_log_probs(torch.stack(log_probs))
        if not bool(torch.isfinite(joined).all()):
            raise UserError(
                "the checkpoint gives a word a probability that is no number: its weights hold NaN "
                "or infinite values."
            )
        return list(joined.cpu().split(lengths.tolist()))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"
        )
