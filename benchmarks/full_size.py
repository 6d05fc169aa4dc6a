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
- score-all: the whole test split, each item with a reference of the item before it.

It prints wall time, CPU time and peak memory of all processes of a step, and the exponents with
which CPU time and memory grow from the last fraction but one to the last: 1 is growth with the
release. Ranking may have 2, as it has images times captions. Memory is what no file backs; pages of
mapped files are not counted, since the kernel drops them where others need memory.

``--json`` adds the figures to those that the file has, and the tables show all of them. The exit
status is 1 if a step failed, needed more than 16 GB or grew clearly faster than its input.
"""

import argparse
import contextlib
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from _markdown import print_row

from fairseq_mm.cli.arguments import positive
from fairseq_mm.data.records import open_split

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("make", "prepare", "doctor", "train", "generate", "score", "rank", "score-all")
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
        items = list(open_split(self.data, "test").references().items())
        with open(self.out / "all.jsonl", "w", encoding="utf-8") as file:
            for (key, _), (_, references) in zip(items, items[-1:] + items):
                line = {"id": key, "hypothesis": references[0]}
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
        prompts = f"head -n {run.items} {run.release}/test.wp_source > {out}/prompts.txt"
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
        tell = f"fairseq-mm tell {data} --split test --limit {run.items} --jsonl"
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
    ids = """grep -o '"id": "[^"]*"' | cut -d '"' -f 4"""
    images = f"$(head -n {run.items} {data}/test.jsonl | {ids})"
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
    videos = f"head -n {run.items} {data}/test.jsonl > {items}"
    summarize = f"fairseq-mm summarize {items} --features {data}/features.h5 --jsonl"
    yield run.generate(arch, f"{videos} && {summarize}")
    yield run.score(arch, "how2")
    yield run.score_all("how2")


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
    found = measure(command, log)
    figures = found._asdict()
    figures["seconds"] = round(found.seconds, 1)
    figures["cpu_seconds"] = round(found.cpu_seconds, 1)
    print(name, json.dumps(figures), file=sys.stderr, flush=True)
    if found.status:
        figures["failed"] = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        print(figures["failed"], file=sys.stderr, flush=True)
    return figures


def save(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


class Measured(NamedTuple):
    """Cost of a command with all its processes.

    Attributes:
        status: Exit status.
        seconds: Wall time.
        cpu_seconds: CPU time of all processes, user and system.
        anonymous: Peak in bytes of the memory of all processes that no file backs; a page that
            several processes share counts once.
    """

    status: int
    seconds: float
    cpu_seconds: float
    anonymous: int


def measure(command: Sequence[str], log: Path) -> Measured:
    """Run a command in a session of its own, and look at its memory four times a second."""
    peak, start = 0, time.perf_counter()
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    package = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    paths = {"PATH": folders, "PYTHONPATH": [x for x in package if x]}
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **{name: os.pathsep.join(x) for name, x in paths.items()}},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            peak = max(peak, session_memory(process.pid))
            time.sleep(0.25)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    return Measured(process.returncode, seconds, usage.ru_utime + usage.ru_stime, peak)


def session_memory(session: int) -> int:
    """Return the memory of a session's processes that no file backs, in bytes."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            # pid (name) state ppid pgrp session: the name may hold anything
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                for line in (folder / "smaps_rollup").read_text().splitlines()[1:]:
                    name, _, value = line.partition(":")
                    if name in ("Pss_Anon", "Pss_Shmem"):
                        total += 1024 * int(value.split()[0])
    return total


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
        is_fine: no step failed, or needs or grows too much.
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
    return 0 if print_tables(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
