"""Computes BERTScore from the vectors of tokens.

Zhang, Kishore, Wu, Weinberger, Artzi. BERTScore: Evaluating Text Generation with BERT. ICLR 2020.
https://arxiv.org/abs/1904.09675, section 3. With unit vectors x of the reference's tokens and y of
the hypothesis's tokens:

    recall = mean over x of the largest x . y,    precision = mean over y of the largest x . y

As in the authors' package bert-score 0.3.13, the means leave out the start and end symbols of a
text, but tokens of the other text may match them. With several references, the largest precision,
the largest recall and the largest F1 count, even if they belong to different references.
"""

from collections.abc import Iterator, Sequence
from typing import Callable, NamedTuple

import numpy as np

# the vectors of a part's texts are in memory together: 256 captions of 15 tokens of 1,024 numbers
# with five references take 100 MB
_ITEMS_PER_PART = 256


class TokenVectors(NamedTuple):
    """Tokens of a text, start and end symbols included.

    Attributes:
        vectors: ``[t, D]`` vectors of unit length.
        is_word: ``[t]`` bool, False for start and end symbols.
    """

    vectors: np.ndarray
    is_word: np.ndarray


# function from texts to their tokens
Encode = Callable[[Sequence[str]], Sequence[TokenVectors]]


def bert_score(hypothesis: TokenVectors, reference: TokenVectors) -> tuple[float, float, float]:
    """Compute precision, recall and F1; all are 0 if a text has no words."""
    if not hypothesis.is_word.any() or not reference.is_word.any():
        return 0.0, 0.0, 0.0
    similarities = hypothesis.vectors @ reference.vectors.T  # [t, r]
    precision = float(similarities.max(1)[hypothesis.is_word].mean())
    recall = float(similarities.max(0)[reference.is_word].mean())
    total = precision + recall
    return precision, recall, 2 * precision * recall / total if total else 0.0


def bert_scores(
    encode: Encode, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> np.ndarray:
    """Compute precision, recall and F1 of each hypothesis, ``[N, 3]``.

    Args:
        encode: Function that computes the token vectors of texts.
        hypotheses: N texts.
        references: References of each hypothesis, one or more.
    """
    parts = _score_parts(encode, hypotheses, references)
    return np.array(list(parts), dtype=float).reshape(-1, 3)


def _score_parts(
    encode: Encode, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Iterator[np.ndarray]:
    for start in range(0, len(hypotheses), _ITEMS_PER_PART):
        part = slice(start, start + _ITEMS_PER_PART)
        pairs = list(zip(hypotheses[part], references[part]))
        texts = list(dict.fromkeys(text for hypothesis, r in pairs for text in (hypothesis, *r)))
        tokens = dict(zip(texts, encode(texts)))
        for hypothesis, item_references in pairs:
            scores = [bert_score(tokens[hypothesis], tokens[r]) for r in item_references]
            yield np.max(scores, axis=0)
