"""N-gram language models with backoff, as ARPA files hold them: arrays, searched for many at once.

Jelinek. Statistical Methods for Speech Recognition. MIT Press, 1997; the file format is described
in http://www.speech.sri.com/projects/srilm/manpages/ngram-format.5.html.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

START, END, UNKNOWN = "<s>", "</s>", "<unk>"


class NgramTable(NamedTuple):
    """The G n-grams of one order.

    Attributes:
        keys: ``[G]`` int64, ascending, all different. A key is the number of an n-gram's context,
            times the number of words, plus the number of its last word. The context is all but the
            last word, and its number its place in the table of the order below; 0 for words.
        log_probs: ``[G]`` float64, to base 10: the last word's given the context.
        backoffs: ``[G]`` float64, to base 10: of the n-gram as a context, 0 where it is none.
    """

    keys: np.ndarray
    log_probs: np.ndarray
    backoffs: np.ndarray


class NgramModel:
    """log p(w | u) is the table's if it has uw, else backoff(u) + log p(w | u without its first).

    A context that the tables lack has backoff 0. So every n-gram's context must be in them, which
    ARPA files promise, while its other parts may be missing.

    Args:
        words: V of them, with ``<s>``, ``</s>`` and ``<unk>``; their places are their numbers.
        tables: of the orders 1, 2, ...; the first has all words.

    Attributes:
        order: of the last table.
    """

    def __init__(self, words: Sequence[str], tables: Sequence[NgramTable]) -> None:
        self.words = list(words)
        self.tables = list(tables)
        self.order = len(self.tables)
        self._number_of = {word: number for number, word in enumerate(self.words)}

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """
        Args:
            sentences: words of each, without ``<s>`` and ``</s>``; unknown ones count as ``<unk>``.

        Returns:
            ``[sentences]`` float64: natural log probability of a sentence's words and of the end
            behind them, given ``<s>``.
        """
        if not len(sentences):
            return np.zeros(0)
        numbers, starts = self._numbers_of(sentences)  # [T], [sentences]
        scores = self.tables[0].log_probs[numbers]  # [T]
        ngrams = numbers  # at each position, the number of the n-gram that ends there; -1: none
        for lower, table in zip(self.tables, self.tables[1:]):
            contexts = np.roll(ngrams, 1)  # [T]
            contexts[starts] = -1
            ngrams = find_ngrams(table.keys, contexts, numbers, len(self.words))
            backed_off = scores + _values_of(lower.backoffs, contexts)
            scores = np.where(ngrams >= 0, _values_of(table.log_probs, ngrams), backed_off)
        scores[starts] = 0  # <s> is given
        return np.add.reduceat(scores, starts) * math.log(10)

    def _numbers_of(self, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """All words one after the other, with ``<s>`` and ``</s>``, and the places of ``<s>``."""
        number_of = self._number_of
        start, end, unknown = (number_of[word] for word in (START, END, UNKNOWN))
        numbers: list[int] = []
        starts = []
        for sentence in sentences:
            starts.append(len(numbers))
            numbers.append(start)
            numbers.extend([number_of.get(word, unknown) for word in sentence])
            numbers.append(end)
        return np.array(numbers, dtype=np.int64), np.array(starts)

    def ngrams(self) -> Iterator[list[str]]:
        """For each order its n-grams as the table has them, words separated by spaces."""
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
    """
    Args:
        keys: ``[G]`` of a table.
        contexts: ``[T]`` numbers in the table of the order below, -1 for none.
        numbers: ``[T]`` of the last words.
        num_words: V.

    Returns:
        ``[T]`` places of the n-grams in ``keys``, -1 where it has none.
    """
    wanted = contexts * num_words + numbers  # negative, as no key is, where there is no context
    places = np.searchsorted(keys, wanted)
    is_found = places < len(keys)
    is_found[is_found] = keys[places[is_found]] == wanted[is_found]
    return np.where(is_found, places, -1)


def _values_of(values: np.ndarray, ngrams: np.ndarray) -> np.ndarray:
    """``values[ngrams]``, and 0 where there is no n-gram (-1)."""
    found = np.zeros(len(ngrams))
    is_found = ngrams >= 0
    found[is_found] = values[ngrams[is_found]]
    return found
