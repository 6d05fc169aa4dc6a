"""N-gram language models with backoff, as in ARPA files: arrays that are searched for many n-grams.

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
        keys: ``[G]`` int64, ascending and distinct. A key is the index of the n-gram's context,
            times the number of words, plus the index of its last word. The context is the n-gram
            without its last word, and its index the position in the table of the order below; 0 for
            words.
        log_probs: ``[G]`` float64, to base 10: log probability of the last word given the context.
        backoffs: ``[G]`` float64, to base 10: backoff of the n-gram as a context, 0 if it is no
            context.
    """

    keys: np.ndarray
    log_probs: np.ndarray
    backoffs: np.ndarray


class NgramModel:
    """N-gram model with backoff.

    If the tables have the n-gram uw, they have log p(w | u). Otherwise it is backoff(u) + log p(w |
    u without its first word); a context that the tables lack has backoff 0. Therefore the context
    of every n-gram must be in the tables, which ARPA files guarantee, while its other parts may be
    missing. The positions of ``words`` are their indices; the first of ``tables`` has all words,
    ``<s>``, ``</s>`` and ``<unk>`` included.
    """

    def __init__(self, words: Sequence[str], tables: Sequence[NgramTable]) -> None:
        self.words = list(words)
        self.tables = list(tables)
        self.order = len(self.tables)
        self._indices = {word: number for number, word in enumerate(self.words)}

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Return natural log probabilities of sentences and their ends given ``<s>``, float64.

        ``sentences`` are lists of words without ``<s>`` and ``</s>``; unknown words count as
        ``<unk>``.
        """
        if not len(sentences):
            return np.zeros(0)
        text, starts = self._index_words(sentences)  # [T], [sentences]
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

    def _index_words(self, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of all words, with ``<s>`` and ``</s>``, and the places of ``<s>``."""
        indices = self._indices
        start, end, unknown = (indices[word] for word in (START, END, UNKNOWN))
        text: list[int] = []
        starts = []
        for sentence in sentences:
            starts.append(len(text))
            text.append(start)
            text.extend([indices.get(word, unknown) for word in sentence])
            text.append(end)
        return np.array(text, dtype=np.int64), np.array(starts)

    def ngrams(self) -> Iterator[list[str]]:
        """Yield the n-grams of each order in the order of the table, words separated by spaces."""
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
    """Return the positions ``[T]`` of n-grams in a table's ``keys``, -1 for n-grams that it lacks.

    ``contexts`` are indices ``[T]`` in the table of the order below, -1 for none, and ``numbers``
    indices ``[T]`` of the last words.
    """
    # negative without a context, as no key is
    wanted = contexts * num_words + numbers
    places = np.searchsorted(keys, wanted)
    # searchsorted returns len(keys) for an n-gram behind the last one
    is_found = places < len(keys)
    is_found[is_found] = keys[places[is_found]] == wanted[is_found]
    return np.where(is_found, places, -1)


def _take_or_zero(values: np.ndarray, ngrams: np.ndarray) -> np.ndarray:
    """Return ``values[ngrams]``, and 0 for no n-gram (-1)."""
    result = np.zeros(len(ngrams))
    is_found = ngrams >= 0
    result[is_found] = values[ngrams[is_found]]
    return result
