"""Changes one operator, constant or condition of the package at a time, and runs its tests.

  python tests/mutants/run_mutants.py --count 300 --seed 1
  python tests/mutants/run_mutants.py --folders metrics --count 50 --json mutants.jsonl
  python tests/mutants/run_mutants.py --only mutants.jsonl --root ../other_checkout

A mutant is killed if a test fails, if the tests do not end in time, or if they cannot be collected.
Each survivor is printed with its place and its change: it needs a test, or a reason why the change
makes no difference. `--only` reads the survivors of an earlier run and tries the same changes in
another checkout (`--root`), so that two versions of the tests can be compared.

The tests of a module are the files of its test folder, those first that name the module, and then
`tests/models/test_contracts.py` for models and modules. Each mutant is written into a copy of the
checkout, so that tests of subprocesses see it, too.
"""

import argparse
import ast
import contextlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).parents[2]
FOLDERS = ("models", "modules", "generation", "metrics", "data", "prepare")
COMPARED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
COMPUTED = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
}
# tests of a mutant that take longer than this count as killed: the change made a loop endless
LIMIT_SECONDS = 300


class Mutant(NamedTuple):
    """One change of the source.

    Attributes:
        file: Path of the module below the root.
        function: Qualified name of the function that is changed.
        line: Line of the change.
        before: Source text that is replaced.
        after: Its replacement.
        place: Number of characters before the change.
    """

    file: str
    function: str
    line: int
    before: str
    after: str
    place: int


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, metavar="N", help="Number of mutants.")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="Seed of the choice.")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="Mutants at a time.")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="DIR", help="Checkout to test.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write one mutant a line.")
    parser.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="PATH",
        help="Further tests, which run after the tests of the module's folder.",
    )
    parser.add_argument("--only", type=Path, metavar="FILE", help="Try the survivors of FILE.")
    args = parser.parse_args()
    root = args.root.resolve()
    for path in args.also:
        # pytest ends with an error on a path that is missing, as if a test had failed
        if not (root / path).exists():
            parser.error(f"--also {path}: there is no such file in {root}")
    if args.only:
        mutants = list(read_survivors(args.only, root))
    else:
        everything = [m for folder in args.folders for m in list_mutants(root, folder)]
        mutants = random.Random(args.seed).sample(everything, min(args.count, len(everything)))
    with multiprocessing.get_context("spawn").Pool(
        args.jobs, start_worker, (str(root), args.also)
    ) as pool:
        outcomes = {"killed": 0, "survived": 0}
        for number, (mutant, outcome, seconds) in enumerate(pool.imap(try_mutant, mutants), 1):
            outcomes[outcome] += 1
            print(f"{number}/{len(mutants)} {outcome} {seconds:.0f} s {mutant.file}:{mutant.line}")
            if outcome == "survived":
                print(f"    {mutant.function}: {mutant.before} -> {mutant.after}", flush=True)
            if args.json:
                with open(args.json, "a", encoding="utf-8") as file:
                    file.write(json.dumps({**mutant._asdict(), "outcome": outcome}) + "\n")
    print(", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()))
    return 0


def read_survivors(path: Path, root: Path) -> Iterator[Mutant]:
    """Yield the survivors of an earlier run that exist in a checkout."""
    known: dict[str, list[Mutant]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        if fields.pop("outcome") != "survived":
            continue
        survivor = Mutant(**fields)
        if survivor.file not in known:
            known[survivor.file] = list_file(root, survivor.file)
        same = [m for m in known[survivor.file] if m[1] == survivor[1] and m[3:5] == survivor[3:5]]
        # the same change can be possible several times in one function: any of them will do
        if same:
            yield same[0]
        else:
            print(f"not in {root}: {survivor.file} {survivor.function}: {survivor.before}")


# Mutants --------------------------------------------------------------------------------------


def list_mutants(root: Path, folder: str) -> list[Mutant]:
    files = sorted((root / "fairseq_mm" / folder).rglob("*.py"))
    return [m for file in files for m in list_file(root, str(file.relative_to(root)))]


def list_file(root: Path, file: str) -> list[Mutant]:
    path = root / file
    if not path.exists():
        return []
    source = path.read_text(encoding="utf-8")
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants: list[Mutant] = []

    def add(node: ast.expr, function: str, after: str) -> None:
        # the parser counts columns in bytes
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source.encode()[begin:end].decode()
        place = len(source.encode()[:begin].decode())
        mutants.append(Mutant(file, function, node.lineno, before, after, place))

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)):
            return  # messages: other tests compare them
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}" if function else node.name
            for statement in node.body:
                visit(statement, function)
            return  # decorators, annotations and defaults stay
        if function and isinstance(node, ast.AnnAssign):
            if node.value is not None:
                visit(node.value, function)
            return
        if function and isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            add(node, function, f"({left} {COMPARED[type(node.ops[0])]} {right})")
        if function and isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            add(node, function, f"(({left}) {COMPUTED[type(node.op)]} ({right}))")
        if function and isinstance(node, ast.BoolOp):
            other = " and " if isinstance(node.op, ast.Or) else " or "
            add(node, function, f"({other.join(f'({ast.unparse(v)})' for v in node.values)})")
        if function and isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            add(node, function, f"bool({ast.unparse(node.operand)})")
        if function and isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                add(node, function, str(not node.value))
            elif isinstance(node.value, (int, float)):
                add(node, function, str(node.value + 1))
        if function and isinstance(node, (ast.If, ast.IfExp, ast.While)):
            add(node.test, function, f"(not ({ast.unparse(node.test)}))")
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), "")
    return mutants


