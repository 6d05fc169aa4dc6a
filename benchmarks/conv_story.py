"""Story generation and training against fairseq's own ``fconv_self_att_wp``, on equal weights.

    python benchmarks/conv_story.py generation [--threads 2] [--rounds 3]
    python benchmarks/conv_story.py weights [--threads 2] [--rounds 3] [--clock cpu]
        [--arch conv_story_wp] [--kinds int8] [--batches 4 32] [--words 60]
    python benchmarks/conv_story.py training [--threads 2] [--rounds 3]

Sizes are the published ones: 19,025 and 104,960 types, prompts of 30 words.

Generation: top-k 10, no end before 150, 500 and 1000 words, by the search of ``fairseq-mm``.
fairseq's model computes every prefix anew; the time of such a step is measured at several prefixes,
and what a story takes is the sum over its steps, interpolated between them. The limits: reading the
decoder's weights once a step at the speed at which a large matrix is multiplied by a vector, or
the step's products at the speed of a large product, whichever is longer; both are measured here.

Weights: a step of our generation, stories of 60 words, with the weights as PyTorch stores them, and
packed in float32, bfloat16 and int8 (`weights_dtype`), beside the limit in float32. `--clock cpu`
counts the process's own time, for a machine that others use as well: with one thread. `--kinds`
with one type shows the peak of its memory: packed weights are kept beside those as PyTorch
stores them.

Training: forward, loss and backward of 3 stories of 500 words, without optimizer, each in a
process of its own for the peak of its memory: fairseq's model with fairseq's cross-entropy, this
package's with ``chunked_cross_entropy``, in float32 and under bfloat16 autocast.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

import fairseq_mm  # noqa: F401 - registers the models
from fairseq_mm.compat import allocator
from fairseq_mm.generation.running_batch import RunningBatch
from fairseq_mm.generation.seeded_sampling import SeededSampling
from fairseq_mm.models._fairseq_stories import convert_weights
from fairseq_mm.modules.packed_weights import pack_weights

SOURCE_TYPES, TARGET_TYPES, PROMPT = 19_025, 104_960, 30
KINDS = ("as stored", "float32", "bfloat16", "int8")
PREFIXES = (1, 50, 100, 150, 300, 500, 750, 1000)


def dictionary(types: int) -> Dictionary:
    words = Dictionary()
    for number in range(types - words.nspecial):
        words.add_symbol(f"w{number}")
    return words


TASK = Namespace(
    source_dictionary=dictionary(SOURCE_TYPES),
    target_dictionary=dictionary(TARGET_TYPES),
    cfg=Namespace(data=None),
)


def build(arch: str, task: Any = TASK) -> Any:
    model_class = ARCH_MODEL_REGISTRY[arch]
    cfg = Namespace(max_source_positions=1024, max_target_positions=1024)
    ARCH_CONFIG_REGISTRY[arch](cfg)
    fields = getattr(model_class, "__dataclass", None)
    if fields is not None:
        defaults = {key: x.default for key, x in fields.__dataclass_fields__.items()}
        cfg = Namespace(**{**defaults, **vars(cfg)})
    torch.manual_seed(1)
    return model_class.build_model(cfg, task)


def build_both() -> tuple[Any, Any]:
    theirs, ours = build("fconv_self_att_wp"), build("conv_story_wp")
    converted = convert_weights(ours, theirs.state_dict())
    assert converted.fits
    torch.nn.Module.load_state_dict(ours, converted.weights, strict=False)
    return theirs, ours


def median_time(
    function: Callable[[], Any],
    rounds: int,
    *,
    warms_up: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    if warms_up:
        function()
    times = []
    for _ in range(rounds):
        start = clock()
        function()
        times.append(clock() - start)
    return statistics.median(times)


def prompts(rows: int) -> torch.Tensor:
    tokens = torch.randint(4, SOURCE_TYPES, (rows, PROMPT))
    tokens[:, -1] = TASK.source_dictionary.eos()
    return tokens


def generate(model: Any, rows: int, words: int) -> float:
    """Seconds that a batch of stories takes."""
    generator = SequenceGenerator(
        [model],
        TASK.target_dictionary,
        beam_size=1,
        max_len_b=words,
        min_len=words,
        temperature=0.8,
        search_strategy=SeededSampling(TASK.target_dictionary, topk=10),
    )
    source = prompts(rows)
    sample = {
        "id": torch.arange(rows),
        "net_input": {"src_tokens": source, "src_lengths": torch.full((rows,), PROMPT)},
    }
    start = time.perf_counter()
    found = []
    with torch.no_grad():
        batch = RunningBatch(generator, sample, range(rows))
        while len(batch):
            found += [hypotheses for _, hypotheses in batch.step()]
    assert all(len(hypotheses[0]["tokens"]) == words + 1 for hypotheses in found)
    assert len(found) == rows
    return time.perf_counter() - start


def step_times(model: Any, rows: int, rounds: int) -> dict[int, float]:
    """Seconds of a step of a model that keeps nothing, by the length of its prefix."""
    ensemble = EnsembleModel([model]).eval()
    source = prompts(rows)
    net_input = {"src_tokens": source, "src_lengths": torch.full((rows,), PROMPT)}
    times = {}
    with torch.no_grad():
        encoder_outs = ensemble.forward_encoder(net_input)
        for prefix in PREFIXES:
            tokens = torch.randint(4, TARGET_TYPES, (rows, prefix))
            expensive = rows * prefix > 4000
            times[prefix] = median_time(
                lambda tokens=tokens: ensemble.forward_decoder(tokens, encoder_outs, [], 0.8),
                1 if expensive else rounds,
                warms_up=not expensive,
            )
    return times


def story_time(times: dict[int, float], words: int) -> float:
    steps = np.arange(1, words + 2)
    return float(np.interp(steps, list(times), list(times.values())).sum())


def machine_speed(clock: Callable[[], float] = time.perf_counter) -> tuple[float, float]:
    """Bytes a second of reading a matrix, and operations a second of a large product."""
    matrix, rows = torch.randn(104_960, 256), torch.randn(4, 256)
    reading = median_time(lambda: matrix @ rows.t(), 20, clock=clock)
    square = torch.randn(2048, 2048)
    product = median_time(lambda: square @ square, 5, clock=clock)
    return matrix.numel() * 4 / reading, 2 * 2048**3 / product


def prepare(model: Any) -> int:
    """Prepare our model for generation; return the number of weights in a decoding step."""
    model.eval()
    model.prepare_for_inference_(Namespace(generation=Namespace(print_alignment=None, beam=1)))
    return sum(
        x.numel()
        for name, x in model.decoder.named_parameters()
        if not name.startswith("trunk.embedding")
    )


def benchmark_weights(
    arch: str,
    kinds: Sequence[str],
    batches: Sequence[int],
    words: int,
    rounds: int,
    clock: Callable[[], float],
) -> None:
    model = build(arch)
    weights = prepare(model)
    bandwidth, speed = machine_speed(clock)
    print(
        f"{weights / 1e6:.1f} M weights in a decoding step; {bandwidth / 1e9:.1f} GB/s, "
        f"{speed / 1e9:.0f} GFLOP/s"
    )
    steps: dict[str, list[float]] = {}
    limits = [max(4 * weights / bandwidth, 2 * rows * weights / speed) for rows in batches]
    for kind in kinds:
        if kind != "as stored":
            pack_weights(model, kind)
        for rows in batches:
            write = partial(generate, model, rows, words)
            # the first products pack the weights, which long stories hardly feel
            seconds = median_time(write, rounds, warms_up=words <= 100, clock=clock)
            steps.setdefault(kind, []).append(seconds / (words + 1))
    print(" | ".join(["weights", *(f"ms a step, batch {x} | step / limit" for x in batches)]))
    for kind, times in steps.items():
        parts = [f"{1e3 * x:.1f} | {x / limit:.2f}" for x, limit in zip(times, limits)]
        print(" | ".join([kind, *parts]))
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory of the process: {peak / 1e9:.2f} GB")


def benchmark_generation(rounds: int) -> None:
    theirs, ours = build_both()
    theirs.eval()
    weights = prepare(ours)
    pack_weights(ours)
    bandwidth, speed = machine_speed()
    print(
        f"{weights / 1e6:.1f} M weights in a decoding step; {bandwidth / 1e9:.1f} GB/s, "
        f"{speed / 1e9:.0f} GFLOP/s"
    )
    print("batch words | fairseq s | ours s | ratio | ms a step | limit ms | ours / limit")
    for rows in (4, 32):
        times = step_times(theirs, rows, rounds)
        steps = " ".join(f"{prefix}: {t:.2f}" for prefix, t in times.items())
        print(f"batch {rows}, seconds of fairseq's step at prefix {steps}")
        limit = max(4 * weights / bandwidth, 2 * rows * weights / speed)
        for words in (150, 500, 1000):
            mine = statistics.median(generate(ours, rows, words) for _ in range(rounds))
            theirs_time = story_time(times, words)
            a_step = mine / (words + 1)
            print(
                f"{rows} {words} | {theirs_time:.1f} | {mine:.2f} | {theirs_time / mine:.1f} | "
                f"{1e3 * a_step:.1f} | {1e3 * limit:.1f} | {a_step / limit:.2f}"
            )


def train_once(arch: str, precision: str, rounds: int) -> dict[str, float]:
    """Median seconds of forward, loss and backward; peak of memory in GB above the start's."""
    model = build(arch).train()
    name = "chunked_cross_entropy" if arch == "conv_story_wp" else "cross_entropy"
    criterion_class = CRITERION_REGISTRY[name]
    arguments = Namespace(sentence_avg=False, label_smoothing=0.0, chunk_megabytes=128)
    criterion = criterion_class.build_criterion(arguments, TASK)
    target = torch.randint(4, TARGET_TYPES, (3, 500))
    sample = {
        "net_input": {
            "src_tokens": prompts(3),
            "src_lengths": torch.full((3,), PROMPT),
            "prev_output_tokens": target.roll(1, dims=1),
        },
        "target": target,
        "ntokens": target.numel(),
        "nsentences": 3,
    }
    is_half = precision == "bfloat16"

    def step() -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            loss = criterion(model, sample)[0]
        loss.backward()

    seconds = median_time(step, rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"seconds": seconds, "peak": peak}


