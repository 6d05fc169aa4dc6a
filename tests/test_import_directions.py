"""Imports run one way; tasks, models and criterions never import each other."""

import ast
from pathlib import Path

import fairseq_mm

PACKAGE = Path(fairseq_mm.__file__).parent
EVERYBODY = {"errors"}
ALLOWED = {
    "compat": set(),
    "modules": set(),
    "metrics": set(),
    "models": {"compat", "modules"},
    "criterions": {"modules", "metrics"},
    "optim": set(),
    "data": set(),
    "generation": set(),
    "tasks": {"data", "generation", "metrics"},
    "extract": {"compat", "data"},
    "ngrams": {"data"},
    "retrieval": {"data", "metrics"},
    "report": {"data", "metrics", "extract"},
    "study": {"data", "metrics", "report"},
    "conversion": {"compat", "data", "extract", "models", "modules", "tasks"},
}
# fairseq may be imported by what is registered with it and by what reads its data
WITHOUT_FAIRSEQ = {"metrics", "extract", "ngrams", "report", "study"}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts():
    for part in ALLOWED:
        for path in sorted((PACKAGE / part).rglob("*.py")):
            yield part, path


def test_every_folder_has_its_rule():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    # cli may import everything, and demo is part of it
    assert folders == set(ALLOWED) | {"cli", "demo"}


def test_imports_run_one_way():
    wrong = []
    for part, path in parts():
        for name in imports_of(path):
            pieces = name.split(".")
            if pieces[0] == "fairseq_mm" and len(pieces) > 1:
                allowed = ALLOWED[part] | EVERYBODY | {part}
                if pieces[1] not in allowed and (PACKAGE / pieces[1]).exists():
                    wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_only_what_is_registered_knows_fairseq():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for part, path in parts()
        if part in WITHOUT_FAIRSEQ
        for name in imports_of(path)
        if name.split(".")[0] in ("fairseq", "fairseq_cli")
    ]
    assert wrong == []


def test_metrics_import_no_torch():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for part, path in parts()
        if part == "metrics"
        for name in imports_of(path)
        if name.split(".")[0] == "torch"
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
