"""Updates of fairseq's trainer on a GPU at published sizes, beside fairseq's model and the limit.

    python benchmarks/gpu_training.py [--only NAME...] [--device cuda] [--small] [--json FILE]

A case is a system with the options and the batch of its recipe, in a precision. Its update has a
number of passes, whose gradients are added up. The batch is drawn once, all its texts have the
same length, and it is copied to the GPU in each update. Times are medians of six updates after
the first three, and each update ends when the GPU has ended.

The limit is the time of the update's products at the speed that products of 8192 x 8192 matrices
have in the same run and precision (float32 without TF32). Recurrences of cuDNN count with their
weights' products.
"""

import argparse
import json
import logging
import statistics
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from _markdown import print_row
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor, nn

COLUMNS = (
    *("system", "precision", "batch", "passes", "ms", "words/s"),
    *("limit ms", "x limit", "peak GB"),
)
UPDATES, WARM = 6, 2


class Case(NamedTuple):
    """Training of a system.

    Attributes:
        data: Data folder.
        options: Options of fairseq-train.
        rows: Number of examples of a pass.
        passes: Number of passes of an update.
        words: Length of the texts in tokens.
        frames: Rows of features of a video; 0 for the data's own.
    """

    data: str
    options: str
    rows: int
    passes: int
    words: int
    frames: int = 0


_NAG = "--optimizer nag --momentum 0.99 --lr 1e-3 --clip-norm 0.1 --weight-decay 1e-7"
_STORY = f"--task hierarchical_story --max-source-positions 1022 --max-target-positions 1022 {_NAG}"
_CHUNKED = "--criterion chunked_cross_entropy"
_PLAIN = "--criterion cross_entropy"
_VISUAL = f"--task visual_storytelling {_PLAIN} --optimizer adam_l2 --weight-decay 1e-5 --lr 1e-4"
_CAPTION = "--task multimodal_captioning --optimizer adam --lr 1e-4"
_EMBEDDING = (
    f"{_CAPTION} --criterion pairwise_ranking --clip-norm 2 --feature-scaling root "
    "--feature-dropout 0.2 --word-dropout 0.3"
)
_VIDEO = (
    f"--task video_summarization {_PLAIN} --max-source-positions 600 --max-target-positions 200 "
    "--optimizer adam_parameter_groups --weight-decay 1e-5 --clip-norm 1 --lr 3e-5 "
    "--added-lr 1.5e-4"
)
CASES = {
    "conv_story_gated": Case("prompts", f"{_STORY} {_CHUNKED} --arch conv_story_gated", 1, 8, 1000),
    "conv_story_gated, one pass": Case(
        "prompts", f"{_STORY} {_CHUNKED} --arch conv_story_gated", 8, 1, 1000
    ),
    "fconv_self_att_wp": Case("prompts", f"{_STORY} {_PLAIN} --arch fconv_self_att_wp", 1, 8, 1000),
    "fconv_self_att_wp, one pass": Case(
        "prompts", f"{_STORY} {_PLAIN} --arch fconv_self_att_wp", 8, 1, 1000
    ),
    "transtory_xl": Case("stories", f"{_VISUAL} --arch transtory_xl", 64, 1, 60),
    "transtory_decoder": Case("stories", f"{_VISUAL} --arch transtory_decoder", 64, 1, 60),
    "glac": Case("stories", f"{_VISUAL} --arch glac", 64, 1, 60),
    "m_rnn": Case("captions", f"{_CAPTION} {_PLAIN} --arch m_rnn --clip-norm 5", 128, 1, 16),
    "vse_gru": Case("captions", f"{_EMBEDDING} --arch vse_gru", 128, 1, 16),
    "vse_bow": Case("captions", f"{_EMBEDDING} --arch vse_bow", 128, 1, 16),
    "vg_bart_base": Case("videos", f"{_VIDEO} --arch vg_bart_base", 10, 12, 64, 256),
    "vg_bart_base, three passes": Case("videos", f"{_VIDEO} --arch vg_bart_base", 40, 3, 64, 256),
}
TYPES = {"prompts": 104_960, "stories": 10_000, "captions": 10_000, "videos": 50_260}
CHANNELS = {"stories": 2048, "captions": 4096, "videos": 2048}
# positions of a source text
SOURCE = {"prompts": 30, "videos": 512}


