"""Every module of the package lies in a folder with a rule, and imports run one way."""

import ast
from pathlib import Path

import pytest

import fairseq_mm

PACKAGE = Path(fairseq_mm.__file__).parent
ROOT_MODULES = {"__init__", "__main__", "extension"}
# what each folder may import of the package; `errors` is open to all
ALLOWED = {
    "errors": set(),
    "compat": {"data"},
    "modules": set(),
    "metrics": {"data"},
    "optim": {"compat"},
    "data": set(),
    "ngrams": {"data"},
    "models": {"compat", "modules"},
    "criterions": {"compat", "modules", "metrics"},
    "generation": {"data", "modules"},
    "prepare": {"data"},
    "tasks": {"compat", "data", "extract", "generation", "metrics"},
    "retrieval": {"data", "metrics"},
    "extract": {"compat", "data"},
    "inference": {
        *("compat", "data", "extract", "generation", "models", "ngrams", "prepare"),
        *("metrics", "retrieval", "tasks"),
    },
    "conversion": {"compat", "data", "extract", "models", "modules", "tasks"},
    "analysis": {"data", "inference", "models", "modules", "retrieval", "tasks"},
    "report": {"analysis", "data", "extract", "metrics"},
    "hub": {
        *("compat", "conversion", "data", "extract", "inference", "metrics", "models", "tasks"),
    },
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


def module_name(path):
    parts = ("fairseq_mm", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(sources):
    """Module -> modules of ``sources`` (name -> path) that it imports anywhere, functions included.

    The package's own ``__init__`` is left out: it is loaded before any other module.
    """
    graph = {}
    for name, path in sources.items():
        targets = {target for target in imports_of(path) if target in sources}
        for node in ast.walk(ast.parse(path.read_text())):
            # `from fairseq_mm.cli import arguments` imports a module, nothing of the folder's own
            if isinstance(node, ast.ImportFrom) and all(
                f"{node.module}.{alias.name}" in sources for alias in node.names
            ):
                targets.discard(node.module)
        graph[name] = targets - {name, "fairseq_mm"}
    return graph


def circles(graph):
    """Modules that remain when those that import no remaining module are taken away, again and
    again, from both ends."""
    graph = {name: set(targets) for name, targets in graph.items()}
    while True:
        imported = set().union(*graph.values())
        ends = {name for name, targets in graph.items() if not targets or name not in imported}
        if not ends:
            return sorted(graph)
        graph = {name: targets - ends for name, targets in graph.items() if name not in ends}


def test_no_module_imports_itself_by_way_of_others():
    assert circles(import_graph({module_name(path): path for _, path in modules()})) == []


def test_circles_are_found_in_functions_as_well(tmp_path):
    sources = {}
    for name, text in {
        "fairseq_mm.a": "def run():\n    from fairseq_mm import b\n",
        "fairseq_mm.b": "import fairseq_mm.c\n",
        "fairseq_mm.c": "from fairseq_mm.a import run\n",
        "fairseq_mm.d": "from fairseq_mm.a import run\n",
    }.items():
        sources[name] = tmp_path / f"{name}.py"
        sources[name].write_text(text)
    assert circles(import_graph(sources)) == ["fairseq_mm.a", "fairseq_mm.b", "fairseq_mm.c"]


def test_versions_are_known_to_the_compatibility_module_alone():
    wrong = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "compat"
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