def benchmark_training(rounds: int, threads: int) -> None:
    results = {}
    for precision in ("float32", "bfloat16"):
        for arch in ("fconv_self_att_wp", "conv_story_wp"):
            command = [sys.executable, __file__, "one", "--arch", arch, "--precision", precision]
            command += ["--rounds", str(rounds), "--threads", str(threads)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[precision, arch] = json.loads(output.splitlines()[-1])
    print("precision | model | s a step | peak GB")
    for (precision, arch), result in results.items():
        print(f"{precision} | {arch} | {result['seconds']:.2f} | {result['peak']:.2f}")
    for precision in ("float32", "bfloat16"):
        theirs, ours = (results[precision, x] for x in ("fconv_self_att_wp", "conv_story_wp"))
        print(
            f"{precision}: {theirs['seconds'] / ours['seconds']:.2f} times as fast, "
            f"{ours['peak'] / theirs['peak']:.2f} of the memory"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("generation", "weights", "training", "one"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arch", default="conv_story_wp", help="of parts one and weights")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, help="of weights; one to see its memory"
    )
    parser.add_argument(
        "--batches", nargs="+", type=int, default=(4, 32), help="numbers of stories in part weights"
    )
    parser.add_argument("--words", type=int, default=60, help="of a story in part weights")
    parser.add_argument("--precision", default="float32", help="of part one")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of part weights")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    allocator.keep_freed_memory()  # as the commands do
    if args.part == "generation":
        benchmark_generation(args.rounds)
    elif args.part == "weights":
        clock = time.process_time if args.clock == "cpu" else time.perf_counter
        benchmark_weights(args.arch, args.kinds, args.batches, args.words, args.rounds, clock)
    elif args.part == "training":
        benchmark_training(args.rounds, args.threads)
    else:
        print(json.dumps(train_once(args.arch, args.precision, args.rounds)))


if __name__ == "__main__":
    main()
