"""Cost of WritingPrompts, VIST, COCO and How2 at full size, from release to scores (Linux).

    python benchmarks/full_size.py --folder FOLDER [--releases vist coco] [--fraction 0.25 0.5 1]

Makes random releases in the layouts of the published ones (``_synthetic_releases.py``), of each
fraction of their sizes, and runs on each:

- make: the release itself, which is no command of the package;
- prepare: ``fairseq-mm prepare``; doctor: ``fairseq-mm doctor`` on the data folder;
- train: ten updates by the recipes in ``examples/``, of models of the papers' sizes. On a CPU an
  update has one batch of 1,500 tokens instead of eight (prompts), and 4 videos instead of 120;
- generate: 100 items of the test split; score: their scores;
- rank: the images of the test split against its captions, by vectors (COCO alone);
- score-all: the whole test split, each item with a reference of the item before it;
- store: an epoch of a small model, which reads the whole feature store (How2 alone).

It prints wall time, CPU time and peak memory of all processes of a step, and the exponents with
which CPU time and memory grow from the last fraction but one to the last: 1 is growth with the
release. Ranking may have 2, as it has images times captions. Memory is what no file backs; pages of
mapped files are not counted, since the kernel drops them where others need memory.

Two steps are of small models on a hundredth of a release:

- updates: the memory of a training after 500, 1,000, 1,500 and 2,000 updates;
- workers: whether a data loader without workers, and with workers that are forked or spawned, for
  each epoch or once, trains equal weights.

``--json`` adds the figures to those that the file has, and the tables show all of them. The exit
status is 1 if a step failed, needed more than 16 GB or grew clearly faster than its input.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from _markdown import print_row
from _process_tree import measure
from _training_checks import CHECKS, SMALL, SYSTEMS

from fairseq_mm.cli.arguments import positive

ROOT = Path(__file__).resolve().parents[1]
STEPS = (
    *("make", "prepare", "doctor", "train", "generate", "score", "rank", "score-all", "store"),
    *CHECKS,
)
CHECKED_FRACTION = 0.01
MOST_MEMORY = 16e9
TOLERANCE = 0.15  # of an exponent, over that of the input
SECONDS_TO_COMPARE = 10  # of CPU time; the growth of less says nothing


class Step(NamedTuple):
    """
    Attributes:
        name: one of ``STEPS``.
        of: the architecture, or nothing.
        command: for the shell.
        growth: exponent with which its input grows with the release.
        before: what is made before it, not measured.
    """

    name: str
    of: str
    command: str
    growth: int = 1
    before: Optional[Callable[[], None]] = None


class Run(NamedTuple):
    """A release of some size, where it lies, and what is asked for.

    Attributes:
        release: its folder.
        data: the data folder.
        out: of checkpoints, texts and logs.
        device: cpu or cuda.
        updates: of a training.
        items: to generate.
    """

    release: Path
    data: Path
    out: Path
    device: str
    updates: int
    items: int

    def train(self, arch: str, command: str, on_cpu: str = "") -> Step:
        """
        Args:
            arch: the architecture.
            command: up to the options.
            on_cpu: options for smaller batches there.
        """
        command += f" --max-update {self.updates} --disable-validation --log-interval 1"
        return Step("train", arch, command + (f" --cpu {on_cpu}" if self.device == "cpu" else ""))

    def generate(self, arch: str, command: str) -> Step:
        options = f"--checkpoint {self.out}/{arch} --output {self.out}/{arch}.jsonl"
        return Step("generate", arch, f"{command} {options} --device {self.device}")

    def score(self, arch: str, preset: str) -> Step:
        options = f"--data {self.data} --split test --preset {preset}"
        return Step("score", arch, f"fairseq-mm score {self.out}/{arch}.jsonl {options}")

    def score_all(self, preset: str) -> Step:
        step = self.score("all", preset)
        return step._replace(name="score-all", of="", before=self._write_all)

    def _write_all(self) -> None:
        """``all.jsonl``: each item of the test split with a reference of the item before it."""
        with open(self.data / "test.references.jsonl", encoding="utf-8") as file:
            items = [json.loads(line) for line in file]
        with open(self.out / "all.jsonl", "w", encoding="utf-8") as file:
            for item, other in zip(items, items[-1:] + items):
                line = {"id": item["id"], "hypothesis": other["references"][0]}
                file.write(json.dumps(line) + "\n")


def writingprompts_steps(run: Run) -> Iterator[Step]:
    data, out = run.data, run.out
    yield Step("prepare", "", f"fairseq-mm prepare writingprompts {run.release} --output {data}")
    yield Step("doctor", "", f"fairseq-mm doctor --data {data}")
    first, second = "conv_story_gated", "conv_story_fusion"
    recipes = {
        first: f"2_train_seq2seq.sh {data} {out}/{first} {first}",
        second: f"3_train_fusion.sh {data} {out}/{second} {out}/{first}/checkpoint_last.pt",
    }
    for arch, recipe in recipes.items():
        yield run.train(arch, f"examples/hierarchical_story/{recipe}", "--max-tokens 1500")
        prompts = f"head -n {run.items} {data}/text/test.wp_source > {out}/prompts.txt"
        tell = f"fairseq-mm tell --prompts {out}/prompts.txt --jsonl"
        yield run.generate(arch, f"{prompts} && {tell}")
        yield run.score(arch, "wp")


def vist_steps(run: Run) -> Iterator[Step]:
    data, store = run.data, f"{run.release}/features.h5"
    prepare = f"fairseq-mm prepare vist {run.release} --features {store} --output {data}"
    yield Step("prepare", "", f"{prepare} && ln -f {store} {data}")
    yield Step("doctor", "", f"fairseq-mm doctor --data {data}")
    for arch in ("glac", "transtory_xl"):
        recipe = "examples/visual_storytelling/1_train.sh"
        yield run.train(arch, f"{recipe} {data} {run.out}/{arch} {arch}")
        tell = f"fairseq-mm tell --data {data} --split test --limit {run.items} --jsonl"
        yield run.generate(arch, tell)
        yield run.score(arch, "vist")
    yield run.score_all("vist")


def coco_steps(run: Run) -> Iterator[Step]:
    data, store = run.data, f"{run.release}/features.h5"
    prepare = f"fairseq-mm prepare coco {run.release}/dataset_coco.json --split karpathy"
    options = f"--features {store} --output {data}"
    yield Step("prepare", "", f"{prepare} {options} && ln -f {store} {data}")
    yield Step("doctor", "", f"fairseq-mm doctor --data {data}")
    recipes = "examples/multimodal_captioning"
    yield run.train("m_rnn", f"{recipes}/train_m_rnn.sh {data} {run.out}/m_rnn m_rnn")
    images = f"$(uniq {data}/test.visual_ids | head -n {run.items})"
    yield run.generate("m_rnn", f"fairseq-mm caption {images} --features {store} --jsonl")
    yield run.score("m_rnn", "coco")
    arch = "vse_lstm"
    yield run.train(arch, f"{recipes}/train_vse.sh {data} {run.out}/{arch} {arch}")
    rank = f"fairseq-mm rank {data} --checkpoint {run.out}/{arch} --split test --top 5"
    command = f"{rank} --device {run.device} --output {run.out}/ranks"
    yield Step("rank", arch, command, growth=2)
    yield run.score_all("coco")


def how2_steps(run: Run) -> Iterator[Step]:
    data, arch = run.data, "vg_bart_base"
    # as many words as BART has subwords; its weights change neither time nor memory
    prepare = f"fairseq-mm prepare how2 {run.release}/text --features {run.release}/features"
    options = f"--dtype float16 --max-words 50260 --output {data}"
    yield Step("prepare", "", f"{prepare} {options}")
    yield Step("doctor", "", f"fairseq-mm doctor --data {data}")
    # vg_bart_fg_vtf of examples/video_summarization/systems.sh without a pretrained model
    train = (
        f"fairseq-train {data} --user-dir fairseq_mm --task video_summarization --arch {arch} "
        "--fusion multi_head --forget-gate on --video-encoder-layers 4 --criterion cross_entropy "
        "--optimizer adam_parameter_groups --lr 3e-5 --added-lr 1.5e-4 --weight-decay 1e-5 "
        "--clip-norm 1 --batch-size 10 --update-freq 12 --required-batch-size-multiple 1 "
        f"--no-epoch-checkpoints --log-format simple --seed 1 --save-dir {run.out}/{arch}"
    )
    yield run.train(arch, train, "--batch-size 4 --update-freq 1")
    items = f"{run.out}/items.jsonl"
    videos = f"head -n {run.items} {data}/test.transcripts.jsonl > {items}"
    summarize = f"fairseq-mm summarize {items} --features {data}/features.h5 --jsonl"
    yield run.generate(arch, f"{videos} && {summarize}")
    yield run.score(arch, "how2")
    yield run.score_all("how2")
    options = f"{SMALL} --max-epoch 1 --cpu --no-save --save-dir {run.out}/store"
    yield Step("store", "vg_bart_tiny", f"fairseq-train {data} {SYSTEMS['how2']} {options}")


STEPS_OF: dict[str, Callable[[Run], Iterator[Step]]] = {
    "writingprompts": writingprompts_steps,
    "vist": vist_steps,
    "coco": coco_steps,
    "how2": how2_steps,
}


def run_sizes(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    """The steps of each release and fraction; figures are saved after each."""
    for name in args.releases:
        for fraction in sorted(args.fraction):
            run = place(args, name, fraction)
            for step in [*make_steps(run, name, fraction), *STEPS_OF[name](run)]:
                if step.name not in args.steps:
                    continue
                found = run_step(run, step)
                steps = figures.setdefault("steps", {}).setdefault(name, {})
                row = steps.setdefault(f"{step.name} {step.of}".strip(), {})
                row.update({"input_growth": step.growth, "command": step.command})
                row.setdefault("fractions", {})[str(fraction)] = found
                save(args, figures)
            remove(args, run)


def run_checks(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Those of each release, on a hundredth of it."""
    checks = [check for check in CHECKS if check in args.steps]
    for name in args.releases if checks else []:
        run = place(args, name, CHECKED_FRACTION)
        if not (run.data / "prepare.json").exists():
            for step in [*make_steps(run, name, CHECKED_FRACTION), *STEPS_OF[name](run)]:
                if step.name in ("make", "prepare"):
                    run_step(run, step)
        for check in checks:
            found = CHECKS[check](name, run.data, run.out, ROOT, environment())
            figures.setdefault("checks", {}).setdefault(name, {})[check] = found
            print(name, check, json.dumps(found), file=sys.stderr, flush=True)
            save(args, figures)
        remove(args, run)


