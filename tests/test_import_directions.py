"""Every module of the package lies in a folder with a rule, and imports run one way."""

import ast
from pathlib import Path

import pytest

import fairseq_mm

PACKAGE = Path(fairseq_mm.__file__).parent
ROOT_MODULES = {"__init__", "__main__", "errors", "extension", "plugins"}
# what each folder may import of the package; `errors` is open to all
ALLOWED = {
    "compat": set(),
    "modules": set(),
    "metrics": {"data"},
    "optim": set(),
    "data": set(),
    "ngrams": {"data"},
    "models": {"compat", "modules"},
    "criterions": {"modules", "metrics"},
    "generation": {"data"},
    "prepare": {"data"},
    "tasks": {"compat", "data", "generation", "metrics"},
    "retrieval": {"data", "metrics"},
    "extract": {"compat", "data"},
    "inference": {
        *("compat", "data", "extract", "generation", "models", "ngrams", "prepare"),
        *("retrieval", "tasks"),
    },
    "conversion": {"compat", "data", "extract", "models", "modules", "tasks"},
    "analysis": {"data", "inference", "models", "retrieval", "tasks"},
    "report": {"analysis", "data", "extract", "metrics"},
}
# the top, which may import everything
TOP = {"cli"}
# fairseq may be imported by what is registered with it and by what reads its data
WITHOUT_FAIRSEQ = {"metrics", "extract", "ngrams", "report"}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules():
    """Folder (the file's name in the root) and path of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        first = path.relative_to(PACKAGE).parts[0]
        yield first.removesuffix(".py"), path


def unruled(names):
    return sorted(set(names) - set(ALLOWED) - TOP - ROOT_MODULES)


def test_every_module_lies_in_a_folder_with_a_rule():
    assert unruled(part for part, _ in modules()) == []
    assert unruled(["models", "captioner"]) == ["captioner"]


def test_the_rules_have_no_cycle():
    placed = set()
    while len(placed) < len(ALLOWED):
        ready = {part for part in ALLOWED if part not in placed and ALLOWED[part] <= placed}
        assert ready, f"a cycle among {sorted(set(ALLOWED) - placed)}"
        placed |= ready


def wrong_imports():
    for part, path in modules():
        if part in TOP or part in ("__init__", "__main__", "extension"):
            continue
        allowed = ALLOWED.get(part, set()) | {"errors", part}
        for name in imports_of(path):
            pieces = name.split(".")
            if pieces[0] != "fairseq_mm" or len(pieces) < 2 or pieces[1] in allowed:
                continue
            if (PACKAGE / pieces[1]).exists() or (PACKAGE / f"{pieces[1]}.py").exists():
                yield f"{path.relative_to(PACKAGE)} imports {name}"


def test_imports_run_one_way():
    assert list(wrong_imports()) == []


@pytest.mark.parametrize(
    ("parts", "library"),
    [
        (WITHOUT_FAIRSEQ, {"fairseq", "fairseq_cli"}),
        ({"metrics"}, {"torch"}),
    ],
)
def test_some_folders_do_without_a_library(parts, library):
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for part, path in modules()
        if part in parts
        for name in imports_of(path)
        if name.split(".")[0] in library
    ]
    assert wrong == []


def test_versions_are_known_to_the_compatibility_module_alone():
    wrong = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "compat"
        and path.name != "doctor_environment.py"
        and ("version_info" in path.read_text() or "torch.__version__" in path.read_text())
    ]
    assert wrong == []


def test_no_function_is_longer_than_two_screens():
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno >= 80
    ]
    assert long == []
