"""Generation on a GPU at published sizes, beside its peers and the limit.

    python benchmarks/gpu_generation.py [--only NAME...] [--half bf16|fp16] [--device cuda]
        [--small] [--json FILE]

- bart, t5: 512 source tokens, 64 target tokens, beam 5. Peers with the same weights:
  ``generate`` of Hugging Face (``pip install transformers``) and CTranslate2.
- conv_story: stories of 150 words, each sampled from the 10 most probable.

Weights, texts and features are drawn. The times are medians of three rounds after one call that is
not counted; slow cases have fewer rounds. Every call ends when the GPU has ended. float32 is full
float32, without TF32.

The columns:

- x HF: time divided by Hugging Face's for the same batch and dtype.
- limit ms: time that a step needs at least. It reads the decoder's weights and the source's keys
  and values once, or computes the products of the weights, whichever is longer; the encoder's
  products are spread over the steps. The speeds of reading and of products are measured first.
- equal: share of the texts that are Hugging Face's in float32, without their last token.
"""

import argparse
import contextlib
import copy
import functools
import importlib.util
import json
import logging
import statistics
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from _markdown import print_row
from _other_engines import _to_hugging_face, writing_by_ctranslate2, writing_by_generate
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_mm.generation.seeded_sampling import SeededSampling
from fairseq_mm.models._vg_bart_parts import share_beams
from fairseq_mm.modules.packed_weights import pack_weights
from fairseq_mm.tasks.multimodal_task import without_cudnn_attention

COLUMNS = (
    *("system", "engine", "dtype", "batch", "ms", "ms/step", "ms/text", "words/s", "x HF"),
    *("limit ms", "x limit", "peak GB", "equal"),
)
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDS, ENOUGH_SECONDS = 3, 2.0
# weights of decoders of summaries that are multiplied once for each source, not at each step
_OF_THE_SOURCE = (
    *("encoder_attn.k_proj", "encoder_attn.v_proj"),
    *("source_attention.key_proj", "source_attention.value_proj"),
)
CAPTION_WORDS, CAPTION_BATCH = 12, 100


class Setting(NamedTuple):
    """How to measure.

    Attributes:
        device: ``cuda`` or ``cpu``.
        half: ``bf16`` or ``fp16``.
        is_small: True for tiny sizes, which only show that the program runs.
        bandwidth: Bytes a second that are read.
        speeds: Dict from a dtype's name to operations a second of a large product.
    """

    device: str
    half: str
    is_small: bool
    bandwidth: float
    speeds: dict[str, float]

    @property
    def dtypes(self) -> tuple[str, str]:
        return "float32", self.half

    def step_limit(self, dtype: str, rows: int, weights: int, others: int = 0) -> float:
        """Return the seconds that a step needs at least.

        Args:
            dtype: Name of the dtype.
            rows: Number of rows (beams of all texts).
            weights: Number of weights that are multiplied by each row.
            others: Number of other values that are read.
        """
        reading = (weights + others) * DTYPES[dtype].itemsize / self.bandwidth
        return max(reading, 2 * rows * weights / self.speeds[dtype])


class Work(NamedTuple):
    """Generation of a batch.

    Attributes:
        write: Function that generates the texts.
        steps: Number of decoding steps of a call.
        texts: Number of texts of a call.
        words: Number of words of a text.
        limit: Seconds that a step needs at least; None if unknown.
    """

    write: Callable[[], Any]
    steps: int
    texts: int
    words: int
    limit: Optional[float] = None