# Tests ----------------------------------------------------------------------------------------


def choose_tests(root: Path, file: str) -> list[str]:
    """Return the test files of a module, those first that name it."""
    folder, module = Path(file).parts[1], Path(file).stem.lstrip("_")
    tests = sorted((root / "tests" / folder).glob("test_*.py"))
    if folder in ("models", "modules"):
        tests = sorted({*tests, root / "tests" / "models" / "test_contracts.py"})

    def rank(test: Path) -> int:
        if module in test.stem:
            return 0
        return 1 if re.search(rf"\b_?{module}\b", test.read_text(encoding="utf-8")) else 2

    return [str(test.relative_to(root)) for test in sorted(tests, key=rank)]


_copy: Optional[Path] = None
_also: list[str] = []


def start_worker(root: str, also: list[str]) -> None:
    """Copy the checkout, and import what no mutant changes."""
    global _copy, _also
    _also = also
    _copy = Path(tempfile.mkdtemp(prefix="mutants-")) / "checkout"
    shutil.copytree(
        root, _copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "site", "demo")
    )
    os.chdir(_copy)
    os.environ.update(PYTHONPATH=str(_copy), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    # real data lies beside the real checkout
    os.environ.setdefault("FAIRSEQ_MM_DATA", str(Path(root).parent / "shared" / "data"))
    sys.path[:] = [str(_copy), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    sys.dont_write_bytecode = True
    with contextlib.redirect_stderr(open(os.devnull, "w")):
        import fairseq.tasks  # noqa: F401
        import h5py  # noqa: F401
        import pytest  # noqa: F401
        import torchvision  # noqa: F401
    for name in [name for name in sys.modules if name.partition(".")[0] == "fairseq_mm"]:
        del sys.modules[name]


def try_mutant(mutant: Mutant) -> tuple[Mutant, str, float]:
    """Write a mutant, run its tests in a forked process, and restore the file."""
    assert _copy is not None
    path, start = _copy / mutant.file, time.monotonic()
    source = path.read_text(encoding="utf-8")
    end = mutant.place + len(mutant.before)
    assert source[mutant.place : end] == mutant.before
    path.write_text(source[: mutant.place] + mutant.after + source[end:], encoding="utf-8")
    try:
        outcome = "survived" if run_tests([*choose_tests(_copy, mutant.file), *_also]) else "killed"
    finally:
        path.write_text(source, encoding="utf-8")
    return mutant, outcome, time.monotonic() - start


def run_tests(tests: Sequence[str]) -> bool:
    """Return whether all tests pass in time."""
    child = os.fork()
    if child == 0:
        os.setsid()
        devnull = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(devnull, stream)
        status = 3
        try:
            import pytest

            options = ["-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
            status = int(pytest.main([*options, *tests]))
        finally:
            os._exit(status)
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


if __name__ == "__main__":
    sys.exit(main())