def prepare(root: Path, *, small: bool) -> None:
    """Write a data folder of each task with as many types and channels as published."""
    benchmark_folder = Path(__file__).parent
    sys.path[:0] = [str(benchmark_folder.parent / "tests" / "golden")]
    import h5py
    import numpy as np
    from golden_files import DATA, unpack

    from fairseq_mm.data.feature_store_writer import FeatureStoreWriter

    unpack(DATA, root)
    generator = np.random.default_rng(1)
    for name, types in TYPES.items():
        folder = root / DATA / name
        for path in folder.glob("dict.*txt"):
            lines = path.read_text(encoding="utf-8").splitlines()
            wanted = 50 if small else types
            lines += [f"type{number} 1" for number in range(wanted - 4 - len(lines))]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        store = folder / "features.h5"
        if store.exists():
            with h5py.File(store) as file:
                keys = [x.decode() for x in file["ids"][()]]
                counts = np.diff(file["offsets"][()])
            store.unlink()
            dim = 8 if small else CHANNELS[name]
            with FeatureStoreWriter(store, dim=dim, attributes={}) as writer:
                for key, count in zip(keys, counts):
                    writer.append(key, np.abs(generator.normal(size=(count, dim))).astype("f2"))
                writer.finish()


def build_trainer(data: Path, case: Case, precision: str, device: str, small: bool) -> Trainer:
    arguments = [str(data), *case.options.split(), "--seed", "1", "--no-save"]
    arguments += ["--disable-validation", "--batch-size", str(case.rows), "--num-workers", "0"]
    if small and "conv" in case.options:
        arguments += ["--encoder-layers", "[(8,3)]", "--decoder-layers", "[(8,4)]"]
    if device == "cpu":
        arguments.append("--cpu")
    if precision != "float32":
        arguments.append(f"--{precision}")
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    cfg = convert_namespace_to_omegaconf(args)
    cfg.common.tpu = False  # fairseq's parser sets it for --bf16
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train")
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    return Trainer(cfg, task, model, criterion)