class Report:
    """Table of results, which are printed and written as soon as they are measured.

    Args:
        setting: How to measure.
        path: JSON file to write; None for no file.
    """

    def __init__(self, setting: Setting, path: Optional[Path]) -> None:
        self.setting, self.path = setting, path
        self.rows: list[dict[str, Any]] = []
        # system, dtype and batch -> seconds of Hugging Face's generate
        self.peer_seconds: dict[tuple[str, str, int], float] = {}
        # system and batch -> texts of Hugging Face's generate in float32
        self.peer_texts: dict[tuple[str, int], list[list[int]]] = {}

    def add(
        self,
        labels: dict[str, Any],
        prepare: Callable[[], Work],
        *,
        peer: str = "",
    ) -> None:
        """Measure a case, and add its row.

        Args:
            labels: Values of the first columns.
            prepare: Function that prepares the work.
            peer: System whose peer is measured, or compared with; empty for no peer.
        """
        row = dict(labels)
        is_ours = labels["engine"] == "ours"
        try:
            # as in the package's commands
            with without_cudnn_attention() if is_ours else contextlib.nullcontext():
                work = prepare()
                seconds, texts, peak = measure(work.write, self.setting.device)
                row |= describe(work, seconds)
                if peak:
                    row["peak GB"] = round(peak / 1e9, 2)
                self._compare(row, labels, peer, seconds, texts)
        except Exception as error:  # the others are measured all the same
            if self.setting.is_small and is_ours:
                raise
            row["ms"] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        self.write(row)

    def _compare(
        self, row: dict[str, Any], labels: dict[str, Any], peer: str, seconds: float, texts: Any
    ) -> None:
        """Keep what Hugging Face's generate does; compare the others with it."""
        if not peer:
            return
        key = (peer, labels["dtype"], labels["batch"])
        if labels["engine"].startswith("HF, dynamic"):
            self.peer_seconds[key] = seconds
            if labels["dtype"] == "float32":
                self.peer_texts[peer, labels["batch"]] = texts
        elif key in self.peer_seconds:
            row["x HF"] = round(seconds / self.peer_seconds[key], 2)
        expected = self.peer_texts.get((peer, labels["batch"]))
        if expected:
            # fairseq's generator ends each text with </s>, whose place the last word has there
            equal = [x[: len(y) - 1] == y[:-1] for x, y in zip(texts, expected)]
            row["equal"] = round(sum(equal) / len(equal), 2)

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print_row([row.get(column, "") for column in COLUMNS])
        if self.path:
            self.path.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")


def wait(device: str) -> None:
    """Wait until the GPU has ended."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure(write: Callable[[], Any], device: str) -> tuple[float, Any, int]:
    """Return the median seconds of a call, its result, and the peak of the GPU's memory."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    texts = write()
    times: list[float] = []
    while len(times) < ROUNDS and (not times or sum(times) < ENOUGH_SECONDS):
        wait(device)
        start = time.perf_counter()
        write()
        wait(device)
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return statistics.median(times), texts, peak


def describe(work: Work, seconds: float) -> dict[str, Any]:
    """Return the columns that depend on the time of a call."""
    step = seconds / work.steps
    row = {
        "ms": round(1e3 * seconds, 1),
        "ms/step": round(1e3 * step, 3),
        "ms/text": round(1e3 * seconds / work.texts, 2),
        "words/s": round(work.texts * work.words / seconds),
    }
    if work.limit:
        row |= {"limit ms": round(1e3 * work.limit, 4), "x limit": round(step / work.limit, 1)}
    return row


def prepared(model: Any, dtype: str, setting: Setting) -> Any:
    """Return a copy of a model on the device, prepared as the package's commands prepare it."""
    model = copy.deepcopy(model).to(setting.device, DTYPES[dtype]).eval()
    model.make_generation_fast_()
    share_beams(model)
    pack_weights(model)
    return model


def on_device(x: Any, device: str) -> Any:
    if isinstance(x, dict):
        return {key: on_device(value, device) for key, value in x.items()}
    return x.to(device)


