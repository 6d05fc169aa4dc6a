"""Kills commands and trainings, runs them again, and compares what they write.

  python tests/kills/run_kills.py --kills 300 --seed 1
  python tests/kills/run_kills.py --kills 100 --commands fairseq-train
  python tests/kills/run_kills.py --kills 50 --commands "fairseq-mm prepare" "fairseq-mm extract"

Each command of `fairseq-mm` that writes files, and training of every system (which writes a
checkpoint after each update), runs once undisturbed. Then it is ended by SIGKILL: at a moment of
its duration, just before it opens a file to write, renames or removes one, or some microseconds
later. Half of the kills take its worker processes too. The same command line follows, and one time
in four it is killed again.

A loss is: a file that is cut or has another content than the undisturbed run's, after the kill or
at the end; a file that the resumed run leaves behind; a resumed run that fails. Weights,
optimizer's state and losses of a training are to be equal to the last bit. Each loss is printed
with its number; `--only NUMBER` with the same `--seed` and `--commands` draws the same kill again.
"""

import argparse
import contextlib
import importlib
import io
import logging
import multiprocessing
import os
import pickle
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from kill_targets import TARGETS, Target, make_inputs

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS)]

import quick_configuration  # noqa: E402
import run_fuzz  # noqa: E402
from compare_outputs import differences, is_whole, unfinished  # noqa: E402
from forked_shell import IMPORTED_ONCE, call_program  # noqa: E402

import fairseq_mm  # noqa: E402

LIMIT_SECONDS = 300
AGAIN = 0.25
# losses of one kill that are printed
SHOWN = 5
# a command that was killed when all was written may say so
FINISHED = 2


class Plan(NamedTuple):
    """When a run is killed: after ``seconds``, or ``delay`` seconds after a write.

    Attributes:
        seconds: from its start, or None.
        write: number of the write, from 1.
        delay: 0 kills before it.
        is_group: its workers are killed, too.
    """

    seconds: Optional[float]
    write: int
    delay: float
    is_group: bool

    def __str__(self) -> str:
        moment = f"before write {self.write}"
        if self.seconds is not None:
            moment = f"after {self.seconds:.3f} s"
        elif self.delay:
            moment = f"{self.delay * 1e6:.0f} us after write {self.write}"
        return f"killed {moment}{' with its workers' if self.is_group else ''}"


class Whole(NamedTuple):
    """An undisturbed run: its files, duration, and number of writes."""

    folder: Path
    seconds: float
    writes: int


class Ended(NamedTuple):
    """
    Attributes:
        status: exit status; minus the signal that ended it.
        process: of the command, and of its group.
        seconds: that it ran.
        output: all that was printed.
    """

    status: int
    process: int
    seconds: float
    output: str


class Outcome(NamedTuple):
    """
    Attributes:
        target: what was killed.
        plans: when, the first time and while it resumed.
        is_killed: the first of them came before the end.
        losses: none if all is well.
    """

    target: Target
    plans: list[Plan]
    is_killed: bool
    losses: list[str]


