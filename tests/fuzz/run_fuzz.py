"""Runs commands on damaged inputs, each in a process with limits, and counts what they do.

  python tests/fuzz/run_fuzz.py --inputs 100000 --seed 1

A command may refuse an input with status 2 and a line that says why, or accept it. Faults are a
traceback, no answer within 10 seconds, more than 2 GB of memory, a process that a signal ends, and
a damaged index of a text that `doctor` does not notice. Each is printed with its number; `--only
NUMBER` with the same `--seed` and `--targets` runs it again, and shows what it prints.
"""

import argparse
import collections
import contextlib
import importlib
import io
import logging
import os
import random
import re
import resource
import runpy
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from fuzz_targets import TARGETS, Target, make_inputs
from mutations import mutate

LIMIT_SECONDS = 10
# what waits for others' work gets as many times more
PATIENCE = 6
LIMIT_BYTES = 2 << 30
VERDICTS = ("refused", "accepted", "traceback", "hang", "memory", "killed", "missed")
FAULTS = VERDICTS[2:]
# sizes of the lines of a text, of which a check may let no damaged bit pass
INDEX = ".idx"
IMPORTED_ONCE = (
    *("fairseq_cli.generate", "fairseq_cli.preprocess", "torchvision", "jinja2", "PIL.Image"),
    *("matplotlib.figure", "h5py", "sacrebleu", "rouge_score.rouge_scorer"),
)
# of quick targets to one of slow ones
ROUNDS = 8


class Outcome(NamedTuple):
    """
    Attributes:
        verdict: one of ``VERDICTS``.
        message: last line of standard error, or the place of a traceback.
        seconds: of the processor.
        output: all that was printed.
    """

    verdict: str
    message: str
    seconds: float
    output: str