def matrices(module: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield names and weights of the matrices; a shared one has several names."""
    for name, weight in module.named_parameters(remove_duplicate=False):
        if weight.dim() == 2:
            yield name, weight


def summary_limit(model: Any, batch: int, sizes: Namespace, dtype: str, setting: Setting) -> float:
    """Return the seconds that a step of BART or T5 needs at least, see the module's docstring."""
    layers = [(name, x) for name, x in matrices(model.decoder) if name.startswith("layers.")]
    source = [x for name, x in layers if any(part in name for part in _OF_THE_SOURCE)]
    words = getattr(model.decoder, "embedding", None) or model.decoder.embed_tokens
    weights = sum(x.numel() for _, x in layers) - sum(x.numel() for x in source)
    weights += words.weight.numel()
    of_encoder = [x for name, x in matrices(model.encoder) if name.startswith("layers.")]
    tokens = batch * sizes.source
    encoder = 2 * tokens * sum(x.numel() for x in [*of_encoder, *source]) / setting.speeds[dtype]
    keys_values = tokens * sum(x.size(0) for x in source)
    step = setting.step_limit(dtype, batch * sizes.beam, weights, keys_values)
    return step + encoder / sizes.target


def summary_sizes(family: str, setting: Setting) -> tuple[Namespace, tuple[int, ...]]:
    """Return the sizes of texts and vocabulary, and the batch sizes."""
    import video_summarization as program

    if setting.is_small:
        return program.SMALL, (2,)
    return Namespace(types=program.TYPES[family], **vars(program.PAPER)), (8, 32)


def build_other(model: Any) -> tuple[Any, str]:
    """Return Hugging Face's model with the same weights, and the name of its attention."""
    other = _to_hugging_face(model)
    with contextlib.suppress(ValueError):  # not every version has it for every model
        other.set_attn_implementation("sdpa")
    return other, other.config._attn_implementation


def summaries(family: str, setting: Setting, report: Report) -> None:
    import video_summarization as program

    sizes, batches = summary_sizes(family, setting)
    task = program.make_task(sizes)
    drawn = {batch: on_device(program.draw(sizes, batch), setting.device) for batch in batches}
    base = program.build(family, {}, task, small=setting.is_small).eval()
    add_peers(family, base, drawn, sizes, setting, report)
    systems: dict[str, dict[str, Any]] = {family: {}, f"vg_{family}": program.ADD_ON}
    if family == "bart":
        systems |= {"vg_bart_base": {}, "bart, no trigram twice": {}}

    def work_of(arch: str, ready: Any, batch: int, dtype: str, ngrams: int) -> Work:
        write = program.writing(arch, ready, drawn[batch], sizes, no_repeat_ngram_size=ngrams)
        limit = summary_limit(ready, batch, sizes, dtype, setting)
        return Work(write, sizes.target, batch, sizes.target, limit)

    for name, chosen in systems.items():
        arch = name.removesuffix("_base").split(",")[0]
        model = base
        if arch != family:
            model = program.build(arch, chosen, task, small=setting.is_small)
        # as the package blocks them by default
        ngrams = 3 if "trigram" in name else 0
        for dtype in (setting.half,) if ngrams else setting.dtypes:
            ready = prepared(model, dtype, setting)
            for batch in batches:
                labels = {"system": name, "engine": "ours", "dtype": dtype, "batch": batch}
                prepare = functools.partial(work_of, arch, ready, batch, dtype, ngrams)
                is_same = arch == family and not ngrams
                report.add(labels, prepare, peer=family if is_same else "")


def add_peers(
    family: str,
    base: Any,
    drawn: dict[int, dict[str, Tensor]],
    sizes: Namespace,
    setting: Setting,
    report: Report,
) -> None:
    """Measure Hugging Face and CTranslate2 with the weights of a model."""
    labels: dict[str, Any] = {"system": family, "dtype": setting.half}
    if importlib.util.find_spec("transformers"):
        other, attention = build_other(base)
        for dtype in setting.dtypes:
            other.to(setting.device, DTYPES[dtype])
            for batch, inputs in drawn.items():
                labels |= {"engine": f"HF, dynamic, {attention}", "dtype": dtype, "batch": batch}

                def prepare(inputs: dict = inputs, batch: int = batch) -> Work:
                    write = writing_by_generate(other, inputs, sizes)
                    return Work(write, sizes.target, batch, sizes.target)

                report.add(labels, prepare, peer=family)
        del other
    else:
        report.write({**labels, "engine": "HF", "ms": "not installed"})
    labels |= {"engine": "CTranslate2", "dtype": setting.half, "batch": ""}
    problem = ctranslate2_problem(setting.device)
    if problem:
        report.write({**labels, "ms": problem})
        return
    # its tokens come from lists, and its name of a dtype is PyTorch's
    name = str(DTYPES["float32" if setting.device == "cpu" else setting.half]).split(".")[1]
    for batch, inputs in drawn.items():

        def prepare(inputs: dict = inputs, batch: int = batch) -> Work:
            write = writing_by_ctranslate2(base, inputs, sizes, name, device=setting.device)
            return Work(write, sizes.target, batch, sizes.target)

        report.add({**labels, "batch": batch}, prepare, peer=family)


def ctranslate2_problem(device: str) -> str:
    """Return why CTranslate2 cannot run on a device; empty if it can."""
    if not importlib.util.find_spec("ctranslate2"):
        return "not installed"
    import ctranslate2

    if device == "cuda" and not ctranslate2.get_cuda_device_count():
        return "finds no GPU"
    return ""


def conv_stories(setting: Setting, report: Report) -> None:
    import conv_story as program

    arch = "conv_story_tiny" if setting.is_small else "conv_story_gated"
    words = 6 if setting.is_small else 150
    base = program.build(arch)
    for dtype in setting.dtypes:
        model = copy.deepcopy(base).to(setting.device, DTYPES[dtype])
        weights = program.prepare(model)
        pack_weights(model)
        for batch in (2, 3) if setting.is_small else (4, 32):

            def prepare(
                batch: int = batch, dtype: str = dtype, model: Any = model, weights: int = weights
            ) -> Work:
                generator = SequenceGenerator(
                    [model],
                    program.TASK.target_dictionary,
                    beam_size=1,
                    max_len_b=words,
                    min_len=words,
                    temperature=0.8,
                )
                generator.search = SeededSampling(program.TASK.target_dictionary, topk=10)
                source = program.prompts(batch)
                lengths = torch.full((batch,), program.PROMPT)
                sample = {
                    "id": torch.arange(batch),
                    "net_input": {"src_tokens": source, "src_lengths": lengths},
                }
                write = functools.partial(
                    generator.generate, [model], on_device(sample, setting.device)
                )
                limit = setting.step_limit(dtype, batch, weights)
                return Work(write, words + 1, batch, words, limit)

            labels = {"system": arch, "engine": "ours", "dtype": dtype, "batch": batch}
            report.add(labels, prepare)


CASES: dict[str, Callable[[Setting, Report], None]] = {
    "bart": functools.partial(summaries, "bart"),
    "t5": functools.partial(summaries, "t5"),
    "conv_story": conv_stories,
}


def reading_speed(device: str, *, small: bool) -> float:
    """Return the bytes a second that a copy reads and writes."""
    first, second = torch.zeros(2, 1000 if small else 2**28, device=device)
    seconds = measure(lambda: second.copy_(first), device)[0]
    return 2 * first.nbytes / seconds


def product_speed(device: str, dtype: str, *, small: bool) -> float:
    """Return the operations a second of a product of two matrices of 8192 x 8192."""
    side = 64 if small else 8192
    first, second = torch.randn(2, side, side, device=device).to(DTYPES[dtype]).unbind()
    return 2 * side**3 / measure(lambda: first @ second, device)[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", default=list(CASES))
    parser.add_argument("--half", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("No GPU was found: nothing to measure.")
        return
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False
    bandwidth = reading_speed(args.device, small=args.small)
    speeds = {x: product_speed(args.device, x, small=args.small) for x in ("float32", args.half)}
    setting = Setting(args.device, args.half, args.small, bandwidth, speeds)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    products = ", ".join(f"{x / 1e12:.3g} TFLOP/s in {dtype}" for dtype, x in speeds.items())
    print(f"{name}, PyTorch {torch.__version__}, {bandwidth / 1e9:.0f} GB/s, {products}\n")
    print_row(COLUMNS)
    print_row(["---"] * len(COLUMNS))
    report = Report(setting, args.json)
    for case in args.only:
        with torch.no_grad():
            CASES[case](setting, report)
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