def make_steps(run: Run, name: str, fraction: float) -> list[Step]:
    command = f"python benchmarks/_synthetic_releases.py {name} {run.release} {fraction}"
    return [Step("make", "", f"rm -rf {run.release} && {command}")]


def place(args: argparse.Namespace, name: str, fraction: float) -> Run:
    """Folders of a release at some size."""
    folder = args.folder / f"{name}-{fraction}"
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    return Run(folder / "release", folder / "data", out, args.device, args.updates, args.items)


def remove(args: argparse.Namespace, run: Run) -> None:
    if not args.keep:
        shutil.rmtree(run.out.parent)


def run_step(run: Run, step: Step) -> dict[str, Any]:
    """Measures it, and prints a line."""
    if step.before:
        step.before()
    name = f"{run.out.parent.name} {step.name} {step.of}".rstrip()
    command = ["bash", "-c", f"set -e; {step.command}"]
    log = run.out / "log.txt"
    found = measure(command, log, ROOT, environment(), gpu=run.device == "cuda")
    figures = found._asdict()
    figures["seconds"] = round(found.seconds, 1)
    figures["cpu_seconds"] = round(found.cpu_seconds, 1)
    print(name, json.dumps(figures), file=sys.stderr, flush=True)
    if found.status:
        figures["failed"] = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        print(figures["failed"], file=sys.stderr, flush=True)
    return figures


