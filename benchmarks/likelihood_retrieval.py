"""Retrieval by likelihood against the time of its output products alone.

    python benchmarks/likelihood_retrieval.py [--data DIR] [--runs 7]

log P(sentence | image) of 5,000 sentences and 1,000 images needs a product with the 512 x V output
matrix for each word and image: 156 TFLOP on Flickr8k's dev part. The benchmark takes a random
sample of sentences that stand side by side in alphabetical order, as they are computed, and
times in turn, in one process,

- our scores: tree, recurrent part, multimodal layer, output products, log-sum-exp, own words;
- the bare ``torch.mm`` of the very same blocks into a buffer, nothing else;
- a sentence at a time through the decoder and a log-softmax (:class:`DecoderLikelihood`).

Ratios are medians over the runs. "Sharing counted" compares with the products that are left when
sentences share their beginnings, "not counted" with those of every word of every sentence.
Without ``--data`` the sentences are random words, of which hardly any two begin alike. Times
are CPU times with one thread, else wall clock.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from fairseq.data import Dictionary, data_utils

from fairseq_mm.models.m_rnn import MRnnConfig, MRnnDecoder, MRnnEncoder, MRnnModel
from fairseq_mm.retrieval.likelihood import (
    PRECISIONS,
    DecoderLikelihood,
    FactoredLikelihood,
    PrefixTree,
    build_likelihood,
)
from fairseq_mm.retrieval.ranking import sentence_blocks

FEATURE_DIM = 1280


def read_sentences(folder: str, split: str) -> tuple[list[tuple[int, ...]], Dictionary]:
    dictionary = Dictionary.load(str(Path(folder, "dict.txt")))
    lines = data_utils.load_indexed_dataset(str(Path(folder, split)), dictionary)
    return [tuple(lines[i].tolist()) for i in range(len(lines))], dictionary


def make_sentences(count: int, words: int) -> tuple[list[tuple[int, ...]], Dictionary]:
    dictionary = Dictionary()
    for i in range(words):
        dictionary.add_symbol(f"word{i}")
    generator = np.random.default_rng(1)
    lengths = generator.poisson(10, count) + 1
    sentences = [
        (*generator.integers(4, len(dictionary), n).tolist(), dictionary.eos()) for n in lengths
    ]
    return sentences, dictionary


def alternate(
    works: Sequence[Callable[[], object]], runs: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Seconds of each work in each run, in turns, after one turn that does not count."""
    times: list[list[float]] = [[] for _ in works]
    for run in range(runs + 1):
        for work, column in zip(works, times):
            start = clock()
            work()
            if run:
                column.append(clock() - start)
    return times


def bare_products(likelihood: FactoredLikelihood, rows: int) -> Callable[[], None]:
    """The output products of so many rows, in the blocks that ``likelihood`` has."""
    M = likelihood.product_weight.size(0)
    inputs = torch.randn(len(likelihood.logits), M).to(likelihood.logits.dtype)

    def multiply() -> None:
        for first in range(0, rows, len(inputs)):
            n = min(len(inputs), rows - first)
            torch.mm(inputs[:n], likelihood.product_weight, out=likelihood.logits[:n])

    return multiply


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="data folder, for real sentences")
    parser.add_argument("--split", default="valid")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--block-rows", type=int, default=1024)
    parser.add_argument("--sample", type=int, default=4, help="sentences that are timed")
    parser.add_argument("--runs", type=int, default=7, help="runs to take the median of")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter

    if args.data:
        sentences, dictionary = read_sentences(args.data, args.split)
    else:
        sentences, dictionary = make_sentences(5000, 2536)
    torch.manual_seed(1)
    decoder = MRnnDecoder(dictionary, FEATURE_DIM, MRnnConfig())
    model = MRnnModel(MRnnEncoder(0.0, "scale"), decoder).eval()
    V, M = model.decoder.output_proj.weight.shape
    features = torch.randn(args.images, 1, FEATURE_DIM)
    padding_mask = torch.zeros(args.images, 1, dtype=torch.bool)

    words = sum(len(sentence) for sentence in sentences)
    blocks = sentence_blocks(sentences, args.images)
    products = sum(len(PrefixTree([sentences[i] for i in block]).inner) for block in blocks)
    flop = 2 * M * V
    print(
        f"{len(sentences)} sentences of {words} words (end signs counted), {args.images} images, "
        f"V={V} M={M}: {words * args.images * flop / 1e12:.0f} TFLOP of output products, "
        f"{products * args.images * flop / 1e12:.0f} with shared beginnings in {len(blocks)} blocks"
    )

    order = [i for block in blocks for i in block]
    start = int(np.random.default_rng(2).integers(len(order) - args.sample))
    sample = [sentences[i] for i in order[start : start + args.sample]]
    rows = len(PrefixTree(sample).inner) * args.images

    def read_images(first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        return features[first:end], padding_mask[first:end]

    for precision in PRECISIONS:
        options = {"start": dictionary.eos(), "precision": precision}
        factored = build_likelihood(
            model, read_images, args.images, block_rows=args.block_rows, **options
        )
        plain = DecoderLikelihood(model, read_images, args.images, **options)
        works = [
            functools.partial(factored, sample),
            bare_products(factored, rows),
            functools.partial(plain, sample[:1]),
        ]
        times = alternate(works, args.runs, clock)
        ours, bare, slow = (statistics.median(column) for column in times)
        ratio = statistics.median(a / b for a, b in zip(times[0], times[1]))
        slow_ratio = slow / (len(sample[0]) * args.images) * words / (ours / rows * products)
        print(
            f"{precision}, {args.threads} thread(s): {rows} rows, {ours / rows * 1e6:.2f} us each; "
            f"bare products {bare / rows * 1e6:.2f} us ({rows * flop / bare / 1e9:.0f} GFLOP/s); "
            f"ratio {ratio:.2f} with sharing counted, {ratio * products / words:.2f} not counted; "
            f"{slow_ratio:.1f} times as fast as a sentence at a time; "
            f"all: {ours / rows * products * args.images / 60:.0f} minutes"
        )


if __name__ == "__main__":
    main()
