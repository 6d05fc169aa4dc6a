"""N-gram models with interpolated modified Kneser-Ney smoothing.

Chen, Goodman. An empirical study of smoothing techniques for language modeling. Computer Speech
and Language 13(4), 1999, https://doi.org/10.1006/csla.1999.0128, section 3; the equation's number
is that of the longer report TR-10-98, Harvard University, 1998. With a(uw) the adjusted count of
an n-gram, u' = u without its first word, and nj n-grams of an order with the adjusted count j:

    p(w | u) = (a(uw) - D(a(uw))) / sum_v a(uv) + gamma(u) p(w | u')
    gamma(u) = sum_v D(a(uv)) / sum_v a(uv)
    D(0) = 0,  D(j) = j - (j + 1) Y n(j+1) / nj for j = 1, 2, 3,  D(j) = D(3) for j > 3
    Y = n1 / (n1 + 2 n2)                                                         (equation 26)

The adjusted count of the highest order is the count; below, it is the number of different words
that stand before the n-gram.

What the paper leaves open is done as KenLM's ``lmplz`` does it (Heafield et al. Scalable Modified
Kneser-Ney Language Model Estimation. ACL 2013, https://aclanthology.org/P13-2121):

- No word stands before ``<s>``: n-grams that begin with it keep their count at every order.
- The words' own distribution is interpolated with the uniform one over the V words, which include
  ``</s>`` and ``<unk>`` but not ``<s>``, since it is never predicted. So ``<unk>`` has gamma / V.
- In small or artificial texts an nj can be 0, or a discount outside of 0 to j. Then all three of
  this order are 0.5, 1 and 1.5, as with ``--discount_fallback``.

Unlike ``lmplz`` it takes a text that has ``<unk>``, as a word like any other.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.ngram_model import END, START, UNKNOWN, NgramModel, NgramTable

_FALLBACK = (0.5, 1.0, 1.5)
_LOG_ZERO = -99.0  # what ARPA files have for log 0


class _Ngrams(NamedTuple):
    """The G different n-grams of one order.

    Attributes:
        keys: ``[G]`` as in :class:`NgramTable`.
        contexts: ``[G]`` numbers of the n-grams without their last words, in the order below.
        suffixes: ``[G]`` numbers of the n-grams without their first words, in the order below.
        counts: ``[G]`` how often they occur.
        is_initial: ``[G]`` bool, whether they begin with ``<s>``.
    """

    keys: np.ndarray
    contexts: np.ndarray
    suffixes: np.ndarray
    counts: np.ndarray
    is_initial: np.ndarray


def estimate_kneser_ney(lines: Iterable[Sequence[str]], *, order: int = 3) -> NgramModel:
    """
    Args:
        lines: words of each sentence, read once. A sentence without words counts as one.
        order: of the model, 1 or more.

    Raises:
        UserError: if there are no lines, a line has ``<s>`` or ``</s>``, or the order is below 1.
    """
    if order < 1:
        raise UserError(f"`order` must be at least 1, but is {order} instead.")
    words, text = _number_words(lines)
    levels = _count(text, words, order)
    lower = np.array([1 / (len(words) - 1)])  # order 0: the uniform distribution
    log_probs, backoffs = [], []
    for n, level in enumerate(levels):
        above = levels[n + 1] if n + 1 < order else None
        probs, gammas = _interpolate(level, _adjusted_counts(level, above), lower)
        log_probs.append(np.log10(probs))
        backoffs.append(np.log10(gammas))  # of the contexts: n-grams of the order below
        lower = probs
    log_probs[0][words.index(START)] = _LOG_ZERO
    backoffs = [*backoffs[1:], np.zeros(len(levels[-1].keys))]
    keys = [level.keys for level in levels]
    return NgramModel(words, [NgramTable(*arrays) for arrays in zip(keys, log_probs, backoffs)])


def _number_words(lines: Iterable[Sequence[str]]) -> tuple[list[str], np.ndarray]:
    """The words, and the text as their numbers ``[T]``, each line between ``<s>`` and ``</s>``."""
    number_of: defaultdict[str, int] = defaultdict()
    number_of.default_factory = number_of.__len__
    _, start, end = (number_of[word] for word in (UNKNOWN, START, END))

    def numbers() -> Iterator[int]:
        for place, line in enumerate(lines, start=1):
            if START in line or END in line:
                found = START if START in line else END
                raise UserError(f"line {place}: must be words, but has {found}.")
            yield start
            yield from map(number_of.__getitem__, line)
            yield end

    text = np.fromiter(numbers(), dtype=np.int64)
    if not len(text):
        raise UserError("`lines` must be at least one, but are none.")
    return list(number_of), text


def _count(text: np.ndarray, words: Sequence[str], order: int) -> list[_Ngrams]:
    """The n-grams of the orders 1 to ``order``."""
    V, start = len(words), words.index(START)
    is_start = text == start  # [T]
    counts = np.bincount(text, minlength=V)
    counts[start] = 0  # never predicted
    nothing = np.zeros(V, dtype=np.int64)
    levels = [_Ngrams(np.arange(V), nothing, nothing, counts, np.arange(V) == start)]
    ngrams = text  # [T] number of the n-gram that ends at each position; -1: none
    for _ in range(1, order):
        contexts = np.roll(ngrams, 1)  # [T]
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


def _adjusted_counts(level: _Ngrams, above: Optional[_Ngrams]) -> np.ndarray:
    """``[G]``, given the n-grams that are longer by a word before."""
    if above is None:
        return level.counts
    continuations = np.bincount(above.suffixes, minlength=len(level.keys))
    return np.where(level.is_initial, level.counts, continuations)


def _interpolate(
    level: _Ngrams, counts: np.ndarray, lower: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """
    Args:
        level: G n-grams, whose contexts are C n-grams.
        counts: ``[G]`` adjusted.
        lower: ``[C]`` probabilities of the order below.

    Returns:
        probs: ``[G]`` of the last words given the contexts.
        gammas: ``[C]`` weights of the order below; 1 where nothing follows.
    """
    C = len(lower)
    discounts = _discounts(counts)[np.minimum(counts, 3)]  # [G]
    totals = np.bincount(level.contexts, weights=counts, minlength=C)
    gammas = np.ones(C)
    np.divide(
        np.bincount(level.contexts, weights=discounts, minlength=C),
        totals,
        out=gammas,
        where=totals > 0,
    )
    probs = (counts - discounts) / totals[level.contexts]
    probs += gammas[level.contexts] * lower[level.suffixes]
    return probs, gammas


def _discounts(counts: np.ndarray) -> np.ndarray:
    """``[4]`` discounts of the adjusted counts 0, 1, 2, and 3 or more."""
    n = np.bincount(counts, minlength=5)
    discounts = np.array([0, *_FALLBACK])
    if n[1:4].all():
        j = np.arange(1, 4)
        found = j - (j + 1) * (n[1] / (n[1] + 2 * n[2])) * n[2:5] / n[1:4]
        if ((found > 0) & (found <= j)).all():
            discounts[1:] = found
    return discounts
