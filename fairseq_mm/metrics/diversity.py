"""How varied generated texts are: distinct-n, novelty, vocabulary, length."""

from collections.abc import Iterable, Sequence


def distinct_n(texts: Iterable[Sequence[str]], n: int) -> float:
    """Number of different n-grams of all texts over their number (Li et al. 2016, section 5.2).

    Returns 0 where no text has n tokens. It falls with the amount of text: compare equal numbers.
    """
    different: set[tuple[str, ...]] = set()
    total = 0
    for tokens in texts:
        ngrams = list(zip(*(tokens[i:] for i in range(n))))
        different.update(ngrams)
        total += len(ngrams)
    return len(different) / total if total else 0.0


def novelty(texts: Sequence[Sequence[str]], training_texts: Iterable[Sequence[str]]) -> float:
    """Share of texts that are no training text, word for word; both tokenised alike."""
    if not texts:
        return 0.0
    wanted = {tuple(tokens) for tokens in texts}
    known = {key for key in (tuple(tokens) for tokens in training_texts) if key in wanted}
    return sum(tuple(tokens) not in known for tokens in texts) / len(texts)


def vocabulary_size(texts: Iterable[Sequence[str]]) -> int:
    """Number of different tokens."""
    return len({token for tokens in texts for token in tokens})


def mean_length(texts: Sequence[Sequence[str]]) -> float:
    """Tokens a text; 0 without texts."""
    return sum(len(tokens) for tokens in texts) / len(texts) if texts else 0.0
