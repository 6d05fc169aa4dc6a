"""All benchmarks by one command: our time beside a peer's and beside the machine's limit.

    python benchmarks/run.py [NAME...] [--rounds 3] [--threads 1] [--json FILE] [--compare FILE]

Each benchmark runs in a process of its own. In a round our program and its peers have one turn
each; the table has medians of the rounds. With one thread, times are CPU seconds, which other
programs disturb least; with more threads they are seconds of the clock.

The limit is the time that the benchmark's matrix products, or the reading of its weights, would
take at the speed that was measured at the beginning of the same benchmark. Peers are measured where
they are installed: ``pip install -e '.[bench]'``. Models have random weights of the published
sizes; texts, images and features are drawn.

``--compare`` reads a file that ``--json`` wrote, and exits with status 1 if a time has become more
than 10 % worse, relative to its limit, or to its first peer if it has no limit.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from _markdown import print_row
from _other_engines import list_engines, writing_by
from fairseq.models.bart import BARTModel
from PIL import Image

import fairseq_mm
from fairseq_mm.compat import allocator
from fairseq_mm.models._vg_bart_parts import share_beams
from fairseq_mm.modules.packed_weights import pack_weights

HERE = Path(__file__).parent
WORSE = 1.1
# parts of names of weights in decoders of visual stories that are not multiplied by each word's
# vector: they are looked up, or needed once for each image, sentence or distance
NOT_OF_EACH_WORD = ("embedding.weight", "pictures", "fusion", "distance", "bias")


@dataclass
class Row:
    """A line of the table.

    Args:
        case: What was measured.
        seconds: Our time.
        peers: Dict from the name of a peer to its time for the same work.
        limit: Time that the machine needs at least; None if the limit is unknown.
    """

    case: str
    seconds: float
    peers: dict[str, float] = field(default_factory=dict)
    limit: Optional[float] = None

    @property
    def relative(self) -> float:
        """Our time divided by the limit, or else by the time of the first peer."""
        beside = [self.limit] if self.limit else list(self.peers.values())
        return self.seconds / beside[0] if beside else self.seconds


@dataclass
class Setting:
    """How to measure.

    Args:
        rounds: Number of rounds.
        threads: Number of threads.
        is_small: True for tiny sizes, which only show that the benchmarks run.
    """

    rounds: int
    threads: int
    is_small: bool

    def clock(self) -> float:
        return time.process_time() if self.threads == 1 else time.perf_counter()

    def measure(self, turns: dict[str, Callable[[], Any]], *, calls: int = 1) -> dict[str, float]:
        """Return the median seconds of a call of each function; the functions take turns."""
        times: dict[str, list[float]] = {name: [] for name in turns}
        for counted in range(-1, self.rounds):
            for name, turn in turns.items():
                start = self.clock()
                for _ in range(calls):
                    turn()
                if counted >= 0:
                    times[name].append((self.clock() - start) / calls)
        return {name: statistics.median(values) for name, values in times.items()}


def product_speed(setting: Setting, dtype: torch.dtype = torch.float32) -> float:
    """Return the operations a second of a product of two square matrices."""
    # processors without instructions for a small type take minutes for large matrices
    side = 64 if setting.is_small else 2048 if dtype == torch.float32 else 512
    if dtype == torch.int8:
        first, second = (torch.randint(-9, 9, (side, side), dtype=dtype) for _ in range(2))
        multiply: Callable[[], Any] = partial(torch._int_mm, first, second)
    else:
        first, second = (torch.randn(side, side).to(dtype) for _ in range(2))
        multiply = partial(torch.matmul, first, second)
    return 2 * side**3 / setting.measure({"": multiply}, calls=3)[""]


def reading_speed(setting: Setting) -> float:
    """Return the bytes a second at which a matrix is read by a product with 4 vectors."""
    matrix = torch.randn(1000 if setting.is_small else 104_960, 256)
    rows = torch.randn(4, 256)
    return matrix.numel() * 4 / setting.measure({"": lambda: matrix @ rows.t()}, calls=5)[""]


def measure_machine(setting: Setting) -> dict[str, float]:
    """Return facts of the machine: its speed of products, of reading, and of JPEG decoding."""
    from io import BytesIO

    buffer = BytesIO()
    draw_photograph(0).save(buffer, "JPEG", quality=90)
    decode = setting.measure({"": lambda: Image.open(buffer).convert("RGB")}, calls=5)[""]
    facts = {
        "float32 GFLOP/s": product_speed(setting) / 1e9,
        "bfloat16 GFLOP/s": product_speed(setting, torch.bfloat16) / 1e9,
        "int8 GOP/s": product_speed(setting, torch.int8) / 1e9,
        "GB/s read": reading_speed(setting) / 1e9,
        "JPEG images/s (500 x 375)": 1 / decode,
    }
    return {name: round(value, 1) for name, value in facts.items()}


def summaries(family: str, weights_dtype: str, setting: Setting) -> Iterator[Row]:
    """Summaries of 8 transcripts of 512 tokens: 64 tokens, beam 5, as ``fairseq-mm summarize``."""
    import video_summarization as program

    sizes = program.SMALL
    if not setting.is_small:
        sizes = Namespace(types=program.TYPES[family], **vars(program.PAPER))
    task, drawn = program.make_task(sizes), program.draw(sizes, 8)
    turns = {}
    for name, chosen in {f"{family}, prepared": {}, f"vg_{family}": program.ADD_ON}.items():
        model = program.build(name, chosen, task, small=setting.is_small).eval()
        if type(model) is BARTModel:
            share_beams(model)
        pack_weights(model, weights_dtype)
        turns[name] = program.writing(name, model, drawn, sizes)
    plain = program.build(family, {}, task, small=setting.is_small)
    peers = {
        engine: writing_by(engine, plain, drawn, sizes, weights_dtype)
        for engine in list_engines(weights_dtype)
    }
    with torch.no_grad():
        times = setting.measure({**turns, **peers})
    for name in turns:
        case = f"{name.removesuffix(', prepared')}, {weights_dtype}, 8 summaries"
        yield Row(case, times[name], {peer: times[peer] for peer in peers})


def conv_story_steps(setting: Setting) -> Iterator[Row]:
    """A word of each of 4 and of 32 stories, by ``conv_story_wp`` with sampling."""
    import conv_story as program

    if setting.is_small:
        return
    model, words = program.build("conv_story_wp"), 40
    weights = program.prepare(model)
    reading, speed = reading_speed(setting), product_speed(setting)
    for dtype in ("float32", "int8"):
        pack_weights(model, dtype)
        for rows in (4, 32):
            write = partial(program.generate, model, rows, words)
            step = setting.measure({"": write})[""] / (words + 1)
            # int8 has the limit of float32: the aim is half of float32's time.
            limit = max(4 * weights / reading, 2 * rows * weights / speed)
            yield Row(f"conv_story_wp, {dtype}, a step of {rows} stories", step, limit=limit)


def visual_story_steps(setting: Setting) -> Iterator[Row]:
    """A word of each of 64 stories of five images, beam 3."""
    import visual_storytelling as program
    from fairseq.sequence_generator import SequenceGenerator

    from fairseq_mm.generation.beam_search import BeamSearch
    from fairseq_mm.generation.constraints import StoryConstraints, constrain_search

    words, rows = (2 if setting.is_small else program.WORDS), 3 * program.STORIES
    features = program.draw_stories()[0]
    dictionary = program.TASK.target_dictionary
    constraints = StoryConstraints(
        dictionary, min_words_per_sentence=words, max_words_per_sentence=words
    )
    sample = {
        "id": torch.arange(program.STORIES),
        "net_input": {
            "features": features,
            "padding_mask": torch.zeros(features.shape[:2], dtype=torch.bool),
        },
    }
    speed = product_speed(setting)
    for arch in ("glac",) if setting.is_small else ("glac", "transtory_decoder", "transtory_xl"):
        model = program.build(arch).eval()
        pack_weights(model)
        generator = SequenceGenerator([model], dictionary, beam_size=3)
        generator.search = BeamSearch(generator.tgt_dict)
        constrain_search(generator, constraints)
        turns = {
            "stories": partial(generator.generate, [model], sample),
            "encoder": partial(model.encoder, **sample["net_input"]),
        }
        with torch.no_grad():
            times = setting.measure(turns)
        weights = sum(
            weight.numel()
            for name, weight in model.decoder.named_parameters()
            if weight.dim() == 2 and not any(part in name for part in NOT_OF_EACH_WORD)
        )
        step = (times["stories"] - times["encoder"]) / constraints.max_length
        yield Row(f"{arch}, a step of 64 stories, beam 3", step, limit=2 * rows * weights / speed)


def continuous_batching(setting: Setting) -> Iterator[Row]:
    """Texts of mixed lengths in one batch that inputs leave and join; the peer: fixed batches."""
    import continuous_batching as program

    inputs, mean = (6, 3) if setting.is_small else (96, 80)
    args = Namespace(batch_size=2 if setting.is_small else 32, mean_length=mean, min_len=1)
    for arch in ("conv_story_tiny",) if setting.is_small else ("conv_story_gated",):
        generator = program.build_generator(arch, mean)
        write = partial(program.write_texts, generator, program.draw_prompts(inputs), args)
        times = setting.measure(
            {
                "ours": partial(write, is_continuous=True),
                "fixed": partial(write, is_continuous=False),
            }
        )
        case = f"{arch}, {inputs} texts of mixed lengths"
        yield Row(case, times["ours"], {"fixed batches": times["fixed"]})


def ranking(setting: Setting) -> Iterator[Row]:
    """Ranks in both directions; the limit is the product of the vectors."""
    import vector_ranking as program

    images = 1000
    for dim in (300, 1024):
        first, second = program.make_vectors(images, 5 * images, dim)
        image_of = np.arange(images).repeat(5)
        rank = partial(program.rank_vectors, first, second, image_of)
        times = setting.measure(
            {"ours": rank, "product": program.bare_product(first, second)}, calls=3
        )
        case = f"ranking, {images:,} images x {5 * images:,} sentences of {dim}"
        yield Row(case, times["ours"], limit=times["product"])


def draw_photograph(seed: int, width: int = 500, height: int = 375) -> Image.Image:
    """Return a PIL image whose JPEG file is as large as a photograph's."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = generator.normal(0, 12, image.shape)
    return Image.fromarray((image + noise).clip(0, 255).astype(np.uint8))


