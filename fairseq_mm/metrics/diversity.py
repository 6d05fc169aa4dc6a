"""Diversity of generated texts: distinct-n, novelty, novel n-grams, repetition of sentences.

Models that follow their images poorly generate the same sentence again and again ("we had a great
time ."), which metrics against references reward. Within a story, the n-grams of each sentence are
compared with the n-grams of all earlier sentences of the story:

    repetition = mean over stories of the mean over sentences 2, 3, ... of
                 |n-grams of the sentence that stand in an earlier sentence| / |its n-grams|

An n-gram that occurs twice in the sentence counts twice. Yao et al. 2019 (Plan-and-Write,
"intra-story repetition") compare with each earlier sentence separately and take the mean, which
falls with the number of sentences. Between stories, ``1 - distinct n-grams / n-grams`` of all
sentences is their aggregate "inter-story repetition" with n = 3. N-grams never cross the end of a
sentence.
"""

from collections.abc import Iterable, Sequence
from typing import Optional

Tokens = Sequence[str]


def ngrams(tokens: Tokens, n: int) -> list[tuple[str, ...]]:
    """Return all n-grams in order; none if there are fewer than n tokens."""
    return list(zip(*(tokens[i:] for i in range(n))))


def distinct_n(texts: Iterable[Tokens], n: int) -> float:
    """Compute the number of distinct n-grams of all texts over the number of all n-grams.

    Li et al. 2016, section 5.2. It is 0 without n-grams, and falls with the amount of text: compare
    equal numbers of texts.
    """
    different: set[tuple[str, ...]] = set()
    total = 0
    for tokens in texts:
        grams = ngrams(tokens, n)
        different.update(grams)
        total += len(grams)
    return len(different) / total if total else 0.0


def novelty(texts: Sequence[Tokens], training_texts: Iterable[Tokens]) -> float:
    """Compute the share of texts that equal no training text, both tokenized in the same way."""
    if not texts:
        return 0.0
    # only training texts that equal a generated text are kept: a set of all would be large
    wanted = {tuple(tokens) for tokens in texts}
    known = {key for key in (tuple(tokens) for tokens in training_texts) if key in wanted}
    return sum(tuple(tokens) not in known for tokens in texts) / len(texts)


def vocabulary_size(texts: Iterable[Tokens]) -> int:
    return len({token for tokens in texts for token in tokens})


def mean_length(texts: Sequence[Tokens]) -> float:
    """Compute the mean number of tokens per text; 0 without texts."""
    return sum(len(tokens) for tokens in texts) / len(texts) if texts else 0.0


def novel_ngram_counts(
    summary: Tokens, source: Tokens, max_order: int = 4
) -> list[tuple[int, int]]:
    """Count the n-grams of a summary that its source lacks, and all of its n-grams, for each order.

    The share of a corpus is the sum of the former over the sum of the latter (See et al. 2017,
    section 6.2). Repeated n-grams count each time. Both texts must be tokenized in the same way.
    """
    counts = []
    for n in range(1, max_order + 1):
        known, grams = set(ngrams(source, n)), ngrams(summary, n)
        counts.append((sum([ngram not in known for ngram in grams]), len(grams)))
    return counts


def repeated_share(sentences: Sequence[Tokens], n: int) -> Optional[float]:
    """Compute the repetition of one story by the formula at the top of this file.

    It is 0 to 1; None if no sentence after the first has an n-gram.
    """
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

    Empty sentences are ignored. Fewer than two sentences give None.
    """
    texts = [tuple(sentence) for sentence in sentences if sentence]
    # the first sentence has nothing that it could repeat
    repeats = [sentence in texts[:number] for number, sentence in enumerate(texts)][1:]
    return sum(repeats) / len(repeats) if repeats else None


def shared_between_stories(stories: Iterable[Sequence[Tokens]], n: int) -> float:
    """Compute ``1 - distinct n-grams / n-grams`` over the sentences of all stories.

    It is 0 without n-grams, and grows with the amount of text: compare equal numbers of stories.
    """
    sentences = [sentence for story in stories for sentence in story]
    return 1 - distinct_n(sentences, n) if any(len(s) >= n for s in sentences) else 0.0