def make_batch(trainer: Trainer, case: Case, *, small: bool) -> dict[str, Any]:
    """Return the first examples as a batch that is repeated to the case's size."""
    dataset = trainer.task.dataset("train")
    count = min(3, case.rows)
    batch = dataset.collater([dataset[i] for i in range(count)])
    rows = 4 if small else case.rows
    source = (6 if small else SOURCE[case.data]) if case.data in SOURCE else 0
    lengths = {"src_tokens": source, "features": 3 if small and case.frames else case.frames}
    lengths["padding_mask"] = lengths["features"]
    words = 10 if small else case.words
    lengths |= dict.fromkeys(("prev_output_tokens", "target", "tokens", "tags"), words)

    def enlarge(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: enlarge(key, x) for key, x in value.items()}
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        if value.size(0) == count:
            value = value.repeat(-(-rows // count), *[1] * (value.dim() - 1))[:rows]
        wanted = lengths.get(name, 0)
        if wanted and value.dim() > 1:
            times = -(-wanted // value.size(1))
            value = value.repeat(1, times, *[1] * (value.dim() - 2))[:, :wanted]
        if name == "src_lengths":
            value = torch.full_like(value, source)
        if name in ("item", "id"):  # the other sentences of an image are no negatives
            value = torch.arange(rows)
        return value.contiguous()

    batch = enlarge("", batch)
    if case.data == "stories":
        write_stories(trainer.task, batch)
    pad = trainer.task.target_dictionary.pad()
    batch["nsentences"] = rows
    target = batch.get("target")
    batch["ntokens"] = words * rows if target is None else int(target.ne(pad).sum())
    return batch


def write_stories(task: Any, batch: dict[str, Any]) -> None:
    """Draw the words of the stories, in five sentences of equal length."""
    inputs = batch["net_input"]["prev_output_tokens"]
    words = torch.randint(4, len(task.target_dictionary) - 1, inputs.shape)
    words[words == task.separator_index] = 4
    length = inputs.size(1) // 5
    words[:, length - 1 : 5 * length : length] = task.separator_index
    words[:, -1] = task.target_dictionary.eos()
    batch["target"] = words
    batch["net_input"]["prev_output_tokens"] = words.roll(1, dims=1)


def count_operations(trainer: Trainer, batch: dict[str, Any]) -> int:
    """Count the operations of a forward and a backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    recurrent = 0

    def add(module: Any, inputs: Any, output: Any) -> None:
        nonlocal recurrent
        data = inputs[0].data if isinstance(inputs[0], nn.utils.rnn.PackedSequence) else inputs[0]
        weights = sum(x.numel() for x in module.parameters() if x.dim() == 2)
        recurrent += 3 * 2 * weights * (data.numel() // data.size(-1))

    model = trainer.model
    hooks = [x.register_forward_hook(add) for x in model.modules() if isinstance(x, nn.RNNBase)]
    sample, _ = trainer._prepare_sample(batch)
    model.train()
    with FlopCounterMode(display=False) as counter:
        loss = trainer.criterion(model, sample)[0]
        loss.backward()
    for hook in hooks:
        hook.remove()
    trainer.zero_grad()
    return int(counter.get_total_flops()) + recurrent


def product_speed(device: str, precision: str, small: bool) -> float:
    """Return operations a second of a product of two matrices of 8192 x 8192."""
    side = 64 if small else 8192
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    first, second = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    times = []
    for _ in range(6):
        wait(device)
        start = time.perf_counter()
        first @ second
        wait(device)
        times.append(time.perf_counter() - start)
    return 2 * side**3 / statistics.median(times[1:])


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, data: Path, precision: str, args: argparse.Namespace) -> dict[str, Any]:
    metrics.reset()
    trainer = build_trainer(data, case, precision, args.device, args.small)
    trainer.begin_epoch(1)
    batch = make_batch(trainer, case, small=args.small)
    batches = [batch] * case.passes
    trainer.train_step(batches)
    operations = case.passes * count_operations(trainer, batch)
    for _ in range(WARM):
        trainer.train_step(batches)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(UPDATES):
        wait(args.device)
        start = time.perf_counter()
        trainer.train_step(batches)
        wait(args.device)
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    limit = operations / product_speed(args.device, precision, args.small)
    row = {
        "batch": batch["nsentences"],
        "passes": case.passes,
        "ms": round(1e3 * seconds, 2),
        "words/s": round(case.passes * batch["ntokens"] / seconds),
        "limit ms": round(1e3 * limit, 2),
        "x limit": round(seconds / limit, 1),
    }
    if args.device == "cuda":
        row["peak GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", default=list(CASES))
    parser.add_argument("--precisions", nargs="+", default=["float32", "fp16", "bf16"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import fairseq_mm  # noqa: F401 - registers the tasks and the models

    print_row(COLUMNS)
    print_row(["---"] * len(COLUMNS))
    rows = []
    with TemporaryDirectory() as folder:
        prepare(Path(folder), small=args.small)
        for name in args.only:
            for precision in args.precisions:
                row: dict[str, Any] = {"system": name, "precision": precision}
                try:
                    data = Path(folder, "data", CASES[name].data)
                    row |= measure(CASES[name], data, precision, args)
                except Exception as error:  # the others are measured all the same
                    if args.small:
                        raise
                    lines = str(error).strip().splitlines() or [""]
                    row["ms"] = f"{type(error).__name__}: {lines[0]}"
                rows.append(row)
                print_row([row.get(column, "") for column in COLUMNS])
                if args.device == "cuda":
                    torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
