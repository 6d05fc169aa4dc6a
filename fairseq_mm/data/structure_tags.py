"""``<split>.tags``: the structures of a split's captions, and structures to write new ones by.

One line per line of text: tags separated by spaces, such as parts of speech, as many as the text
has tokens. ``scripts/tag_pos.py`` makes the files; any other tagger's will do. A model reads them
as source text, ended by ``</s>``, the tag of the sentence's end (Kiros et al. 2014, section 2.5:
https://arxiv.org/abs/1411.2539).
"""

import logging
import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary

from fairseq_mm.data.binarised_text import check_line_counts, dictionary_of
from fairseq_mm.data.input_files import read_lines
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)

# of the structures that captions are written by (supplementary material)
SHORTEST, LONGEST = 4, 12


class TagLines:
    """Structures as a dataset's source text: one array, however many lines.

    Args:
        lines: tags separated by spaces.
        dictionary: of the tags; others become ``<unk>``.

    Attributes:
        sizes: ``[lines]`` tags of each, ``</s>`` included.
        num_unknown: tags that the dictionary does not have.
    """

    def __init__(self, lines: Sequence[str], dictionary: Dictionary) -> None:
        structures = [line.split() for line in lines]
        indices = {tag: dictionary.index(tag) for tag in {t for tags in structures for t in tags}}
        end = dictionary.eos()
        self.sizes = np.array([len(tags) + 1 for tags in structures], dtype=np.int64)
        self._ends = np.cumsum(self.sizes)
        flat = [index for tags in structures for index in (*(indices[t] for t in tags), end)]
        self._tags = torch.tensor(flat, dtype=torch.long)
        self.num_unknown = int(self._tags.eq(dictionary.unk()).sum())

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, line: int) -> torch.Tensor:
        return self._tags[self._ends[line] - self.sizes[line] : self._ends[line]]


def read_tags(path: str) -> list[str]:
    """Lines of the file.

    Raises:
        UserError: if the file is missing or not UTF-8.
    """
    what = "it has the tags of each line of text: make it with scripts/tag_pos.py"
    return [line for _, line in read_lines(path, what=what)]


def make_tag_dictionary(lines: Iterable[str]) -> Dictionary:
    """A dictionary of the tags in structures, the most frequent first."""
    counts = Counter(tag for line in lines for tag in line.split())
    dictionary = Dictionary()
    for tag, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        dictionary.add_symbol(tag, n=count)
    return dictionary


def load_tag_dictionary(folder: str) -> Dictionary:
    """The dictionary of the training captions' tags.

    Raises:
        UserError: if the folder has no ``train.tags``, or there is no tag in it.
    """
    path = os.path.join(folder, "train.tags")
    dictionary = make_tag_dictionary(read_tags(path))
    if len(dictionary) == dictionary.nspecial:
        raise UserError(f"{path}: must have tags in each line, but is empty.")
    return dictionary


def load_structures(
    path: str, dictionary: Dictionary, *, sizes: np.ndarray, text_path: str
) -> TagLines:
    """
    Args:
        path: of the tags.
        dictionary: of the tags.
        sizes: ``[lines]`` tokens of each line of text, ``</s>`` included.
        text_path: of the text, for messages.

    Raises:
        UserError: if the file is missing, or does not have one tag for each token of each line.
    """
    lines = read_tags(path)
    check_line_counts({text_path: len(sizes), path: len(lines)})
    structures = TagLines(lines, dictionary)
    check_alignment(path, structures.sizes - 1, text_path, np.asarray(sizes) - 1)
    if structures.num_unknown:
        total = int(structures.sizes.sum()) - len(lines)
        logger.warning(
            f"{path}: {structures.num_unknown} of {total} tags are not among those of training; "
            "the same tagger must have made both files"
        )
    return structures


def check_alignment(
    path: str, num_tags: np.ndarray, text_path: str, num_tokens: np.ndarray
) -> None:
    """
    Args:
        path: of the tags.
        num_tags: ``[lines]`` of each line.
        text_path: of the text.
        num_tokens: ``[lines]`` of each line, ``</s>`` left out.

    Raises:
        UserError: if a line does not have one tag for each token.
    """
    different = np.flatnonzero(num_tags != num_tokens)
    if len(different):
        line = int(different[0])
        raise UserError(
            f"{path}:{line + 1}: has {num_tags[line]} tags, but line {line + 1} of {text_path} has "
            f"{num_tokens[line]} tokens ({len(different)} such lines): each token must have one "
            "tag."
        )


def count_structures(
    lines: Iterable[str], *, shortest: int = SHORTEST, longest: int = LONGEST
) -> "Counter[str]":
    """How often each structure of a length occurs.

    Args:
        lines: tags separated by spaces.
        shortest: least number of tags.
        longest: greatest number of tags.

    Returns:
        structure, its tags separated by single spaces -> count.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        tags = line.split()
        if shortest <= len(tags) <= longest:
            counts[" ".join(tags)] += 1
    return counts


def sample_structures(counts: "Counter[str]", number: int, *, seed: int) -> list[str]:
    """Structures as frequent as they were counted, drawn with replacement.

    Args:
        counts: of :func:`count_structures`.
        number: how many.
        seed: of the draws; the order of the counts does not matter.

    Raises:
        UserError: if there are none to draw from.
    """
    if not counts:
        raise UserError("there are no structures of the length asked for to draw from.")
    structures = sorted(counts)
    totals = list(accumulate(counts[structure] for structure in structures))
    return random.Random(seed).choices(structures, cum_weights=totals, k=number)


class FolderStructures:
    """Structures of a data folder, for a task whose model reads them.

    Args:
        folder: with ``train.tags`` and, for each split that a model is trained or validated on,
            ``<split>.tags``.
        words: of the tags' dictionary, special symbols left out; that of ``train.tags`` by default.
    """

    def __init__(self, folder: str, words: Optional[Sequence[str]] = None) -> None:
        self.folder = folder
        self._words = words

    @cached_property
    def dictionary(self) -> Dictionary:
        """Of the tags; read when it is first asked for.

        Raises:
            UserError: if the folder has no tags.
        """
        if self._words is not None:
            return dictionary_of(self._words)
        return load_tag_dictionary(self.folder)

    def dataset_options(
        self, split: str, sizes: np.ndarray, *, draw: bool = False, seed: int = 0
    ) -> dict[str, Any]:
        """What a split's :class:`MultimodalDataset` takes besides.

        Args:
            split: its name.
            sizes: ``[lines]`` tokens of each line of text, ``</s>`` included.
            draw: structures of training, drawn, in place of the split's own: those would tell a
                model that is to generate what the references are like.
            seed: of the draws.

        Raises:
            UserError: if there are no tags, or they do not fit the text.
        """
        structures: TagLines
        if draw:
            path = os.path.join(self.folder, "train.tags")
            counts = count_structures(read_tags(path))
            if not counts:
                raise UserError(
                    f"{path}: must have lines of {SHORTEST} to {LONGEST} tags to write captions "
                    "by, but has none."
                )
            drawn = sample_structures(counts, len(sizes), seed=seed)
            structures = TagLines(drawn, self.dictionary)
        else:
            structures = load_structures(
                os.path.join(self.folder, f"{split}.tags"),
                self.dictionary,
                sizes=sizes,
                text_path=os.path.join(self.folder, f"{split}.idx"),
            )
        return {"source": structures, "source_dictionary": self.dictionary}
