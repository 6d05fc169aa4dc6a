"""ROUGE-L of one item, as coco-caption's: longest common subsequence, F-measure with beta 1.2.

Lin 2004, section 3; coco-caption takes the best precision and the best recall over the references,
each for itself, before it joins them.
"""

from collections.abc import Sequence

BETA = 1.2


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, with the rows of the table as bits of integers.

    Hyyrö 2004 (bit-parallel LCS): a zero bit marks a position of ``first`` where the length grows.
    """
    positions: dict[str, int] = {}
    for i, token in enumerate(first):
        positions[token] = positions.get(token, 0) | 1 << i
    all_ones = (1 << len(first)) - 1
    row = all_ones
    for token in second:
        matched = row & positions.get(token, 0)
        row = ((row + matched) | (row - matched)) & all_ones
    return len(first) - bin(row).count("1")


def rouge_l(hypothesis: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """ROUGE-L between 0 and 1; the corpus figure is the mean. An empty hypothesis scores 0.

    Raises:
        ValueError: if there is no reference.
    """
    if not references:
        raise ValueError("`references` must have one reference or more, but is empty.")
    if not hypothesis:
        return 0.0
    precision = recall = 0.0
    for reference in references:
        if not reference:
            continue
        common = longest_common_subsequence(hypothesis, reference)
        precision = max(precision, common / len(hypothesis))
        recall = max(recall, common / len(reference))
    if precision == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)
