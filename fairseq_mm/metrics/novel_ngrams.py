"""Novel n-grams: those of a summary that its source lacks (See et al. 2017, section 6.2)."""

from collections.abc import Sequence

MAX_ORDER = 4


def novel_ngram_counts(summary: Sequence[str], source: Sequence[str]) -> list[tuple[int, int]]:
    """Novel n-grams of a summary, and all of them, each as often as it occurs.

    The share of a corpus is the sum of the former over the sum of the latter.

    Args:
        summary: tokens.
        source: tokens of the text that was summarised, split alike.

    Returns:
        A pair for each order, 1 to 4.
    """
    counts = []
    for n in range(1, MAX_ORDER + 1):
        known = set(zip(*(source[i:] for i in range(n))))
        ngrams = list(zip(*(summary[i:] for i in range(n))))
        counts.append((sum([ngram not in known for ngram in ngrams]), len(ngrams)))
    return counts