def image_extraction(setting: Setting) -> Iterator[Row]:
    """An image of 500 x 375 pixels from its file to features; the limit is the network alone.

    The peer is the same extraction with a network that is not traced, as for few images.
    """
    from fairseq_mm.extract.extractor import build_extractor

    count = 2 if setting.is_small else 64
    batch = torch.randn(min(count, 32), 3, 224, 224).contiguous(memory_format=torch.channels_last)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number in range(count):
            paths.append(f"{folder}/{number}.jpg")
            draw_photograph(number).save(paths[-1], quality=90)
        for model in ("mobilenet_v2",) if setting.is_small else ("mobilenet_v2", "resnet50"):
            plain = build_extractor(model, weights="none", device="cpu")
            ours = build_extractor(model, weights="none", device="cpu")
            ours.trace_network()
            with torch.inference_mode():
                traced = torch.jit.freeze(torch.jit.trace(plain.network, batch))
                turns = {
                    "ours": partial(ours.extract, paths),
                    "plain": partial(plain.extract, paths),
                    "network": partial(torch.jit.optimize_for_inference(traced), batch),
                }
                times = setting.measure(turns)
            peers = {"not traced": times["plain"] / count}
            limit = times["network"] / len(batch)
            yield Row(f"{model}, an image", times["ours"] / count, peers, limit)


