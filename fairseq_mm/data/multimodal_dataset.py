"""The one dataset: lines of text, each with the features of its image, images or video, or with
a text as input, or with both."""

from collections.abc import Collection
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from torch import Tensor

from fairseq_mm.data.collate import collate
from fairseq_mm.data.split_files import first_lines
from fairseq_mm.errors import UserError


class MultimodalDataset(FairseqDataset):
    """Examples of a split.

    Args:
        visual_ids: one line per example: keys separated by tabs; None without images.
        features: feature stores, see :func:`fairseq_mm.data.feature_store.open_features`; None
            without images.
        target: lines of tokens, each ending with ``</s>``; None when there is no text.
        target_dictionary: of ``target``.
        source: lines of tokens that are input as well, or None.
        source_dictionary: of ``source``.
        split: name of the split, carried by its batches.
        lines: indices of the lines that this dataset consists of; all when None. Examples keep
            their line's number as ``id``.
        shuffle: lines of equal size come in random order, another one in each epoch.
        missing: keys of images that have no features, and are padding in the batch.
        rows_per_image: rows that a missing image takes.
        start: token before the first word that a model writes; ``</s>`` by default.
        items: what the keys name, for messages.
        num_negatives: lines that each batch brings besides, drawn from the whole split without
            repetition: all of the split where it has not so many.
        is_target_read: False if models only generate, and the targets are printed: then a target
            of any length fits.
        seed: of these draws. Others are made in each epoch and for each batch, and the same
            again in a run that is resumed.

    Raises:
        UserError: if a key is neither in the feature stores nor missing.
    """

    def __init__(
        self,
        visual_ids: Optional[list[str]],
        features: Optional[Any],
        target: Optional[Any],
        target_dictionary: Dictionary,
        *,
        source: Optional[Any] = None,
        source_dictionary: Optional[Dictionary] = None,
        split: str = "",
        lines: Optional[np.ndarray] = None,
        shuffle: bool = False,
        missing: Collection[str] = (),
        rows_per_image: int = 1,
        start: Optional[int] = None,
        items: str = "images",
        num_negatives: int = 0,
        is_target_read: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.visual_ids = visual_ids
        self.features = features
        self.target = target
        self.target_dictionary = target_dictionary
        self.source = source
        self.source_dictionary = source_dictionary
        texts = [text for text in (target, source) if text is not None]
        count = len(texts[0]) if visual_ids is None else len(visual_ids)
        self.lines = np.arange(count) if lines is None else np.asarray(lines)
        self.split = split
        self.shuffle = shuffle
        self.missing = frozenset(missing)
        self.rows_per_image = rows_per_image
        self.start = target_dictionary.eos() if start is None else start
        self.items = items
        self.num_negatives = num_negatives
        self.is_target_read = is_target_read
        self.seed = seed
        self.epoch = 0
        self.is_first = np.ones(count, bool) if visual_ids is None else first_lines(visual_ids)
        # number of each line's image, images or video, in the order of their first lines
        numbers: dict[str, int] = {}
        self.item = np.array(
            range(count)
            if visual_ids is None
            else [numbers.setdefault(ids, len(numbers)) for ids in visual_ids]
        )
        longest = np.zeros(count, dtype=np.int64)
        for text in texts:
            longest = np.maximum(longest, text.sizes)
        # --max-tokens counts max(source, target), as fairseq does, plus the visual rows
        rows = self._count_rows()
        self._num_tokens = longest[self.lines] + rows
        self._num_input_tokens = rows
        if source is not None:
            self._num_input_tokens = rows + np.asarray(source.sizes)[self.lines]

    def _count_rows(self) -> np.ndarray:
        """``[len(self)]`` number of regions or frames of each example."""
        if self.visual_ids is None or self.features is None:
            return np.zeros(len(self.lines), dtype=np.int64)
        self._check_features()
        rows = {}
        for line in {self.visual_ids[i] for i in self.lines}:
            rows[line] = sum(
                self.rows_per_image if key in self.missing else self.features.count_rows(key)
                for key in line.split("\t")
            )
        return np.array([rows[self.visual_ids[i]] for i in self.lines], dtype=np.int64)

    def _check_features(self) -> None:
        assert self.visual_ids is not None
        assert self.features is not None
        keys = {key for i in self.lines for key in self.visual_ids[i].split("\t")}
        missing = sorted(
            key for key in keys if key not in self.features and key not in self.missing
        )
        if not missing:
            return
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
            rows = [self._rows_of(key) for key in keys]
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

    def _rows_of(self, key: str) -> np.ndarray:
        """``[rows, D]`` of an image, zeros of a missing one."""
        assert self.features is not None
        if key in self.missing:
            return np.zeros((self.rows_per_image, self.features.dim), self.features.dtype)
        return self.features.read(key)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self._collate(samples)
        if batch:
            batch["split"] = self.split
            if self.num_negatives:
                # a line is in one batch of an epoch, whichever process has it
                drawn = self._draw_negatives(samples[0]["id"])
                batch["negatives"] = self._collate([self[index] for index in drawn])
        return batch

    def _collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return collate(
            samples,
            pad=self.target_dictionary.pad(),
            start=self.start,
            source_pad=self.source_dictionary.pad() if self.source_dictionary else None,
        )

    def _draw_negatives(self, line: int) -> list[int]:
        """Indices of the examples that the batch of a first line brings."""
        generator = np.random.default_rng([self.seed, self.epoch, line])
        count = min(self.num_negatives, len(self))
        return generator.choice(len(self), size=count, replace=False).tolist()

    def num_tokens(self, index: int) -> int:
        return int(self._num_tokens[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self._num_tokens[indices]

    def size(self, index: int) -> Any:
        """Return the length of the target, or the lengths of source and target where there is a
        source. fairseq compares them with ``max_positions``; a target that no model reads is 1."""
        line = self.lines[index]
        counted = self.target if self.is_target_read else None
        target = 1 if counted is None else int(counted.sizes[line])
        return target if self.source is None else (int(self.source.sizes[line]), target)

    def ordered_indices(self) -> np.ndarray:
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        return order[np.argsort(self._num_tokens[order], kind="stable")]

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """fairseq's batches, and the examples that it loses.

        fairseq-fixed 0.12.3 (and fairseq's main) drops a last batch whose size is no multiple of
        ``required_batch_size_multiple``, in validation and generation too, and fails on no indices.
        """
        if len(indices) == 0:
            return []
        if max_tokens is not None and not self.is_target_read:
            longest = np.maximum(self._num_input_tokens, max_tokens)
            self._num_tokens = np.minimum(self._num_tokens, longest)
        batches = list(
            super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple)
        )
        covered = sum(len(batch) for batch in batches)
        if covered < len(indices):
            batches.append(np.asarray(indices[covered:]))
        return batches

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False while shuffling: fairseq would make the batches once and shuffle only their order,
        and a resumed run would make others than the run that it resumes."""
        return not self.shuffle


def encode_words(dictionary: Dictionary, words: str) -> Tensor:
    """``[t]`` indices of words separated by white space, without ``</s>``.

    Raises:
        UserError: if a word is not in the dictionary.
    """
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