def environment() -> dict[str, str]:
    """The checkout's package, and the commands of this Python."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    package = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PATH": os.pathsep.join(folders), "PYTHONPATH": os.pathsep.join(filter(None, package))}


def save(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def growth(fractions: dict[str, dict[str, Any]], figure: str) -> Optional[float]:
    """The exponent between the largest fraction and the one before it; None where there is one."""
    known = [size for size, found in fractions.items() if not found["status"]]
    if len(known) < 2:
        return None
    small, large = sorted(known, key=float)[-2:]
    ratio = fractions[large][figure] / max(fractions[small][figure], 1e-9)
    return math.log(max(ratio, 1e-9)) / math.log(float(large) / float(small))


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong with a step."""
    found = []
    fractions, most = row["fractions"], row["input_growth"] + TOLERANCE
    for size, figures in fractions.items():
        if figures["status"]:
            found.append(f"failed at {size}")
        if figures["anonymous"] > MOST_MEMORY:
            found.append(f"more than {MOST_MEMORY / 1e9:g} GB at {size}")
    is_long = max(x["cpu_seconds"] for x in fractions.values()) > SECONDS_TO_COMPARE
    for figure in ("cpu_seconds", "anonymous"):
        exponent = growth(fractions, figure)
        if exponent is not None and exponent > most and is_long:
            found.append(f"{figure} grows too fast")
    return found


