"""Measures the diversity of generated texts: distinct-n, novelty, novel n-grams, repetition.

Models that follow their images poorly generate the same sentence again and again ("we had a great
time ."), which metrics against references reward. Within a story, the n-grams of each sentence are
compared with the n-grams of all earlier sentences of the story:

    repetition = mean over stories of the mean over sentences 2, 3, ... of
                 |n-grams of the sentence that occur in an earlier sentence| / |its n-grams|

An n-gram that occurs twice in the sentence counts twice. Yao et al. 2019 (Plan-and-Write,
"intra-story repetition") compare with each earlier sentence separately and take the mean, which
falls with the number of sentences. Repetition between stories is computed as
``1 - distinct n-grams / n-grams`` over the sentences of all stories; with n = 3 it is the aggregate
"inter-story repetition" of Yao et al. N-grams never cross the end of a sentence.
"""

from collections.abc import Iterable, Sequence
from typing import Optional

Tokens = Sequence[str]


def ngrams(tokens: Tokens, n: int) -> list[tuple[str, ...]]:
    """Return all n-grams of a text in order; an empty list if the text has fewer than n tokens."""
    return list(zip(*(tokens[i:] for i in range(n))))


def distinct_n(texts: Iterable[Tokens], n: int) -> float:
    """Compute distinct-n: the number of distinct n-grams of all texts over the number of n-grams.

    Defined in section 5.2 of Li et al. 2016 (A Diversity-Promoting Objective Function). The result
    is 0 if no text has an n-gram. It falls with the amount of text: compare equal numbers of texts.
    """
    different: set[tuple[str, ...]] = set()
    total = 0
    for tokens in texts:
        grams = ngrams(tokens, n)
        different.update(grams)
        total += len(grams)
    return len(different) / total if total else 0.0


def first_words_of(texts: Iterable[Tokens], length: int) -> list[list[str]]:
    """Cut every text off after its first ``length`` words; leave out shorter texts.

    distinct-n falls with the length of texts. Equal lengths make it comparable between systems
    that write texts of different lengths.
    """
    return [list(tokens[:length]) for tokens in texts if len(tokens) >= length]


def repeated_ngrams(tokens: Tokens, n: int) -> Optional[float]:
    """Compute seq-rep-n, ``1 - distinct n-grams / n-grams`` of a text (Welleck et al. 2020, section
    3); None if the text has fewer than n words."""
    return 1 - distinct_n([tokens], n) if len(tokens) >= n else None


def novelty(texts: Sequence[Tokens], training_texts: Iterable[Tokens]) -> float:
    """Compute the share of texts that equal no training text; 0 without texts.

    Texts and training texts must be tokenized in the same way.
    """
    if not texts:
        return 0.0
    # only training texts that equal a generated text are kept: a set of all would be large
    wanted = {tuple(tokens) for tokens in texts}
    known = {key for key in (tuple(tokens) for tokens in training_texts) if key in wanted}
    return sum(tuple(tokens) not in known for tokens in texts) / len(texts)


def novel_ngram_counts(
    summary: Tokens, source: Tokens, max_order: int = 4
) -> list[tuple[int, int]]:
    """Count the novel n-grams of a summary, which its source lacks, and all of its n-grams.

    Returns the pair (novel n-grams, all n-grams) for each order from 1 to ``max_order``. The score
    of a corpus is the sum of novel n-grams over the sum of all n-grams (See et al. 2017, section
    6.2). An n-gram counts as often as it occurs. Both texts must be tokenized in the same way.
    """
    counts = []
    for n in range(1, max_order + 1):
        known, grams = set(ngrams(source, n)), ngrams(summary, n)
        counts.append((sum([ngram not in known for ngram in grams]), len(grams)))
    return counts


def repeated_share(sentences: Sequence[Tokens], n: int) -> Optional[float]:
    """Compute the share of a sentence's n-grams that occur in earlier sentences of the story: the
    mean over the second and later sentences with n tokens or more; None if there are none."""
    seen: set[tuple[str, ...]] = set()
    shares = []
    for number, sentence in enumerate(sentences):
        grams = ngrams(sentence, n)
        # a sentence of fewer than n words says nothing about repetition
        if number and grams:
            shares.append(sum(ngram in seen for ngram in grams) / len(grams))
        seen.update(grams)
    return sum(shares) / len(shares) if shares else None


def repeated_sentences(sentences: Sequence[Tokens]) -> Optional[float]:
    """Compute the share of the second and later sentences that equal an earlier sentence.

    Empty sentences are ignored. The result is None if there are fewer than two sentences.
    """
    texts = [tuple(sentence) for sentence in sentences if sentence]
    # the first sentence has nothing that it could repeat
    repeats = [sentence in texts[:number] for number, sentence in enumerate(texts)][1:]
    return sum(repeats) / len(repeats) if repeats else None


def shared_between_stories(stories: Iterable[Sequence[Tokens]], n: int) -> float:
    """Compute ``1 - distinct n-grams / n-grams`` over the sentences of all stories. It grows with
    the amount of text: compare equal numbers of stories."""
    sentences = [sentence for story in stories for sentence in story]
    return 1 - distinct_n(sentences, n) if any(len(s) >= n for s in sentences) else 0.0