def clip_extraction(setting: Setting) -> Iterator[Row]:
    """A clip of 16 frames to features, decoding left out; the limit is its products."""
    from torch.utils.flop_counter import FlopCounterMode

    from fairseq_mm.extract.resnext3d import ResNeXt3d

    clips = torch.randn(2, 3, 16, 112, 112)
    network = ResNeXt3d((1, 1, 1, 1) if setting.is_small else (3, 4, 23, 3)).eval()
    with torch.inference_mode():
        with FlopCounterMode(display=False) as counter:
            network(clips)
        operations = counter.get_total_flops() / len(clips)
        network.fold_norms()
        seconds = setting.measure({"": partial(network, clips)})[""] / len(clips)
    yield Row("resnext101_3d, a clip", seconds, limit=operations / product_speed(setting))


def embedding_training(setting: Setting) -> Iterator[Row]:
    """An update of 128 pairs by fairseq's trainer; the peer is a plain loop in PyTorch."""
    import vse_training as program

    steps = 2 if setting.is_small else 20
    for arch in ("vse_bow",) if setting.is_small else program.ARCHS:
        with tempfile.TemporaryDirectory() as folder:
            program.write_data(Path(folder), 1000 if setting.is_small else 30_000)
            trainer = program.build_trainer(Path(folder), Path(folder, "ck"), arch)
            ours, plain = program.run_rounds(trainer, steps, setting.rounds, setting.clock)
            program.metrics.reset()
        yield Row(f"{arch}, an update of 128 pairs", ours, {"plain loop": plain})