class Fuzzer:
    """
    Args:
        folder: empty; inputs are made in it.
        seed: of the damage.
        targets: what is fuzzed in turn.
    """

    def __init__(self, folder: Path, *, seed: int, targets: Sequence[Target] = TARGETS) -> None:
        import fairseq_mm

        fairseq_mm.register()
        for module in IMPORTED_ONCE:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        for path in (Path(fairseq_mm.__file__).parent / "cli").glob("*.py"):
            importlib.import_module(f"fairseq_mm.cli.{path.stem}")
        self.root, self.seed = folder / "inputs", seed
        self.root.mkdir()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            make_inputs(self.root)
        self.out = folder / "out"
        self.files = [(target, target.paths(self.root)) for target in targets]
        quick = [entry for entry in self.files if not entry[0].is_slow]
        self.files += quick * (ROUNDS - 1)

    def damaged(self, number: int) -> tuple[Target, str, bytes, bytes]:
        """Target, file, its content and the damaged content of an input."""
        target, files = self.files[number % len(self.files)]
        generator = random.Random(f"{self.seed} {number}")
        name = generator.choice(files)
        content = (self.root / name).read_bytes()
        return target, name, content, mutate(content, name, generator)

    def run(self, number: int) -> Outcome:
        target, name, content, damaged = self.damaged(number)
        path = self.root / name
        path.write_bytes(damaged)
        try:
            outcome = self.run_target(target)
        finally:
            path.write_bytes(content)
        if outcome.verdict == "accepted" and name.endswith(INDEX) and target.looks_at_all:
            return outcome._replace(verdict="missed", message=f"{name} is damaged")
        return outcome

    def run_target(self, target: Target) -> Outcome:
        """The target's command on what stands in the folder; anew, where it got no processor."""
        outcome = self._run_target(target, LIMIT_SECONDS)
        if outcome.verdict == "hang" and outcome.seconds < LIMIT_SECONDS / 2:
            return self._run_target(target, PATIENCE * LIMIT_SECONDS)
        return outcome

    def _run_target(self, target: Target, limit: float) -> Outcome:
        self.out.mkdir()
        log = self.out.with_name("log")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            with open(log, "wb") as file:
                child = os.fork()
                if not child:
                    _become(target, self.root, str(self.out), file.fileno())
            status, usage, is_hang = _wait(child, limit)
        finally:
            shutil.rmtree(self.out, ignore_errors=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        grown = max(0, usage.ru_maxrss * 1024 - _resident())
        output = log.read_bytes().decode("utf-8", "replace")
        return Outcome(*_judged(status, is_hang, grown, output), seconds, output)


def _become(target: Target, root: Path, out: str, log: int) -> None:
    """The child: runs the command, and ends with its status."""
    status = 70
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout, sys.stderr = (
            os.fdopen(n, "w", closefd=False, errors="replace") for n in (1, 2)
        )
        os.setpgid(0, 0)
        os.chdir(root)
        # more than what is judged, so that a reader's own limit does not depend on it
        resource.setrlimit(resource.RLIMIT_AS, (_virtual() + 2 * LIMIT_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        logging.basicConfig(level="ERROR", stream=sys.stderr, force=True)
        words = target.words(out)
        if words[0] == "fairseq-generate":
            status = _fairseq_generate(words[1:])
        elif words[0] == "python":
            sys.argv = words[1:]
            sys.path.insert(0, str(Path(words[1]).parent))
            runpy.run_path(words[1], run_name="__main__")
        else:
            from fairseq_mm.cli.main import main

            sys.argv = ["fairseq-mm", *words]
            status = main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 70)


def _fairseq_generate(words: list[str]) -> int:
    """As a program does it, which prints the line of a user's error."""
    from fairseq_cli import generate

    from fairseq_mm.errors import report_on_exit

    sys.argv = [
        "fairseq-generate",
        *words,
        "--user-dir",
        str(Path(__file__).parents[2] / "fairseq_mm"),
    ]
    report_on_exit()
    try:
        generate.cli_main()
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _wait(child: int, limit: float) -> tuple[int, resource.struct_rusage, bool]:
    """Status and use of a child, and whether it was ended at the limit."""
    handle = os.pidfd_open(child)
    try:
        is_hang = not select.select([handle], [], [], limit)[0]
    finally:
        os.close(handle)
    if is_hang:
        _end(child)
    _, status, usage = os.wait4(child, 0)
    # what it has started
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    return status, usage, is_hang


def _end(child: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)


def _judged(status: int, is_hang: bool, grown: int, output: str) -> tuple[str, str]:
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if is_hang:
        return "hang", f"no answer in {LIMIT_SECONDS} s"
    if os.WIFSIGNALED(status):
        return "killed", f"signal {os.WTERMSIG(status)}: {last}"
    if grown > LIMIT_BYTES:
        return "memory", f"{grown >> 20} MiB: {last}"
    code = os.WEXITSTATUS(status)
    if "Traceback (most recent call last)" in output:
        places = re.findall(r'File "(.*?)", line (\d+)', output)
        own = [place for place in places if "/fairseq_mm/" in place[0]]
        file, line = (own or places or [("?", "?")])[-1]
        return "traceback", f"{file.rpartition('fairseq_mm/')[2]}:{line}: {last[:200]}"
    if code == 0:
        return "accepted", last
    if code == 2 and lines:
        return "refused", last
    return "traceback", f"status {code}: {last[:200]}"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _virtual() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class Counts:
    """Verdicts by target, and the places of faults."""

    def __init__(self) -> None:
        self.by_target: dict[str, collections.Counter[str]] = {}
        self.places: collections.Counter[str] = collections.Counter()
        self.seconds = 0.0

    def add(self, target: Target, outcome: Outcome) -> bool:
        """Whether it is a fault at a place that was not seen before."""
        self.by_target.setdefault(target.name, collections.Counter())[outcome.verdict] += 1
        self.seconds += outcome.seconds
        if outcome.verdict not in FAULTS:
            return False
        place = f"{outcome.verdict} {target.name.split()[0]} {outcome.message[:40]}"
        self.places[place] += 1
        return self.places[place] == 1

    @property
    def faults(self) -> int:
        return sum(self.places.values())

    def table(self) -> str:
        rows = sorted(self.by_target.items())
        rows.append(("all", sum(self.by_target.values(), collections.Counter())))
        width = max(len(name) for name, _ in rows)
        lines = [f"{'':{width}} {'inputs':>9}" + "".join(f"{x:>11}" for x in VERDICTS)]
        for name, counts in rows:
            cells = "".join(f"{counts[x]:>11,}" for x in VERDICTS)
            lines.append(f"{name:{width}} {sum(counts.values()):>9,}{cells}")
        return "\n".join(lines)


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--inputs", type=int, default=1000, help="Number of inputs (default: 1000)."
    )
    parser.add_argument("--seed", type=int, default=1, help="Seed of the damage (default: 1).")
    parser.add_argument("--first", type=int, default=0, help="Number of the first input.")
    parser.add_argument("--only", type=int, help="Number of one input, whose output is printed.")
    parser.add_argument("--targets", default="", help="Beginning of the targets' names.")
    parser.add_argument("--seconds", type=float, help="Ends after so many seconds.")
    args = parser.parse_args(argv)
    targets = [target for target in TARGETS if target.name.startswith(args.targets)]
    counts = Counts()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), seed=args.seed, targets=targets)
        if args.only is not None:
            target, name, _, damaged = fuzzer.damaged(args.only)
            outcome = fuzzer.run(args.only)
            print(f"{target.command}\n{name}: {damaged[:3000]!r}\n{outcome.output}")
            print(f"{outcome.verdict}: {outcome.message}")
            return int(outcome.verdict in FAULTS)
        for number in range(args.first, args.first + args.inputs):
            outcome = fuzzer.run(number)
            target, name, *_ = fuzzer.damaged(number)
            if counts.add(target, outcome):
                print(
                    f"{number}: {target.name}: {name}: {outcome.verdict}: {outcome.message}",
                    flush=True,
                )
            if args.seconds and time.monotonic() - start > args.seconds:
                break
    print(counts.table())
    print(
        f"{counts.faults} faults at {len(counts.places)} places; {counts.seconds:.0f} CPU seconds"
    )
    return int(counts.faults > 0)


if __name__ == "__main__":
    sys.exit(main())
