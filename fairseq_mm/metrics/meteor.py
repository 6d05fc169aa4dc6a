"""METEOR 1.5 for English (Denkowski and Lavie 2014), with the results of the official jar.

Hypothesis and reference are aligned word by word (:mod:`._meteor_alignment`). The score is the
weighted harmonic mean of precision and recall, reduced by a penalty for fragmented alignments. Of
several references, the one with the highest score counts. The corpus score, which coco-caption
calls METEOR, is computed from summed statistics and is not the mean of the scores of the texts.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from fairseq_mm.metrics._meteor_alignment import STAGES, Aligner, StageMatch, Text
from fairseq_mm.metrics._meteor_tables import load_tables
from fairseq_mm.metrics._meteor_words import CONTROLS
from fairseq_mm.metrics._meteor_words import normalize as normalize_text

VERSION = "1.5"


class _Parameters(NamedTuple):
    """Parameters of METEOR's score, tuned for a task."""

    alpha: float  # weight of recall in the harmonic mean; precision has the rest
    beta: float  # exponent of the fragmentation
    gamma: float  # largest penalty
    delta: float  # weight of content words; function words have the rest
    stages: tuple[float, float, float, float]  # weights of the matches of each stage


# the jar's option -t
_PARAMETERS = {
    "rank": _Parameters(0.85, 0.2, 0.6, 0.75, (1.0, 0.6, 0.8, 0.6)),
    "adq": _Parameters(0.75, 1.4, 0.45, 0.7, (1.0, 1.0, 0.6, 0.8)),
    "hter": _Parameters(0.4, 1.5, 0.35, 0.55, (1.0, 0.2, 0.6, 0.8)),
    "li": _Parameters(0.75, 1.4, 0.7, 0.5, (1.0, 0.5, 0.5, 0.5)),
    "tune": _Parameters(0.5, 1.0, 0.5, 0.5, (1.0, 0.5, 0.5, 0.5)),
}
TASKS = tuple(_PARAMETERS)

# Texts are prepared together up to this number of characters, which bounds the memory.
_CHARACTERS_AT_ONCE = 2_000_000


# Integers whose sums over pairs of texts are those of a corpus. Each of the first four lines is for
# hypothesis and reference: words, function words, and the aligned content words and aligned
# function words of each stage; then the number of chunks.
_Counts = list[int]
_NUM_COUNTS = 2 + 2 + 2 * len(STAGES) + 2 * len(STAGES) + 1


def _count(
    hypothesis: Text, reference: Text, alignment: Iterable[tuple[int, StageMatch]]
) -> _Counts:
    """Count the words and the aligned words of a pair of texts."""
    is_function, is_reference_function = hypothesis.is_function, reference.is_function
    content, reference_content, function, reference_function = ([0] * len(STAGES) for _ in range(4))
    # end of the last match in both texts; a chunk goes on if the next match begins there
    end = reference_end = -1
    chunks = 0
    for reference_start, (start, length, reference_length, stage) in alignment:
        if start != end or reference_start != reference_end:
            chunks += 1
        end, reference_end = start + length, reference_start + reference_length
        for is_function_word in is_function[start:end]:
            (function if is_function_word else content)[stage] += 1
        for is_function_word in is_reference_function[reference_start:reference_end]:
            (reference_function if is_function_word else reference_content)[stage] += 1
    words = [len(hypothesis.words), len(reference.words)]
    aligned = [sum(content) + sum(function), sum(reference_content) + sum(reference_function)]
    if chunks == 1 and aligned == words:
        chunks = 0  # one chunk with all words of both texts has no penalty
    num_function_words = [hypothesis.num_function_words, reference.num_function_words]
    by_stage = [*content, *reference_content, *function, *reference_function]
    return [*words, *num_function_words, *by_stage, chunks]


def _score(counts: _Counts, parameters: _Parameters) -> float:
    """Compute METEOR from the counts of a pair of texts, or from the summed counts of a corpus."""
    alpha, beta, gamma, delta, stages = parameters
    by_stage = [counts[i : i + len(STAGES)] for i in range(4, len(counts) - 1, len(STAGES))]
    shares = []
    for side in (0, 1):
        content, function = by_stage[side], by_stage[2 + side]
        if not any(content) and not any(function):
            return 0.0
        num_function = counts[2 + side]
        total = delta * (counts[side] - num_function) + (1 - delta) * num_function
        # in the jar's order, so that equal scores stay equal
        aligned = 0.0
        for count, weight in zip(content, stages):
            aligned += count * weight * delta
        for count, weight in zip(function, stages):
            aligned += count * weight * (1 - delta)
        shares.append(aligned / total)
    precision, recall = shares
    mean = 1 / ((1 - alpha) / precision + alpha / recall)
    fragmentation = counts[-1] / (sum(map(sum, by_stage)) / 2)
    return max(0.0, mean * (1 - gamma * math.pow(fragmentation, beta)))