def caption_training(setting: Setting) -> Iterator[Row]:
    """An update of 128 captions by fairseq's trainer; the peer is a plain loop in PyTorch."""
    import m_rnn as program

    steps, times = (2 if setting.is_small else 20), []
    with tempfile.TemporaryDirectory() as folder:
        program.write_data(Path(folder))
        trainer = program.build_trainer(Path(folder), Path(folder, "checkpoints"))
        plain = program.PlainMRnn(len(trainer.task.target_dictionary))
        optimizer = torch.optim.Adam(plain.parameters(), lr=0.001)
        for number in range(setting.rounds + 1):
            ours, _, batches = program.timed_by_fairseq(trainer, steps, number + 1, setting.clock)
            theirs = program.timed_plainly(plain, optimizer, batches, setting.clock)
            times.append((ours / steps, theirs / steps))
    ours, theirs = (statistics.median(column) for column in zip(*times[1:]))
    yield Row("m_rnn, an update of 128 captions", ours, {"plain loop": theirs})


def reward_training(setting: Setting) -> Iterator[Row]:
    """A self-critical update of 128 images with 5 samples each, and the wait for its rewards.

    The peers are a cross-entropy update of 128 captions, and the self-critical update. With one
    thread, the training process computes the rewards; with more, two other processes do.
    """
    import m_rnn as program

    steps, workers = (1 if setting.is_small else 5), 0 if setting.threads == 1 else 2
    options = ["--criterion", "self_critical", "--one-per-item", "--sample-args"]
    # captions of the drawn data's length: an untrained model would write on
    options += ['{"max_len_b": 12, "min_len": 8}', "--reward-workers", str(workers)]
    times: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        program.write_data(Path(folder))
        plain = program.build_trainer(Path(folder), Path(folder, "plain"))
        trainer = program.build_trainer(Path(folder), Path(folder, "rewards"), *options)
        for number in range(setting.rounds + 1):
            waits: list[float] = []
            with _timed_rewards(setting.clock, waits):
                ours, *_ = program.timed_by_fairseq(trainer, steps, number + 1, setting.clock)
            theirs, *_ = program.timed_by_fairseq(plain, steps, number + 1, setting.clock)
            times.append((ours / steps, theirs / steps, statistics.median(waits)))
    ours, theirs, rewards = (statistics.median(column) for column in zip(*times[1:]))
    yield Row("m_rnn, a self-critical update, 128 x 5", ours, {"cross-entropy": theirs})
    yield Row("waiting for 640 rewards", rewards, {"the update": ours})


@contextlib.contextmanager
def _timed_rewards(clock: Callable[[], float], waits: list[float]) -> Iterator[None]:
    """Append the seconds of every wait for rewards to ``waits`` in a ``with`` block."""
    from fairseq_mm.metrics.rewards import RewardWorkers

    own = RewardWorkers.collect

    def collect(self: RewardWorkers) -> list[list[float]]:
        start = clock()
        found = own(self)
        waits.append(clock() - start)
        return found

    RewardWorkers.collect = collect  # type: ignore[method-assign]
    try:
        yield
    finally:
        RewardWorkers.collect = own  # type: ignore[method-assign]


def train_captioner(folder: Path) -> tuple[str, str]:
    """Train ``m_rnn`` for one update; return the paths of an image and of the checkpoint."""
    images = [str(folder / f"{number}.jpg") for number in range(8)]
    for number, path in enumerate(images):
        draw_photograph(number).save(path, quality=90)
    records = [{"id": x, "image": x, "captions": ["a dog runs on the grass"]} for x in images]
    (folder / "mine.jsonl").write_text("".join(json.dumps(x) + "\n" for x in records))
    data, program = str(folder / "data"), [sys.executable, "-m", "fairseq_mm"]
    prepare = "prepare captions {}/mine.jsonl --valid-size 2 --threshold 1 --output {}/data"
    extract = (
        "extract {}/mine.jsonl --model mobilenet_v2 --weights none --output {}/data/features.h5"
    )
    train = [
        *(sys.executable, "-c", "from fairseq_cli.train import cli_main; cli_main()", data),
        *("--user-dir", str(HERE.parent / "fairseq_mm"), "--task", "multimodal_captioning"),
        *("--arch", "m_rnn", "--criterion", "cross_entropy", "--optimizer", "adam", "--cpu"),
        *("--batch-size", "8", "--max-update", "1", "--save-dir", str(folder / "checkpoints")),
    ]
    for command in (
        [*program, *prepare.format(folder, folder).split()],
        [*program, *extract.format(folder, folder).split()],
        train,
    ):
        subprocess.run(command, check=True, capture_output=True)
    return images[0], str(folder / "checkpoints" / "checkpoint_last.pt")