class Killer:
    """
    Args:
        root: the inputs of :func:`.make_inputs`.
        folder: empty; commands write in it.
        seed: of the kills.
        targets: killed in turn.
    """

    def __init__(
        self, root: Path, folder: Path, *, seed: int, targets: Sequence[Target] = TARGETS
    ) -> None:
        self.root, self.folder, self.seed, self.targets = root, folder, seed, targets
        self.out, self.writes = folder / "out", folder / "writes"
        self._whole: dict[str, Whole] = {}

    def run(self, number: int) -> Outcome:
        """A kill of a command, and often further ones while it resumes."""
        target = self.targets[number % len(self.targets)]
        generator = random.Random(f"{self.seed} {number}")
        try:
            whole = self.undisturbed(target)
        except RuntimeError as error:
            return Outcome(target, [], False, [str(error)])
        plans = [self._plan(whole, generator)]
        while generator.random() < AGAIN:
            plans.append(self._plan(whole, generator))
        return self.kill(target, plans)

    def kill(self, target: Target, plans: Sequence[Plan]) -> Outcome:
        """Kills a command and each resumption of it as planned, unless it ends before, and then
        lets it end.

        Raises:
            RuntimeError: if the undisturbed command fails.
        """
        whole = self.undisturbed(target)
        self._lay_out(target)
        done, groups, losses = [], [], []
        for plan in (*plans, None):
            was_whole = bool(done) and is_whole(whole.folder, self.out)
            ended = self._call(target, plan)
            groups.append(ended.process)
            if plan is not None:
                done.append(plan)
            if plan is None or ended.status >= 0:
                break
            losses += unfinished(whole.folder, self.out, target.given)
        for process in groups:
            _end_group(process)
        losses += [f"at the end {x}" for x in differences(whole.folder, self.out)]
        if ended.status != 0 and not (ended.status == FINISHED and was_whole):
            losses.append(f"status {ended.status}: {_last_line(ended.output)}")
        is_killed = plan is None or len(done) > 1
        return Outcome(target, done, is_killed, losses)

    def _lay_out(self, target: Target) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        target.lay_out(self.root, self.out)

    def undisturbed(self, target: Target) -> Whole:
        """
        Raises:
            RuntimeError: if the command fails, or writes something else the second time.
        """
        if target.command not in self._whole:
            folder = self.folder / f"whole{len(self._whole)}"
            self._run_undisturbed(target)
            self.out.rename(folder)
            ended = self._run_undisturbed(target)
            changed = differences(folder, self.out)
            if changed:
                raise RuntimeError(f"two undisturbed runs differ: {changed[0]}")
            writes = int(self.writes.read_text())
            self._whole[target.command] = Whole(folder, ended.seconds, writes)
        return self._whole[target.command]

    def _run_undisturbed(self, target: Target) -> Ended:
        self._lay_out(target)
        ended = self._call(target, None)
        if ended.status:
            raise RuntimeError(f"undisturbed: status {ended.status}: {ended.output[-2000:]}")
        return ended

    def _plan(self, whole: Whole, generator: random.Random) -> Plan:
        kind = generator.choice(("moment", "write", "after a write"))
        share, write = generator.random(), generator.randint(1, max(1, whole.writes))
        delay, is_group = 10 ** generator.uniform(-5, -2), generator.random() < 0.5
        if kind == "moment":
            return Plan(share * whole.seconds, 0, 0.0, is_group)
        return Plan(None, write, delay if kind == "after a write" else 0.0, is_group)

    def _call(self, target: Target, plan: Optional[Plan]) -> Ended:
        log = self.folder / "output"
        start = time.monotonic()
        with open(log, "wb") as file:
            child = os.fork()
            if not child:
                _become(target.words(self.out), self.root, file.fileno(), self, plan)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        limit = LIMIT_SECONDS if plan is None or plan.seconds is None else plan.seconds
        handle = os.pidfd_open(child)
        try:
            if not select.select([handle], [], [], limit)[0]:
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        finally:
            os.close(handle)
        if plan is not None and plan.is_group:
            _end_group(child)
        seconds = time.monotonic() - start
        output = log.read_text("utf-8", "replace")
        return Ended(os.waitstatus_to_exitcode(status), child, seconds, output)


def _end_group(process: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)


def _last_line(output: str) -> str:
    return ([line for line in output.splitlines() if line.strip()] or [""])[-1][:300]


def _become(words: list[str], root: Path, log: int, killer: Killer, plan: Optional[Plan]) -> None:
    """The child: runs the command, and ends with its status."""
    status = 70
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for number, stream in enumerate((null, log, log)):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (
            os.fdopen(n, "w", closefd=False, errors="replace") for n in (1, 2)
        )
        os.setpgid(0, 0)
        os.chdir(root)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _make_own_locks()
        count = _watch_writes(str(killer.out), plan)
        status = call_program(words[0], words[1:])
        killer.writes.write_text(str(count[0]))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _make_own_locks() -> None:
    """A lock that was made before the fork is one for all runs, and a kill leaves it held."""
    from tqdm.std import TqdmDefaultWriteLock, tqdm

    TqdmDefaultWriteLock.mp_lock = multiprocessing.RLock()
    tqdm.set_lock(TqdmDefaultWriteLock())


CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _watch_writes(out: str, plan: Optional[Plan]) -> list[int]:
    """Counts, in a list of one number, what this process does to files of a folder, and kills it as
    planned."""
    process, count = os.getpid(), [0]

    def watch(event: str, args: tuple) -> None:
        if event == "open":
            if not args[2] & WRITING:
                return
        elif event not in CHANGES:
            return
        if not isinstance(args[0], (str, bytes, os.PathLike)) or os.getpid() != process:
            return
        if not os.path.abspath(os.fsdecode(args[0])).startswith(out):
            return
        count[0] += 1
        if plan is None or count[0] != plan.write:
            return
        if plan.delay:
            signal.setitimer(signal.ITIMER_REAL, plan.delay)
        else:
            os.kill(process, signal.SIGKILL)

    sys.addaudithook(watch)
    return count