def print_tables(figures: dict[str, Any]) -> bool:
    """
    Returns:
        is_fine: no step failed, or needs or grows too much; and the checks hold.
    """
    is_fine = True
    columns = ["release", "step", "fractions", "wall, s", "CPU, s", "memory, GB"]
    columns += ["growth of CPU time", "of memory", "fault"]
    print_row(columns)
    print_row(["---"] * len(columns))
    for name, steps in figures.get("steps", {}).items():
        for step, row in steps.items():
            sizes = sorted(row["fractions"], key=float)
            by_size = [row["fractions"][size] for size in sizes]
            exponents = [growth(row["fractions"], x) for x in ("cpu_seconds", "anonymous")]
            wrong = faults(row)
            is_fine = is_fine and not wrong
            cells = [
                " / ".join(sizes),
                " / ".join(f"{found['seconds']:.0f}" for found in by_size),
                " / ".join(f"{found['cpu_seconds']:.0f}" for found in by_size),
                " / ".join(f"{found['anonymous'] / 1e9:.2f}" for found in by_size),
                *("" if x is None else f"{x:.2f}" for x in exponents),
                ", ".join(wrong),
            ]
            print_row([name, step, *cells])
    if "checks" in figures:
        print()
        print_row(["release", "check", "found"])
        print_row(["---"] * 3)
    for name, checks in figures.get("checks", {}).items():
        for check, found in checks.items():
            print_row([name, check, found["summary"]])
            is_fine = is_fine and found["holds"]
    return is_fine


def share(text: str) -> float:
    """A number above 0, at most 1."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, but is {text!r}")


def parse_arguments() -> argparse.Namespace:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="for releases, data and checkpoints")
    add("--releases", nargs="+", choices=STEPS_OF, default=list(STEPS_OF), help="default: all")
    add("--steps", nargs="+", choices=STEPS, default=STEPS, help="default: all")
    add("--fraction", nargs="+", type=share, default=[0.25, 0.5, 1], help="default: 0.25 0.5 1")
    add("--updates", type=positive, default=10, help="of a training (default: 10)")
    add("--items", type=positive, default=100, help="to generate (default: 100)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", choices=["cuda", "cpu"], default=device, help=f"default here: {device}")
    add("--keep", action="store_true", help="keep what was made; later runs may leave steps out")
    add("--json", type=Path, help="add the figures to this file")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    return args


def main() -> int:
    args = parse_arguments()
    known = args.json is not None and args.json.exists()
    figures = json.loads(args.json.read_text(encoding="utf-8")) if known else {}
    run_sizes(args, figures)
    run_checks(args, figures)
    return 0 if print_tables(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
