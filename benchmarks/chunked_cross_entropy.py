"""Chunked cross-entropy against fairseq's ``cross_entropy``, from features to gradients.

    OMP_NUM_THREADS=1 python benchmarks/chunked_cross_entropy.py [--threads 1] [--rounds 3]

Time: forward and backward pass of the output layer and the loss, both ways in turn in one process;
and of the loss alone, as in validation. Memory: what a process of its own holds at most, beyond
what it held before the loss. In float32 and under bfloat16 autocast. The limit is the three matrix
products' time, measured on tiles that stay in the cache.

Sizes are those of the story models: 3 stories of 500 tokens, 104,960 types, features of 256.
"""

import argparse
import itertools
import json
import logging
import resource
import statistics
import subprocess
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.models import FairseqDecoder, FairseqLanguageModel
from torch import Tensor, nn

import fairseq_mm  # noqa: F401 - registers the criterion

WAYS = {"ours": "chunked_cross_entropy", "fairseq": "cross_entropy"}
MODES = ("float32", "bfloat16")
B = 3


class Features(FairseqDecoder):
    """A decoder that has nothing but its output layer."""

    def __init__(self, args: Namespace) -> None:
        super().__init__(Dictionary())
        self.features = nn.Parameter(torch.randn(B, args.tokens // B, args.dim))
        self.output_projection = nn.Linear(args.dim, args.types)

    def forward(self, prev_output_tokens: Tensor, **unused: Any) -> tuple[Tensor, None]:
        return self.output_layer(self.features), None

    def output_layer(self, features: Tensor) -> Tensor:
        return self.output_projection(features)


def losses(args: Namespace) -> dict[str, Callable[[], Tensor]]:
    """The loss, both ways, of one model and batch."""
    torch.manual_seed(1)
    model = FairseqLanguageModel(Features(args))
    target = torch.randint(4, args.types, (B, args.tokens // B))
    sample = {"net_input": {"src_tokens": target}, "target": target, "ntokens": target.numel()}
    task = Namespace(target_dictionary=Dictionary())

    def way(name: str) -> Callable[[], Tensor]:
        options = {"label_smoothing": 0.0, "chunk_megabytes": args.megabytes}
        criterion = CRITERION_REGISTRY[name](
            task, sentence_avg=False, **(options if name == WAYS["ours"] else {})
        )

        def loss() -> Tensor:
            model.zero_grad(set_to_none=True)
            return criterion(model, sample)[0]

        return loss

    return {key: way(name) for key, name in WAYS.items()}


def seconds(function: Callable[[], Tensor], mode: str, *, backward: bool) -> float:
    start = time.perf_counter()
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "bfloat16")
    with autocast, torch.set_grad_enabled(backward):
        loss = function()
    if backward:
        loss.backward()
    return time.perf_counter() - start


def product_seconds(args: Namespace, mode: str) -> float:
    """Time of the three products, by the fastest of tiles of their shapes."""
    dtype = getattr(torch, mode)
    R, C = 160, 2048
    x, w, p = (torch.randn(shape).to(dtype) for shape in ((R, args.dim), (C, args.dim), (R, C)))
    times = []
    for _ in range(20):
        start = time.perf_counter()
        torch.mm(x, w.t())
        torch.mm(p, w)
        torch.mm(p.t(), x)
        times.append(time.perf_counter() - start)
    return min(times) * (args.tokens / R) * (args.types / C)


def peak_megabytes() -> float:
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measure_memory(args: Namespace) -> None:
    """In a process of its own."""
    function = losses(args)[args.memory_of]
    before = peak_megabytes()
    seconds(function, args.mode, backward=True)
    print(peak_megabytes() - before)


def memory_in_own_process(args: Namespace, way: str, mode: str) -> float:
    command = [sys.executable, __file__, "--memory-of", way, "--mode", mode]
    for name in ("threads", "tokens", "types", "dim", "megabytes"):
        command += [f"--{name}", str(getattr(args, name))]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(result.stderr)
    return float(result.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--types", type=int, default=104960)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--megabytes", type=int, default=128, help="--chunk-megabytes")
    parser.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    if args.memory_of:
        measure_memory(args)
        return
    print(
        f"N={args.tokens} V={args.types} E={args.dim}, chunks of {args.megabytes} MiB, "
        f"{args.threads} thread(s), medians of {args.rounds} rounds"
    )
    result = {}
    # first: Linux counts what this process has held for those that it starts
    for mode in MODES:
        ours, theirs = (memory_in_own_process(args, way, mode) for way in WAYS)
        print(
            f"{mode}, peak memory of a step: ours {ours:,.0f} MiB, fairseq {theirs:,.0f} MiB, "
            f"ratio {ours / theirs:.2f}"
        )
        result[f"{mode}_memory_ratio"] = ours / theirs
    functions = losses(args)
    for mode, backward in itertools.product(MODES, (True, False)):
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for counted in range(-1, args.rounds):  # the first warms up
            for way, function in functions.items():
                took = seconds(function, mode, backward=backward)
                if counted >= 0:
                    times[way].append(took)
        ours, theirs = (statistics.median(times[way]) for way in WAYS)
        limit = product_seconds(args, mode) / (1 if backward else 3)
        passes = "forward and backward" if backward else "forward"
        print(
            f"{mode}, {passes}: ours {ours:.2f} s, fairseq {theirs:.2f} s, "
            f"{theirs / ours:.2f} times as fast, {ours / limit:.2f} of the products' time"
        )
        result[f"{mode}_{'step' if backward else 'loss'}_ratio"] = theirs / ours
    print(json.dumps({key: round(value, 3) for key, value in result.items()}))


if __name__ == "__main__":
    main()