class Counts:
    """Outcomes by target."""

    columns = ("kills", "before the end", "again", "equal", "losses")

    def __init__(self) -> None:
        self.by_target: dict[str, list[int]] = {}

    def add(self, outcome: Outcome) -> None:
        row = self.by_target.setdefault(outcome.target.name, [0] * len(self.columns))
        again = len(outcome.plans) > 1
        is_lost = bool(outcome.losses)
        for index, value in enumerate((1, outcome.is_killed, again, not is_lost, is_lost)):
            row[index] += value

    @property
    def losses(self) -> int:
        return sum(row[-1] for row in self.by_target.values())

    def table(self) -> str:
        rows = sorted(self.by_target.items())
        rows.append(("all", [sum(x) for x in zip(*self.by_target.values())]))
        width = max(len(name) for name, _ in rows)
        lines = [f"{'':{width}}" + "".join(f"{x:>16}" for x in self.columns)]
        lines += [f"{name:{width}}" + "".join(f"{x:>16,}" for x in row) for name, row in rows]
        return "\n".join(lines)


def prepare(root: Path) -> None:
    """Imports what commands need, once for all, and makes their inputs."""
    fairseq_mm.register()
    quick_configuration.install()
    for module in (*IMPORTED_ONCE, *run_fuzz.IMPORTED_ONCE):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for path in (Path(fairseq_mm.__file__).parent / "cli").glob("*.py"):
        importlib.import_module(f"fairseq_mm.cli.{path.stem}")
    root.mkdir()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        make_inputs(root)


def run_numbers(
    killer: Killer, numbers: Iterable[int], is_over: Callable[[], bool] = lambda: False
) -> Iterator[Outcome]:
    """Prints losses as they are found; ends before the next kill when ``is_over`` says so."""
    for number in numbers:
        if is_over():
            return
        outcome = killer.run(number)
        for loss in outcome.losses[:SHOWN]:
            plans = "; ".join(map(str, outcome.plans))
            more = f" ({len(outcome.losses)} in all)" if len(outcome.losses) > SHOWN else ""
            print(f"{number}: {outcome.target.name}: {plans}: {loss}{more}", flush=True)
        yield outcome


def run_jobs(
    folder: Path, shares: Sequence[Sequence[int]], until: float, **options: Any
) -> Iterator[Outcome]:
    """Outcomes of numbers, each share of them in a process of its own.

    Raises:
        RuntimeError: if one of the processes fails.
    """
    jobs, parent = {}, os.getpid()

    def is_over() -> bool:
        return time.monotonic() > until or os.getppid() != parent

    for index, numbers in enumerate(shares):
        own = folder / str(index)
        own.mkdir()
        job = os.fork()
        if not job:
            try:
                killer = Killer(folder / "inputs", own, **options)
                outcomes = list(run_numbers(killer, numbers, is_over))
                (own / "outcomes").write_bytes(pickle.dumps(outcomes))
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        jobs[job] = own / "outcomes"
    for job, path in jobs.items():
        os.waitpid(job, 0)
        if not path.exists():
            raise RuntimeError("a process that kills has failed")
        yield from pickle.loads(path.read_bytes())


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=300, help="Number of kills (default: 300).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the kills (default: 1).")
    parser.add_argument("--first", type=int, default=0, help="Number of the first kill.")
    parser.add_argument("--only", type=int, help="Number of one kill, which is told of.")
    parser.add_argument(
        "--commands", nargs="+", default=[""], help="Beginnings of the commands' names."
    )
    parser.add_argument("--jobs", type=int, default=1, help="Processes that kill (default: 1).")
    parser.add_argument("--seconds", type=float, default=1e9, help="Ends after so many seconds.")
    args = parser.parse_args(argv)
    logging.basicConfig(level="ERROR", force=True)
    targets = [target for target in TARGETS if target.name.startswith(tuple(args.commands))]
    if not targets:
        parser.error(f"--commands: no command begins with {' or '.join(args.commands)}")
    until = time.monotonic() + args.seconds
    numbers = range(args.first, args.first + args.kills)
    if args.only is not None:
        numbers = range(args.only, args.only + 1)
    counts = Counts()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder) / "inputs")
        # all kills of a command in one process, which runs it undisturbed once
        shares = [
            [number for number in numbers if number % len(targets) % args.jobs == job]
            for job in range(args.jobs)
        ]
        for outcome in run_jobs(Path(folder), shares, until, seed=args.seed, targets=targets):
            counts.add(outcome)
            if args.only is not None:
                print(outcome)
    print(counts.table())
    return int(counts.losses > 0)


if __name__ == "__main__":
    sys.exit(main())
