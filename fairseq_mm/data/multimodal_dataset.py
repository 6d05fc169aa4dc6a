"""Defines the dataset of all tasks: target texts with features, with source texts, or both."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from torch import Tensor

from fairseq_mm.data.collate import collate
from fairseq_mm.errors import UserError


@dataclass(eq=False, repr=False)
class MultimodalDataset(FairseqDataset):
    """Dataset of the examples of a split.

    Args:
        visual_ids: For each example, the keys of its images or its video in the feature stores,
            separated by tabs. None if the examples have no images.
        features: Feature stores, see :func:`fairseq_mm.data.feature_store.open_features`; None if
            the examples have no images.
        target: Lines of tokens, each ending with ``</s>``; None if there is no text.
        target_dictionary: Dictionary of the target.
        source: Lines of tokens that the model reads; None if the model reads only images.
        source_dictionary: Dictionary of the source; None without a source.
        split: Name of the split; each batch has it under the key ``split``.
        lines: Indices of the lines that become examples (default: all lines). The ``id`` of an
            example is the index of its line.
        shuffle: Order examples of equal size randomly, differently in each epoch.
        groups_items: Order the examples by their images or videos in place of their sizes, so that
            examples of the same images follow each other.
        missing: Keys of images without features, which become padding in the batch.
        rows_per_image: Number of padding vectors for a missing image.
        start: Index of the token before the first word of a target (default: ``</s>``).
        items: Plural noun for messages, such as ``images``, that says what the keys are.
        num_negatives: Number of further examples (negatives) in each batch, sampled from the whole
            split without replacement; all examples if the split has fewer. 0 for no negatives.
        is_target_read: False if the model only generates, so that targets are only printed.
            Targets of any length are then accepted.
        seed: Seed of the negatives. Negatives differ between epochs and batches, but a resumed run
            samples the same negatives as an uninterrupted run.
    """

    visual_ids: Optional[list[str]]
    features: Optional[Any]
    target: Optional[Any]
    target_dictionary: Dictionary
    _: KW_ONLY
    source: Optional[Any] = None
    source_dictionary: Optional[Dictionary] = None
    split: str = ""
    lines: Any = None
    shuffle: bool = False
    groups_items: bool = False
    missing: Any = ()
    rows_per_image: int = 1
    start: Any = None
    items: str = "images"
    num_negatives: int = 0
    is_target_read: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        texts = [text for text in (self.target, self.source) if text is not None]
        count = len(texts[0]) if self.visual_ids is None else len(self.visual_ids)
        self.lines = np.arange(count) if self.lines is None else np.asarray(self.lines)
        self.missing = frozenset(self.missing)
        self.start = self.target_dictionary.eos() if self.start is None else self.start
        self.epoch = 0
        # index of each line's image, images or video, in the order of their first lines
        numbers: dict[str, int] = {}
        self.item = np.array(
            range(count)
            if self.visual_ids is None
            else [numbers.setdefault(ids, len(numbers)) for ids in self.visual_ids]
        )
        self.is_first = np.diff(np.maximum.accumulate(self.item), prepend=-1) > 0
        longest = np.zeros(count, dtype=np.int64)
        for text in texts:
            longest = np.maximum(longest, text.sizes)
        # --max-tokens counts max(source, target), as in fairseq, plus the visual rows
        rows = np.zeros(len(self.lines), dtype=np.int64)
        if self.visual_ids is not None and self.features is not None:
            # each item once: a split has several captions an image
            items, chosen = list(numbers), np.unique(self.item[self.lines]).tolist()
            self._check_features({key for i in chosen for key in items[i].split("\t")})
            counts = np.zeros(len(items), dtype=np.int64)
            counts[chosen] = [
                sum(
                    self.rows_per_image if key in self.missing else self.features.count_rows(key)
                    for key in items[i].split("\t")
                )
                for i in chosen
            ]
            rows = counts[self.item[self.lines]]
        self._num_tokens = longest[self.lines] + rows
        self._num_input_tokens = rows
        if self.source is not None:
            self._num_input_tokens = rows + np.asarray(self.source.sizes)[self.lines]

    def _check_features(self, keys: set[str]) -> None:
        assert self.features is not None
        missing = sorted(
            key for key in keys if key not in self.features and key not in self.missing
        )
        if not missing:
            return
        # the store's own message names the closest key
        try:
            self.features.count_rows(missing[0])
        except UserError as error:
            raise UserError(
                f"{error} ({len(missing)} of {len(keys)} {self.items} of "
                f"{self.split or 'the split'} have none there: extract them too, or name further "
                "stores in --features.)"
            ) from None

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, Any]:
        line = int(self.lines[index])
        features = missing = None
        if self.visual_ids is not None and self.features is not None:
            keys = self.visual_ids[line].split("\t")
            rows = [
                np.zeros((self.rows_per_image, self.features.dim), self.features.dtype)
                if key in self.missing
                else self.features.read(key)
                for key in keys
            ]
            features = rows[0] if len(rows) == 1 else np.concatenate(rows)
            if not self.missing.isdisjoint(keys):
                missing = np.repeat([key in self.missing for key in keys], [len(x) for x in rows])
        return {
            "id": line,
            "features": features,
            "missing": missing,
            "target": None if self.target is None else self.target[line],
            "source": None if self.source is None else self.source[line],
            "is_first": bool(self.is_first[line]),
            "item": int(self.item[line]),
        }

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self._collate(samples)
        if batch:
            batch["split"] = self.split
            if self.num_negatives:
                # Seeded by the batch's first line, which occurs in one batch of an epoch, so that
                # the negatives do not depend on the number of processes or on the worker.
                generator = np.random.default_rng([self.seed, self.epoch, samples[0]["id"]])
                count = min(self.num_negatives, len(self))
                negatives = generator.choice(len(self), size=count, replace=False)
                batch["negatives"] = self._collate([self[index] for index in negatives])
        return batch

    def _collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return collate(
            samples,
            pad=self.target_dictionary.pad(),
            start=self.start,
            source_pad=self.source_dictionary.pad() if self.source_dictionary else None,
        )

    def num_tokens(self, index: int) -> int:
        return int(self._num_tokens[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self._num_tokens[indices]

    def size(self, index: int) -> Any:
        """Return the length of the target, or the lengths of source and target if there is a
        source.

        fairseq compares the result with ``max_positions``. A target counts as 1 token if it is
        missing or is not read by the model.
        """
        line = self.lines[index]
        target = 1
        if self.target is not None and self.is_target_read:
            target = int(self.target.sizes[line])
        return target if self.source is None else (int(self.source.sizes[line]), target)

    def ordered_indices(self) -> np.ndarray:
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        if self.groups_items:
            items = self.item[self.lines]
            # an item comes where the first of its examples is in the random order
            place = np.full(self.item.max(initial=0) + 1, len(self))
            np.minimum.at(place, items[order], np.arange(len(order)))
            return order[np.argsort(place[items[order]], kind="stable")]
        # stable, so that lines of equal size stay in the random order
        return order[np.argsort(self._num_tokens[order], kind="stable")]

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Return fairseq's batches, and one more batch with the examples that fairseq would drop.

        fairseq-fixed 0.12.3 (and fairseq's main) drops the last batch if its size is no multiple of
        ``required_batch_size_multiple``, even in generation, and fails if ``indices`` is empty.
        """
        if len(indices) == 0:
            return []
        # fairseq refuses examples above max_tokens; targets that no model reads must not count
        if max_tokens is not None and not self.is_target_read:
            longest = np.maximum(self._num_input_tokens, max_tokens)
            self._num_tokens = np.minimum(self._num_tokens, longest)
        longest_line = self._num_tokens[indices].max()
        if max_tokens is not None and longest_line > max_tokens:
            raise UserError(
                f"--max-tokens {max_tokens}: must be {longest_line} or more, the number of tokens "
                f"of the longest line of {self.split or 'the input'}."
            )
        batches = list(
            super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple)
        )
        covered = sum(len(batch) for batch in batches)
        # the dropped examples are at the end of `indices`: fairseq makes batches in this order
        if covered < len(indices):
            batches.append(np.asarray(indices[covered:]))
        return batches

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        # with True, fairseq makes the batches once and shuffles only their order, and a resumed run
        # would make other batches than the run that it continues
        return not self.shuffle


def encode_words(dictionary: Dictionary, words: str) -> Tensor:
    """Return the dictionary indices ``[words]`` of words separated by white space, without
    ``</s>``."""
    indices = []
    for word in words.split():
        index = dictionary.index(word)
        if index == dictionary.unk() and word != dictionary.unk_word:
            raise UserError(
                f"the word {word!r} is not in the dictionary of "
                f"{len(dictionary) - dictionary.nspecial} words."
            )
        indices.append(index)
    return torch.tensor(indices, dtype=torch.long)
