"""How varied generated texts are: distinct-n, novelty, novel n-grams, repetition of sentences.

Models that follow their images poorly generate the same sentence again and again ("we had a
great time ."), which metrics against references reward. Within a story, a sentence's n-grams are
held against those of all earlier sentences of the same story:

    repetition = mean over stories of the mean over sentences 2, 3, ... of
                 |n-grams of the sentence that stand in an earlier sentence| / |its n-grams|

where an n-gram that the sentence has twice counts twice. Yao et al. 2019 (Plan-and-Write, "intra-
story repetition") compare with each earlier sentence on its own and take the mean, which falls
with the number of sentences. Between stories, ``1 - different n-grams / n-grams`` of all sentences
is their aggregate "inter-story repetition" with n = 3. N-grams never cross the end of a sentence.
"""

from collections.abc import Iterable, Sequence
from typing import Optional

Tokens = Sequence[str]


def ngrams(tokens: Tokens, n: int) -> list[tuple[str, ...]]:
    """All n-grams, in order; empty where there are fewer tokens."""
    return list(zip(*(tokens[i:] for i in range(n))))


def distinct_n(texts: Iterable[Tokens], n: int) -> float:
    """Number of different n-grams of all texts over their number (Li et al. 2016, section 5.2).

    Returns 0 where no text has n tokens. It falls with the amount of text: compare equal numbers.
    """
    different: set[tuple[str, ...]] = set()
    total = 0
    for tokens in texts:
        found = ngrams(tokens, n)
        different.update(found)
        total += len(found)
    return len(different) / total if total else 0.0


def novelty(texts: Sequence[Tokens], training_texts: Iterable[Tokens]) -> float:
    """Share of texts that are no training text, word for word; both tokenised alike."""
    if not texts:
        return 0.0
    wanted = {tuple(tokens) for tokens in texts}
    known = {key for key in (tuple(tokens) for tokens in training_texts) if key in wanted}
    return sum(tuple(tokens) not in known for tokens in texts) / len(texts)


def vocabulary_size(texts: Iterable[Tokens]) -> int:
    """Number of different tokens."""
    return len({token for tokens in texts for token in tokens})


def mean_length(texts: Sequence[Tokens]) -> float:
    """Tokens a text; 0 without texts."""
    return sum(len(tokens) for tokens in texts) / len(texts) if texts else 0.0


def novel_ngram_counts(
    summary: Tokens, source: Tokens, max_order: int = 4
) -> list[tuple[int, int]]:
    """Novel n-grams of a summary, and all of them, each as often as it occurs (See et al. 2017,
    section 6.2): those that its source lacks.

    The share of a corpus is the sum of the former over the sum of the latter.

    Args:
        summary: tokens.
        source: tokens of the text that was summarised, split alike.
        max_order: largest n.

    Returns:
        A pair for each order from 1.
    """
    counts = []
    for n in range(1, max_order + 1):
        known, found = set(ngrams(source, n)), ngrams(summary, n)
        counts.append((sum([ngram not in known for ngram in found]), len(found)))
    return counts


def repeated_share(sentences: Sequence[Tokens], n: int) -> Optional[float]:
    """Mean over the second and later sentences of one story, see the file's formula.

    Returns:
        0 to 1; None where no later sentence has an n-gram.
    """
    seen: set[tuple[str, ...]] = set()
    shares = []
    for number, sentence in enumerate(sentences):
        found = ngrams(sentence, n)
        if number and found:
            shares.append(sum(ngram in seen for ngram in found) / len(found))
        seen.update(found)
    return sum(shares) / len(shares) if shares else None


def repeated_sentences(sentences: Sequence[Tokens]) -> Optional[float]:
    """Share of the second and later sentences that equal an earlier one, word for word; empty
    sentences are left out. None without such sentences."""
    told = [tuple(sentence) for sentence in sentences if sentence]
    repeats = [sentence in told[:number] for number, sentence in enumerate(told)][1:]
    return sum(repeats) / len(repeats) if repeats else None


def shared_between_stories(stories: Iterable[Sequence[Tokens]], n: int) -> float:
    """``1 - different n-grams / n-grams`` of all stories' sentences; 0 where there are none.

    It grows with the amount of text: compare equal numbers of stories.
    """
    sentences = [sentence for story in stories for sentence in story]
    return 1 - distinct_n(sentences, n) if any(len(s) >= n for s in sentences) else 0.0
