"""Estimates n-gram models with interpolated modified Kneser-Ney smoothing.

Chen, Goodman. An empirical study of smoothing techniques for language modeling. Computer Speech and
Language 13(4), 1999, https://doi.org/10.1006/csla.1999.0128, section 3; the number of the equation
is from the longer report TR-10-98, Harvard University, 1998. An n-gram uw is a context u and its
last word w; u' is u without its first word, and v is any word. a(uw) is the adjusted count of an
n-gram, nj the number of n-grams of the same order whose adjusted count is j:

    p(w | u) = (a(uw) - D(a(uw))) / sum_v a(uv) + gamma(u) p(w | u')
    gamma(u) = sum_v D(a(uv)) / sum_v a(uv)
    D(0) = 0,  D(j) = j - (j + 1) Y n(j+1) / nj for j = 1, 2, 3,  D(j) = D(3) for j > 3
    Y = n1 / (n1 + 2 n2)                                                         (equation 26)

In the highest order, the adjusted count of an n-gram is its number of occurrences; in lower orders
it is the number of distinct words that precede the n-gram.

Where the paper leaves a choice, this module follows KenLM's ``lmplz`` (Heafield et al. Scalable
Modified Kneser-Ney Language Model Estimation. ACL 2013, https://aclanthology.org/P13-2121):

- No word precedes ``<s>``. For n-grams that begin with ``<s>``, the adjusted count is therefore the
  number of occurrences in every order.
- The distribution of single words is interpolated with the uniform distribution over V words:
  ``</s>`` and ``<unk>`` are among them, but not ``<s>``, which is never predicted. Thus ``<unk>``
  has the probability gamma / V, with the gamma of the empty context.
- In small or artificial texts an nj can be 0, or a discount D(j) can be outside of 0 to j. Then the
  three discounts of this order are 0.5, 1 and 1.5, as with ``lmplz --discount_fallback``.

Unlike ``lmplz``, this module accepts a text with ``<unk>``, which is treated like any other word.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Union

import numpy as np

from fairseq_mm.data.input_files import read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.ngram_model import END, START, UNKNOWN, NgramModel, NgramTable

_FALLBACK = (0.5, 1.0, 1.5)
_LOG_ZERO = -99.0  # the convention of ARPA files for log 0


class _Ngrams(NamedTuple):
    """The G distinct n-grams of one order; all arrays are [G].

    ``keys`` are the keys of :class:`NgramTable`. ``contexts`` has each n-gram without its last
    word, and ``suffixes`` each n-gram without its first word, as an index into the n-grams of the
    order below. ``counts`` are occurrences in the text. ``is_initial`` is True for n-grams that
    begin with ``<s>``.
    """

    keys: np.ndarray
    contexts: np.ndarray
    suffixes: np.ndarray
    counts: np.ndarray
    is_initial: np.ndarray


def read_token_lines(paths: Iterable[Union[str, os.PathLike]]) -> Iterator[list[str]]:
    """Yield the tokens, separated by white space, of each line of several text files, without blank
    lines."""
    for path in paths:
        for number, line in read_lines(Path(path)):
            tokens = line.split()
            if START in tokens or END in tokens:
                raise UserError(f"{path}:{number}: must be words, without {START} and {END}.")
            if tokens:
                yield tokens


def estimate_kneser_ney(lines: Iterable[Sequence[str]], *, order: int = 3) -> NgramModel:
    """Estimate an n-gram model with modified Kneser-Ney smoothing.

    Args:
        lines: Words of each sentence, without ``<s>`` and ``</s>``; iterated once. A sentence
            without words counts as an empty sentence.
        order: Number of words in the longest n-grams.
    """
    words, text = _number_words(lines)
    levels = _count(text, words, order)
    lower = np.array([1 / (len(words) - 1)])  # order 0: the uniform distribution
    log_probs, backoffs = [], []
    for n, level in enumerate(levels):
        counts = level.counts
        if n + 1 < order:
            # adjusted count: each n-gram one order up has a different word before this one
            continuations = np.bincount(levels[n + 1].suffixes, minlength=len(level.keys))
            counts = np.where(level.is_initial, level.counts, continuations)
        # at least 5 entries: the discount of count 3 needs the number of n-grams with count 4
        numbers = np.bincount(counts, minlength=5)
        by_count = np.array([0, *_FALLBACK])  # discounts of adjusted counts 0, 1, 2, and 3 or more
        if numbers[1:4].all():
            j = np.arange(1, 4)
            Y = numbers[1] / (numbers[1] + 2 * numbers[2])
            estimates = j - (j + 1) * Y * numbers[2:5] / numbers[1:4]
            if ((estimates > 0) & (estimates <= j)).all():
                by_count[1:] = estimates
        discounts = by_count[np.minimum(counts, 3)]  # [G]
        # one entry for each n-gram of the order below, which is a context here
        totals = np.bincount(level.contexts, weights=counts, minlength=len(lower))
        sums = np.bincount(level.contexts, weights=discounts, minlength=len(lower))
        gammas = np.ones(len(lower))  # 1 if no word follows the context
        np.divide(sums, totals, out=gammas, where=totals > 0)
        probs = (counts - discounts) / totals[level.contexts]
        probs += gammas[level.contexts] * lower[level.suffixes]
        log_probs.append(np.log10(probs))
        # the weights belong to the contexts, which are n-grams of the order below
        backoffs.append(np.log10(gammas))
        lower = probs
    # <s> has count 0, but interpolation with the uniform distribution has given it a probability
    log_probs[0][words.index(START)] = _LOG_ZERO
    backoffs = [*backoffs[1:], np.zeros(len(levels[-1].keys))]
    keys = [level.keys for level in levels]
    return NgramModel(words, [NgramTable(*arrays) for arrays in zip(keys, log_probs, backoffs)])


def _number_words(lines: Iterable[Sequence[str]]) -> tuple[list[str], np.ndarray]:
    """Return the distinct words, and the text as word indices ``[T]``, each line between ``<s>``
    and ``</s>``; ``lines`` has the words of each line."""
    indices: defaultdict[str, int] = defaultdict()
    indices.default_factory = indices.__len__
    _, start, end = (indices[word] for word in (UNKNOWN, START, END))

    def numbers() -> Iterator[int]:
        for line in lines:
            yield start
            yield from map(indices.__getitem__, line)
            yield end

    # straight into an array: a list of as many Python numbers takes several times the memory
    text = np.fromiter(numbers(), dtype=np.int64)
    return list(indices), text


def _count(text: np.ndarray, words: Sequence[str], order: int) -> list[_Ngrams]:
    """Count the n-grams of a text; return one :class:`_Ngrams` for each order from 1 to ``order``.

    ``text`` ``[T]`` has the index in ``words`` of each word of the text.
    """
    V, start = len(words), words.index(START)
    is_start = text == start  # [T]
    counts = np.bincount(text, minlength=V)
    counts[start] = 0  # <s> is never predicted
    nothing = np.zeros(V, dtype=np.int64)
    levels = [_Ngrams(np.arange(V), nothing, nothing, counts, np.arange(V) == start)]
    ngrams = text  # [T] index of the n-gram that ends at each position; -1 for none
    for _ in range(1, order):
        contexts = np.roll(ngrams, 1)  # [T]
        # no n-gram crosses the beginning of a line; np.roll also moves the last word to the front
        contexts[is_start] = -1
        positions = np.flatnonzero(contexts >= 0)
        keys, first, places, counts = np.unique(
            contexts[positions] * V + text[positions],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        suffixes = ngrams[positions[first]]
        is_initial = levels[-1].is_initial[keys // V]
        levels.append(_Ngrams(keys, keys // V, suffixes, counts, is_initial))
        ngrams = np.full(len(text), -1)
        ngrams[positions] = places
    return levels
