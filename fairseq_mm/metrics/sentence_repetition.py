"""How much the sentences of a story repeat each other, and stories each other.

Storytellers that follow their images poorly tell the same sentence again and again ("we had a
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
    different: set[tuple[str, ...]] = set()
    total = 0
    for sentences in stories:
        for sentence in sentences:
            found = ngrams(sentence, n)
            different.update(found)
            total += len(found)
    return 1 - len(different) / total if total else 0.0