def starting(setting: Setting) -> Iterator[Row]:
    """CPU seconds of a caption from the shell; the limit is the import of PyTorch.

    All packages are compiled to bytecode, as pip does it, before the first counted round.
    """

    def cpu_seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        image, checkpoint = train_captioner(Path(folder))
        # some machines forbid bytecode files, and a clone should stay as it is
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode"))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        program = [sys.executable, "-m", "fairseq_mm"]
        commands = {
            "limit": [sys.executable, "-c", "import torch"],
            "fairseq-mm --help": [*program, "--help"],
            "fairseq-mm caption of one image": [
                *(*program, "caption", image, "--checkpoint", checkpoint, "--device", "cpu")
            ],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(setting.rounds + 1):
            for name, command in commands.items():
                times[name].append(cpu_seconds(*command))
    limit = statistics.median(times.pop("limit")[1:])
    for name, values in times.items():
        # `--help` does not import PyTorch
        has_limit = not name.endswith("--help")
        yield Row(name, statistics.median(values[1:]), limit=limit if has_limit else None)


BENCHMARKS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "summaries_bart": partial(summaries, "bart", "float32"),
    "summaries_bart_int8": partial(summaries, "bart", "int8"),
    "summaries_t5": partial(summaries, "t5", "float32"),
    "summaries_t5_int8": partial(summaries, "t5", "int8"),
    "conv_story_steps": conv_story_steps,
    "visual_story_steps": visual_story_steps,
    "continuous_batching": continuous_batching,
    "ranking": ranking,
    "image_extraction": image_extraction,
    "clip_extraction": clip_extraction,
    "embedding_training": embedding_training,
    "caption_training": caption_training,
    "reward_training": reward_training,
    "starting": starting,
}


def run_here(name: str, setting: Setting) -> dict[str, Any]:
    """Run one benchmark in this process."""
    # the import does not register, because it came before the import of fairseq
    fairseq_mm.register()
    torch.set_num_threads(setting.threads)
    allocator.keep_freed_memory()  # as the commands do
    rows = [asdict(row) for row in BENCHMARKS[name](setting)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "peak_mb": round(peak)}


def run_apart(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one benchmark in a process of its own, and return its rows and its peak memory."""
    command = [sys.executable, __file__, name, "--here"]
    command += ["--rounds", str(args.rounds), "--threads", str(args.threads)]
    command += ["--small"] if args.small else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        error = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"rows": [], "error": error}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def format_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def print_result(name: str, result: dict[str, Any]) -> None:
    if "error" in result:
        print_row([name, "failed", result["error"], "", "", ""])
    for row in (Row(**x) for x in result["rows"]):
        peers = [f"{x}: {format_time(y)} ({row.seconds / y:.2f})" for x, y in row.peers.items()]
        limit = f"{format_time(row.limit)} ({row.seconds / row.limit:.2f})" if row.limit else ""
        cells = [name, row.case, format_time(row.seconds), "; ".join(peers), limit]
        print_row([*cells, f"{result['peak_mb']:,} MB"])


def list_rows(results: dict[str, Any]) -> list[Row]:
    return [Row(**row) for result in results.values() for row in result["rows"]]


def find_worse(now: list[Row], before: list[Row]) -> list[str]:
    """Return a line for each case whose relative time has become more than 10 % worse."""
    old = {row.case: row.relative for row in before}
    return [
        f"{row.case}: {row.relative:.3g} of its limit or peer, {old[row.case]:.3g} before"
        for row in now
        if row.relative > WORSE * old.get(row.case, float("inf"))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--compare", type=Path, help="results of an earlier run")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads must be 1 or more")
    setting = Setting(args.rounds, args.threads, args.small)
    if args.here:
        print(json.dumps(run_here(args.names[0], setting)))
        return 0
    before = []
    if args.compare:
        try:
            before = list_rows(json.loads(args.compare.read_text())["results"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            parser.error(f"--compare {args.compare}: must be a file that --json wrote ({error})")
    torch.set_num_threads(args.threads)
    machine = measure_machine(setting)
    print(f"{platform.processor() or platform.machine()}, PyTorch {torch.__version__}, ", end="")
    print(f"{args.threads} thread(s), medians of {args.rounds} round(s)")
    print(", ".join(f"{name} {value:,}" for name, value in machine.items()) + "\n")
    print_row(["benchmark", "case", "time", "peers (ours / peer)", "limit (ours / limit)", "peak"])
    print_row(["---"] * 6)
    results = {}
    for name in args.names or BENCHMARKS:
        results[name] = run_apart(name, args)
        print_result(name, results[name])
    if args.json:
        content = {"machine": machine, "results": results}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    worse = find_worse(list_rows(results), before)
    for line in worse:
        print(f"WORSE {line}")
    failed = any("error" in result for result in results.values())
    return 1 if worse or failed else 0


if __name__ == "__main__":
    sys.exit(main())