def _tokenize(text: str, normalize: bool) -> list[str]:
    """Split a text into METEOR's tokens."""
    # as the jar reads a line: ||| separates texts, and control characters at the ends are removed
    text = " ".join(text.replace("|||", " ").split()).strip(CONTROLS)
    if normalize:
        return normalize_text(text, load_tables().abbreviations)
    return text.split(" ") if text else []


def _batches(sizes: Sequence[int]) -> Iterator[range]:
    """Yield ranges of texts with at most ``_CHARACTERS_AT_ONCE`` in sum, or one longer text."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > _CHARACTERS_AT_ONCE:
            yield range(start, index)
            start, total = index, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


def _best_counts(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    tasks: Sequence[str],
    normalize: bool,
) -> Iterator[list[tuple[float, _Counts]]]:
    """Yield, for each hypothesis, one pair (score, counts) per task.

    The pair belongs to the best-scoring reference. All tasks share the alignments.
    """
    aligner = Aligner(load_tables())
    sizes = [sum(map(len, (text, *texts))) for text, texts in zip(hypotheses, references)]
    for batch in _batches(sizes):
        # texts occur more than once, such as references of several systems or of an album
        distinct = dict.fromkeys(
            text for item in batch for text in (hypotheses[item], *references[item])
        )
        texts = dict(
            zip(distinct, aligner.prepare(_tokenize(text, normalize) for text in distinct))
        )
        for item in batch:
            hypothesis = texts[hypotheses[item]]
            candidates = [
                _count(hypothesis, reference, aligner.align(hypothesis, reference))
                for reference in map(texts.__getitem__, references[item])
            ]
            # max returns the first of several references with the highest score
            yield [
                max(((_score(c, _PARAMETERS[task]), c) for c in candidates), key=itemgetter(0))
                for task in tasks
            ]


def meteor(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    task: str = "rank",
    normalize: bool = True,
) -> tuple[float, list[float]]:
    """Score tokenized texts (tokens joined by spaces), each against its references.

    Returns the score of the corpus and the score of each hypothesis, between 0 and 1.

    Args:
        hypotheses: Generated texts.
        references: References of each hypothesis.
        task: Task for which the parameters were tuned; coco-caption uses ``rank``.
        normalize: True for METEOR's own tokenization with lower-casing, the jar's ``-norm``.
    """
    if not hypotheses:
        return 0.0, []
    return meteor_of_tasks(hypotheses, references, (task,), normalize=normalize)[task]


def meteor_sums(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    task: str = "rank",
    normalize: bool = True,
) -> tuple[list[float], np.ndarray]:
    """Return the score of each of N hypotheses, and integer counts ``[N, 21]`` whose sums determine
    the score of a corpus, see :func:`score_sums`."""
    best = [item for (item,) in _best_counts(hypotheses, references, (task,), normalize)]
    counts = np.array([counts for _, counts in best], dtype=np.int64).reshape(-1, _NUM_COUNTS)
    return [score for score, _ in best], counts


def score_sums(task: str, sums: np.ndarray) -> float:
    """Compute METEOR of a corpus from the sums ``[21]`` of the counts of :func:`meteor_sums`.

    ``task`` selects the parameters, by the name of a task of the METEOR jar, such as ``hter``.
    """
    return _score(sums.tolist(), _PARAMETERS[task])


def meteor_of_tasks(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    tasks: Sequence[str],
    *,
    normalize: bool = True,
) -> dict[str, tuple[float, list[float]]]:
    """Return the result of :func:`meteor` for each task; the texts are aligned only once."""
    results = {}
    for task, best in zip(tasks, zip(*_best_counts(hypotheses, references, tasks, normalize))):
        corpus = [sum(column) for column in zip(*(counts for _, counts in best))]
        results[task] = _score(corpus, _PARAMETERS[task]), [score for score, _ in best]
    return results


class Match(NamedTuple):
    """Aligned words of reference and hypothesis: index of the first word, and number of words,
    which is above 1 for paraphrases."""

    reference_start: int
    reference_length: int
    hypothesis_start: int
    hypothesis_length: int


def align(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[list[Match]]:
    """Align each tokenized hypothesis with its reference by METEOR (``-l en``, without ``-norm``);
    return the matches of each pair, in the order of the reference's words."""
    aligner = Aligner(load_tables())
    result = []
    sizes = [sum(map(len, (*h, *r))) for h, r in zip(hypotheses, references)]
    for batch in _batches(sizes):
        texts = aligner.prepare(side[item] for item in batch for side in (hypotheses, references))
        for hypothesis, reference in zip(texts[::2], texts[1::2]):
            alignment = aligner.align(hypothesis, reference)
            result.append(
                [
                    Match(reference_start, reference_length, start, length)
                    for reference_start, (start, length, reference_length, _) in alignment
                ]
            )
    return result
