"""Computes the expected utility of each of several texts, for minimum Bayes risk decoding.

Eikema, Aziz. Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine
Translation. EMNLP 2022. https://arxiv.org/abs/2108.04718

The samples h_1 to h_N of a model serve both as candidates and as references. The expected utility
of h_i is the mean over j other than i of u(h_i, h_j), the similarity of h_i and h_j. The paper's
mean includes j = i, which has the same, highest utility for every candidate; it is left out here.
"""

from collections.abc import Sequence
from typing import Callable

import numpy as np

from fairseq_mm.metrics.bleu import smoothed_bleu
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.meteor import meteor
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.metrics.rouge import rouge_l

Tokens = list[str]


def expected_utilities(texts: Sequence[str], utility: str) -> list[float]:
    """Compute the expected utility of each of N texts, with the other texts as references.

    The texts are tokenized as coco-caption does, in lower case and without punctuation.

    Args:
        texts: Samples of one input, two or more.
        utility: ``bleu`` for BLEU-4 of a single text, see :func:`.smoothed_bleu`; ``rouge_l``;
            ``meteor``; or ``cider`` for CIDEr-D, whose document frequencies are counted in the N
            texts.
    """
    tokens = [ptb_tokenize(text) for text in texts]
    # a text that was sampled several times has the same utility each time
    distinct = {tuple(words): i for i, words in reversed(list(enumerate(tokens)))}
    pairs = [(i, j) for i in distinct.values() for j in range(len(tokens)) if j != i]
    scores = _SCORERS[utility](tokens, pairs)
    totals = np.zeros(len(tokens))
    for (i, _), score in zip(pairs, scores):
        totals[i] += score
    return [totals[distinct[tuple(words)]] / (len(tokens) - 1) for words in tokens]


def _bleu(tokens: Sequence[Tokens], pairs: Sequence[tuple[int, int]]) -> list[float]:
    return [smoothed_bleu(tokens[i], [tokens[j]]) for i, j in pairs]


def _rouge_l(tokens: Sequence[Tokens], pairs: Sequence[tuple[int, int]]) -> list[float]:
    return [rouge_l(tokens[i], [tokens[j]]) for i, j in pairs]


def _cider(tokens: Sequence[Tokens], pairs: Sequence[tuple[int, int]]) -> list[float]:
    # each sample is a document, so that words which all samples have count less
    scorer = CiderD([[words] for words in tokens])
    return [scorer.score_item(tokens[i], j) for i, j in pairs]


def _meteor(tokens: Sequence[Tokens], pairs: Sequence[tuple[int, int]]) -> list[float]:
    lines = [" ".join(words) for words in tokens]
    return meteor([lines[i] for i, _ in pairs], [[lines[j]] for _, j in pairs])[1]


_SCORERS: dict[str, Callable[[Sequence[Tokens], Sequence[tuple[int, int]]], list[float]]] = {
    "bleu": _bleu,
    "rouge_l": _rouge_l,
    "meteor": _meteor,
    "cider": _cider,
}
