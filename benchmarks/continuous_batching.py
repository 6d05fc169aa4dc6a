"""Continuous batching against fixed batches, with texts of mixed lengths.

    python benchmarks/continuous_batching.py [conv_story_gated] [--inputs 96]
        [--batch-size 32] [--mean-length 80] [--min-len 1] [--rounds 3] [--threads 1]
        [--device cpu]

The models have random weights of the published sizes, and the logits of a unigram distribution are
added: word r of the vocabulary has a probability proportional to 1 / r, and the end has the
probability 1 / MEAN_LENGTH. The lengths of sampled texts are therefore nearly geometrically
distributed, up to five times the mean. They are sampled from the 100 most probable words.

Every turn has a process of its own, so that the peak of its memory is its own; the two ways take
turns. Loading is not counted. With one thread on a CPU, times are CPU seconds, otherwise seconds of
the clock. The texts of both ways are equal, unless two words have the same probability but for
roundings, which depend on the number of rows of a matrix product.
"""

import argparse
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from typing import Any

import numpy as np
import torch
from conv_story import SOURCE_TYPES, TASK, build

from fairseq_mm.inference import generator as engine
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.tasks.hierarchical_story import HierarchicalStoryConfig, HierarchicalStoryTask

TOPK = 100


def build_generator(arch: str, mean_length: int, device: str = "cpu") -> engine.Generator:
    """Return a generator with random weights whose texts have ``mean_length`` words on average."""
    place = torch.device(device)
    task = HierarchicalStoryTask(
        HierarchicalStoryConfig(seed=1), TASK.source_dictionary, TASK.target_dictionary
    )
    model = build(arch)
    set_unigrams(model.decoder.output_proj.bias, task.target_dictionary, mean_length)
    loaded = LoadedModels(task, [model.eval().to(place)], [arch], [arch], {}, 0, place)
    return engine.Generator(loaded)


def set_unigrams(bias: torch.Tensor, words: Any, mean_length: int) -> None:
    """Set a bias [V] to the logits of a unigram distribution, see the module's docstring."""
    ranks = torch.arange(1, len(words) - words.nspecial + 1).float()
    with torch.no_grad():
        bias[words.nspecial :] = -ranks.log()
        total = bias[words.nspecial : words.nspecial + TOPK].logsumexp(dim=0)
        bias[words.eos()] = total - np.log(mean_length)


def draw_prompts(count: int) -> list[str]:
    """Return prompts of 5 to 60 words."""
    draws = np.random.default_rng(1)
    return [
        " ".join(f"w{word}" for word in draws.integers(0, SOURCE_TYPES - 4, length))
        for length in draws.integers(5, 61, count)
    ]


def write_texts(
    generator: engine.Generator, inputs: list[Any], args: Namespace, *, is_continuous: bool
) -> list[Any]:
    """Return the texts of the inputs, written in one continuous batch or in fixed batches."""
    options = {"sampling": True, "sampling_topk": TOPK, "max_len_b": 5 * args.mean_length}
    can_join = engine.can_join
    if not is_continuous:
        engine.can_join = lambda *others: False
    try:
        return generator.generate(
            inputs, batch_size=args.batch_size, min_len=args.min_len, **options
        )
    finally:
        engine.can_join = can_join


def run_turn(args: Namespace) -> dict[str, Any]:
    """Write the texts once in this process; return time, peak of memory and facts of the texts."""
    torch.set_num_threads(args.threads)
    (arch,), is_cpu = args.archs, args.device == "cpu"
    clock = time.process_time if is_cpu and args.threads == 1 else time.perf_counter
    generator = build_generator(arch, args.mean_length, args.device)
    inputs = draw_prompts(args.inputs)
    # builds caches and starts the device
    first = Namespace(batch_size=2, mean_length=1, min_len=1)
    write_texts(generator, inputs[:2], first, is_continuous=True)
    start = clock()
    texts = write_texts(generator, inputs, args, is_continuous=args.turn == "continuous")
    seconds = clock() - start
    tokens = [best.tokens for best, *_ in texts]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not is_cpu:
        peak = torch.cuda.max_memory_allocated()
    lengths = [len(text) for text in tokens]
    return {
        "seconds": seconds,
        "peak": peak,
        "texts": [hashlib.sha256(json.dumps(text).encode()).hexdigest() for text in tokens],
        "lengths": [statistics.mean(lengths), max(lengths)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archs", nargs="*", metavar="ARCH", default=["conv_story_gated"])
    numbers = {"inputs": 96, "batch-size": 32, "mean-length": 80, "min-len": 1}
    for name, default in {**numbers, "rounds": 3, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turn", choices=("fixed", "continuous"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.turn:
        print(json.dumps(run_turn(args)))
        return
    print("model | texts | mean and maximum length | fixed, s | continuous, s | ratio | peak, MB")
    for arch in args.archs:
        turns: dict[str, list[dict[str, Any]]] = {"fixed": [], "continuous": []}
        for _ in range(args.rounds):
            for turn, results in turns.items():
                command = [sys.executable, __file__, arch, "--turn", turn]
                for name in ("inputs", "batch_size", "mean_length", "min_len", "threads", "device"):
                    command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(done.stderr)
                results.append(json.loads(done.stdout.splitlines()[-1]))
        (fixed, continuous) = (
            statistics.median(result["seconds"] for result in results) for results in turns.values()
        )
        ratios = [one["seconds"] / other["seconds"] for one, other in zip(*turns.values())]
        peaks = [max(x["peak"] for x in results) / 2**20 for results in turns.values()]
        first = turns["fixed"][0]
        others = turns["continuous"][0]
        num_equal = sum(one == other for one, other in zip(first["texts"], others["texts"]))
        print(
            f"{arch} | {args.inputs} ({num_equal} equal) | "
            f"{first['lengths'][0]:.1f}, {first['lengths'][1]} | {fixed:.1f} | {continuous:.1f} | "
            f"{statistics.median(ratios):.2f} | {peaks[0]:.0f}, {peaks[1]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
