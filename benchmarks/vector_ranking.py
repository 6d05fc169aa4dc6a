"""Ranking by vectors against the time of the score product alone, and against a loop over images.

    python benchmarks/vector_ranking.py [--dim 300 1024] [--runs 5] [--noise 1.7]

Image and sentence vectors are of unit length and alike within an image. With the default noise,
every true candidate has rank 1; with more noise, as in an embedding that makes errors, more scores
are near the score of a true candidate, which takes longer. Timed in turn, in one
process, with one thread:

- our ranks of both directions;
- the bare product ``images @ sentences.T``, in blocks of 1,000 images into a buffer;
- a loop with a product and a sort for each image, then one for each group of sentences, as the
  evaluation of VSE++ has it.

Ratios are medians over the runs. Ranks are compared on vectors of small whole numbers, whose scores
are exact in any order, with the places of wrong candidates before true ones of equal score.
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
    parser.add_argument("--dim", type=int, nargs="+", default=[300, 1024])
    parser.add_argument("--noise", type=float, default=1.7, help="noise of sentence vectors")
    parser.add_argument("--runs", type=int, default=5, help="runs to take the median of")
    parser.add_argument("--sizes", type=int, default=2, help="of the sizes, the first so many")
    parser.add_argument("--loop-runs", type=int, default=1, help="runs of the slow loop; 0: none")
    args = parser.parse_args()
    for images, sentences in SIZES[: args.sizes]:
        for dim in args.dim:
            first, second = make_vectors(images, sentences, dim, args.noise)
            image_of = np.arange(images).repeat(sentences // images)
            ours, bare = alternate(
                [lambda: rank_vectors(first, second, image_of), bare_product(first, second)],  # noqa: B023
                args.runs,
            )
            ratio = statistics.median(a / b for a, b in zip(ours, bare))
            line = (
                f"{images} x {sentences}, K={dim}: ranks {statistics.median(ours):.3f} s, "
                f"product {statistics.median(bare):.3f} s, ratio {ratio:.2f}"
            )
            if args.loop_runs:
                first, second = whole_numbers(first), whole_numbers(second)
                start = time.process_time()
                for _ in range(args.loop_runs):
                    expected = loop_of_sorts(first, second)
                loop = (time.process_time() - start) / args.loop_runs
                found = rank_vectors(first, second, image_of)
                is_equal = (
                    found.sentence_ranks.tolist() == expected[0]
                    and found.image_ranks.tolist() == expected[1]
                )
                line += (
                    f"; loop {loop:.2f} s, {loop / statistics.median(ours):.1f} times ours, "
                    f"ranks {'equal' if is_equal else 'DIFFER'}"
                )
            print(line, flush=True)


if __name__ == "__main__":
    main()
