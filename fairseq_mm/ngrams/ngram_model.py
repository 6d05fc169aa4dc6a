"""Stores n-gram language models with backoff in sorted arrays, to look up many n-grams at once.

Jelinek. Statistical Methods for Speech Recognition. MIT Press, 1997.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

START, END, UNKNOWN = "<s>", "</s>", "<unk>"


class NgramTable(NamedTuple):
    """Table of the G n-grams of one order.

    Attributes:
        keys: ``[G]`` int64, ascending and distinct. The key of an n-gram is the index of its
            context, times the number of words, plus the index of its last word. The context is the
            n-gram without its last word; its index is its position in the table of the order below,
            or 0 for an n-gram of one word.
        log_probs: ``[G]`` float64, to base 10: log probability of the last word given the context.
        backoffs: ``[G]`` float64, to base 10: backoff weight of the n-gram when it is the context
            of a longer n-gram; 0 if it is no context.
    """

    keys: np.ndarray
    log_probs: np.ndarray
    backoffs: np.ndarray


class NgramModel:
    """N-gram model with backoff.

    The probability of word w after the context u is looked up in the tables if they contain the
    n-gram uw. Otherwise log p(w | u) is backoff(u) + log p(w | u without its first word), with a
    backoff of 0 for a context that the tables lack. The context of every n-gram must be in the
    tables, as ARPA files guarantee.

    Args:
        words: Words; the index of a word is its position in this list.
        tables: Table of each order, from 1 upward. The first table has all words, ``<s>``, ``</s>``
            and ``<unk>`` included.
    """

    def __init__(self, words: Sequence[str], tables: Sequence[NgramTable]) -> None:
        self.words = list(words)
        self.tables = list(tables)
        self.order = len(self.tables)
        self._indices = {word: number for number, word in enumerate(self.words)}

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the natural log probability of each sentence as float64 ``[sentences]``.

        ``sentences`` are lists of words without ``<s>`` and ``</s>``. The probability of ``</s>``
        after the last word is included; words that the model does not have count as ``<unk>``.
        """
        if not len(sentences):
            return np.zeros(0)
        start, end, unknown = (self._indices[word] for word in (START, END, UNKNOWN))
        indices: list[int] = []
        places = []
        for sentence in sentences:
            places.append(len(indices))
            indices += [start, *(self._indices.get(word, unknown) for word in sentence), end]
        text, starts = np.array(indices, dtype=np.int64), np.array(places)  # [T], [sentences]
        scores = self.tables[0].log_probs[text]  # [T]
        ngrams = text  # [T] index of the n-gram that ends at each position; -1 for none
        for lower, table in zip(self.tables, self.tables[1:]):
            contexts = np.roll(ngrams, 1)  # [T]
            # no n-gram goes beyond the beginning of a sentence
            contexts[starts] = -1
            ngrams = find_ngrams(table.keys, contexts, text, len(self.words))
            backed_off = scores + _take_or_zero(lower.backoffs, contexts)
            scores = np.where(ngrams >= 0, _take_or_zero(table.log_probs, ngrams), backed_off)
        # <s> is given and not predicted
        scores[starts] = 0
        return np.add.reduceat(scores, starts) * math.log(10)

    def ngrams(self) -> Iterator[list[str]]:
        """Yield a list of n-grams for each table, in its order; the words of an n-gram
        are separated by spaces."""
        texts = self.words
        yield texts
        for table in self.tables[1:]:
            contexts, numbers = np.divmod(table.keys, len(self.words))
            pairs = zip(contexts.tolist(), numbers.tolist())
            texts = [f"{texts[context]} {self.words[number]}" for context, number in pairs]
            yield texts


def find_ngrams(
    keys: np.ndarray, contexts: np.ndarray, numbers: np.ndarray, num_words: int
) -> np.ndarray:
    """Return the positions ``[T]`` of T n-grams in a table, -1 for n-grams that the table lacks.

    Args:
        keys: ``keys`` of the table.
        contexts: ``[T]`` position of each n-gram's context in the table of the order below, -1 if
            that table lacks the context.
        numbers: ``[T]`` index of each n-gram's last word.
    """
    # an n-gram without context (-1) becomes a negative number, and no key is negative
    wanted = contexts * num_words + numbers
    places = np.searchsorted(keys, wanted)
    # searchsorted returns len(keys) for an n-gram behind the last one
    is_found = places < len(keys)
    is_found[is_found] = keys[places[is_found]] == wanted[is_found]
    return np.where(is_found, places, -1)


def _take_or_zero(values: np.ndarray, ngrams: np.ndarray) -> np.ndarray:
    """Return ``values[ngrams]``, but 0 where ``ngrams`` is -1, which means a missing n-gram."""
    result = np.zeros(len(ngrams))
    is_found = ngrams >= 0
    result[is_found] = values[ngrams[is_found]]
    return result
