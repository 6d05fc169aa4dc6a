"""Reads part-of-speech sequences from the records of captions, or samples them for generation.

The field ``tags`` of a record has a text for each caption, with one tag for each token, separated
by spaces. ``scripts/tag_pos.py`` writes it; any other tagger can be used. A model reads the tags as
source text, ended by ``</s>``, the tag of the sentence's end (Kiros et al. 2014, section 2.5:
https://arxiv.org/abs/1411.2539).
"""

import logging
import random
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary

from fairseq_mm.data.binarised_text import build_dictionary
from fairseq_mm.data.records import Split, open_split
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)

# lengths of the sequences for generation (Kiros et al., supplementary material)
SHORTEST, LONGEST = 4, 12


class TagLines:
    """Part-of-speech sequences (tags separated by spaces) as source text, stored in one array.

    Tags that the dictionary does not have become ``<unk>``.

    Attributes:
        sizes: ``[lines]`` number of tags, ``</s>`` included.
        num_unknown: Number of tags that are not in the dictionary.
    """

    def __init__(self, lines: Sequence[str], dictionary: Dictionary) -> None:
        sequences = [line.split() for line in lines]
        # each tag is looked up once: there are millions of tags, but some 40 different ones
        indices = {tag: dictionary.index(tag) for tag in {t for tags in sequences for t in tags}}
        end = dictionary.eos()
        self.sizes = np.array([len(tags) + 1 for tags in sequences], dtype=np.int64)
        self._ends = np.cumsum(self.sizes)
        flat = [index for tags in sequences for index in (*(indices[t] for t in tags), end)]
        self._tags = torch.tensor(flat, dtype=torch.long)
        self.num_unknown = int(self._tags.eq(dictionary.unk()).sum())

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, line: int) -> torch.Tensor:
        return self._tags[self._ends[line] - self.sizes[line] : self._ends[line]]


def get_tags(records: Split) -> list[str]:
    """Return the part-of-speech sequence of each line of a split."""
    tags = records.field("tags")
    if None in tags:
        where = records.where(tags.index(None))
        raise UserError(f"{where}: has no `tags`: make them with scripts/tag_pos.py.")
    return tags


def sample_pos_sequences(counts: "Counter[str]", number: int, *, seed: int) -> list[str]:
    """Sample ``number`` part-of-speech sequences with replacement.

    ``counts`` maps each sequence to its number of occurrences, to which its probability is
    proportional.
    """
    # sorted, because the order of `counts` depends on the order of the lines
    sequences = sorted(counts)
    totals = list(accumulate(counts[sequence] for sequence in sequences))
    return random.Random(seed).choices(sequences, cum_weights=totals, k=number)


class FolderPosSequences:
    """Part-of-speech sequences in a data folder, for tasks whose model reads them.

    Args:
        folder: Data folder whose records have tags, in the split train and in validation splits.
        words: Tags in the order of the dictionary, as a checkpoint saves them; None to build the
            dictionary from the split train.
    """

    def __init__(self, folder: str, words: Optional[Sequence[str]] = None) -> None:
        self.folder = folder
        self._words = words

    @cached_property
    def dictionary(self) -> Dictionary:
        """Dictionary of the tags, the most frequent first; built at the first access."""
        if self._words is not None:
            return build_dictionary(self._words)
        lines = get_tags(open_split(self.folder, "train", ()))
        counts = Counter(tag for line in lines for tag in line.split())
        dictionary = Dictionary()
        # Counter.most_common orders equal counts by occurrence: a copy in another order of lines
        # would give the tags of a checkpoint other indices
        for tag, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            dictionary.add_symbol(tag, n=count)
        return dictionary

    def dataset_options(
        self, records: Split, sizes: np.ndarray, *, draw: bool = False, seed: int = 0
    ) -> dict[str, Any]:
        """Return the arguments of :class:`MultimodalDataset` for the tags of a split.

        Args:
            records: Records of the split.
            sizes: ``[lines]`` number of tokens in each line of text, ``</s>`` included.
            draw: Sample a tag sequence of the training captions for each line, instead of reading
                the tags of the split.
            seed: Seed of the sampling.
        """
        # the sequences of the split would show a generating model what the references are like
        if draw:
            train = open_split(self.folder, "train", ())
            tags = map(str.split, get_tags(train))
            counts = Counter(" ".join(x) for x in tags if SHORTEST <= len(x) <= LONGEST)
            if not counts:
                raise UserError(
                    f"{train.path}: must have captions of {SHORTEST} to {LONGEST} tags to write "
                    "captions by, but has none."
                )
            lines = sample_pos_sequences(counts, len(sizes), seed=seed)
        else:
            lines = get_tags(records)
        sequences = TagLines(lines, self.dictionary)
        different = (
            np.flatnonzero(sequences.sizes != np.asarray(sizes)) if not draw else np.zeros(0)
        )
        if len(different):
            line = int(different[0])  # its sizes count </s>
            raise UserError(
                f"{records.where(line)}: each token must have one tag, but a caption has "
                f"{sizes[line] - 1} tokens and {sequences.sizes[line] - 1} tags ({len(different)} "
                "such lines)."
            )
        if sequences.num_unknown:
            total = int(sequences.sizes.sum()) - len(sequences)
            logger.warning(
                f"{records.path}: {sequences.num_unknown} of {total} tags are not among those of "
                "training; the same tagger must have made both"
            )
        return {"source": sequences, "source_dictionary": self.dictionary}
