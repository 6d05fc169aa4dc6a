"""Story generation and training beside fairseq's own ``fconv_self_att_wp``, on equal weights.

    python benchmarks/conv_story.py generation [--threads 2] [--rounds 3]
    python benchmarks/conv_story.py training [--threads 2] [--rounds 3]

Sizes are the published ones: 19,025 and 104,960 types, prompts of 30 words.

Generation: top-k 10, no end before 150, 500 and 1000 words, by the search of ``fairseq-mm``.
fairseq's model computes every prefix anew; the time of such a step is measured at several prefixes,
and the time of a story is the sum over its steps, interpolated between them.

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
from collections.abc import Callable
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


def median_time(function: Callable[[], Any], rounds: int, *, warms_up: bool = True) -> float:
    if warms_up:
        function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
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


def prepare(model: Any) -> int:
    """Prepare our model for generation; return the number of weights in a decoding step."""
    model.eval()
    model.prepare_for_inference_(Namespace(generation=Namespace(print_alignment=None, beam=1)))
    return sum(
        x.numel()
        for name, x in model.decoder.named_parameters()
        if not name.startswith("trunk.embedding")
    )


def benchmark_generation(rounds: int) -> None:
    theirs, ours = build_both()
    theirs.eval()
    prepare(ours)
    pack_weights(ours)
    print("batch words | fairseq s | ours s | ratio")
    for rows in (4, 32):
        times = step_times(theirs, rows, rounds)
        for words in (150, 500, 1000):
            mine = statistics.median(generate(ours, rows, words) for _ in range(rounds))
            theirs_time = story_time(times, words)
            print(f"{rows} {words} | {theirs_time:.1f} | {mine:.2f} | {theirs_time / mine:.1f}")


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
    parser.add_argument("part", choices=("generation", "training", "one"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arch", default="conv_story_wp", help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="float32", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    allocator.keep_freed_memory()  # as the commands do
    if args.part == "generation":
        benchmark_generation(args.rounds)
    elif args.part == "training":
        benchmark_training(args.rounds, args.threads)
    else:
        print(json.dumps(train_once(args.arch, args.precision, args.rounds)))


if __name__ == "__main__":
    main()
