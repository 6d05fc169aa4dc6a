"""Ranking by vectors beside a loop over images, which sorts the scores as VSE++'s evaluation does.

    OMP_NUM_THREADS=1 python benchmarks/vector_ranking.py [--runs 5]

Vectors of an image and of its sentences have a mean cosine of .5. Times are medians of runs in
turns, on one thread. Ranks are compared on vectors of small whole numbers, whose scores are exact
in any order. ``run.py ranking`` compares with the product of the vectors alone.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fairseq_mm.retrieval.vector_ranking import rank_vectors

SIZES = ((1000, 5000), (5000, 25000))


def make_vectors(
    images: int, sentences: int, dim: int, noise: float = 1.7
) -> tuple[np.ndarray, np.ndarray]:
    """Make vectors of images and sentences; the mean cosine is .5 within an image by default.

    ``noise`` is the standard deviation of the noise in the vector of a sentence, relative to the
    vector of its image.
    """
    generator = np.random.default_rng(1)
    first = generator.standard_normal((images, dim), dtype=np.float32)
    second = generator.standard_normal((sentences, dim), dtype=np.float32)
    second = first.repeat(sentences // images, 0) + noise * second
    return tuple(v / np.linalg.norm(v, axis=1, keepdims=True) for v in (first, second))


def whole_numbers(vectors: np.ndarray) -> np.ndarray:
    """Five steps a channel, so that scores are exact and often equal."""
    return np.rint(vectors * np.sqrt(vectors.shape[1])).clip(-2, 2)


def bare_product(first: np.ndarray, second: np.ndarray) -> Callable[[], None]:
    block = np.empty((1000, len(second)), dtype=np.float32)

    def multiply() -> None:
        for start in range(0, len(first), 1000):
            np.matmul(first[start : start + 1000], second.T, out=block)

    return multiply


def loop_of_sorts(first: np.ndarray, second: np.ndarray) -> tuple[list[int], list[int]]:
    """Ranks of sentences for images, of images for sentences; a pass of Python for each image."""
    each = len(second) // len(first)
    sentence_ranks, image_ranks = [], []
    for i in range(len(first)):
        own = slice(each * i, each * i + each)
        scores = first[i] @ second.T
        order = np.sort(scores)
        best = scores[own].max()
        reaching = len(order) - np.searchsorted(order, best)
        sentence_ranks.append(int(reaching - (scores[own] >= best).sum() + 1))
        scores = second[own] @ first.T  # [each, I]
        for row in scores:
            image_ranks.append(int(len(row) - np.searchsorted(np.sort(row), row[i])))
    return sentence_ranks, image_ranks


def alternate(works: Sequence[Callable[[], object]], runs: int) -> list[list[float]]:
    """CPU seconds of each work in each run, in turns, after one turn that does not count."""
    times: list[list[float]] = [[] for _ in works]
    for run in range(runs + 1):
        for work, column in zip(works, times):
            start = time.process_time()
            work()
            if run:
                column.append(time.process_time() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="runs to take the median of")
    args = parser.parse_args()
    for images, sentences in SIZES:
        for dim in (300, 1024):
            first, second = make_vectors(images, sentences, dim)
            image_of = np.arange(images).repeat(sentences // images)
            works = [
                lambda: rank_vectors(first, second, image_of),  # noqa: B023
                lambda: loop_of_sorts(first, second),  # noqa: B023
            ]
            ours, loop = (statistics.median(x) for x in alternate(works, args.runs))
            first, second = whole_numbers(first), whole_numbers(second)
            ranks = rank_vectors(first, second, image_of)
            is_equal = (
                ranks.sentence_ranks.tolist(),
                ranks.image_ranks.tolist(),
            ) == loop_of_sorts(first, second)
            line = (
                f"{images} x {sentences}, K={dim}: ranks {ours:.3f} s, loop {loop:.2f} s, "
                f"{loop / ours:.1f} times as long, ranks {'equal' if is_equal else 'DIFFER'}"
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
