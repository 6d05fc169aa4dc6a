"""fairseq starts programs at a few places: each is known, and no checkpoint chooses what runs."""

import ast
import importlib.util
from pathlib import Path

from fairseq.data.fasta_dataset import FastaDataset

# places of fairseq that start programs -> why no checkpoint chooses the program or its shell
# command
PROGRAMS = {
    "data/fasta_dataset.py:FastaDataset._build_index": "replaced by repair_index_of_fasta",
    "data/plasma_utils.py:PlasmaArray.start_server": (
        "a fixed program without a shell: plasma_store"
    ),
    "data/plasma_utils.py:PlasmaStore.start": "a fixed program without a shell: plasma_store",
    "distributed/utils.py:_infer_slurm_init": "a fixed program without a shell: scontrol",
    "tasks/audio_pretraining.py:AudioPretrainingConfig": "declares post_save_script",
    "tasks/audio_pretraining.py:AudioPretrainingTask.post_save": (
        "training alone calls it, whose task comes from the command line"
    ),
}
# what `os` and `pty` start programs by; all of `subprocess` does
_STARTING = ("system", "popen", "startfile", "exec", "spawn", "posix_spawn", "fork")


def folder_of(package: str) -> Path:
    return Path(importlib.util.find_spec(package).submodule_search_locations[0])


def places_in(root: Path, prefix: str = "") -> set[str]:
    """Every class or function that starts a program, or names ``post_save_script``."""
    found = set()

    def visit(node, place):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            place += ("." if not place.endswith(":") else "") + node.name
        if starts(node):
            found.add(place)
        for child in ast.iter_child_nodes(node):
            visit(child, place)

    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        # scripts of fairseq's examples; none that starts programs is imported by fairseq itself
        if not file.startswith("examples/"):
            visit(ast.parse(path.read_text(encoding="utf-8")), f"{prefix}{file}:")
    return found


def starts(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "shell"
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        return node.module == "subprocess" or (
            node.module in ("os", "pty") and any(name.startswith(_STARTING) for name in names)
        )
    if isinstance(node, ast.AnnAssign):
        return getattr(node.target, "id", "") == "post_save_script"
    if not isinstance(node, ast.Attribute):
        return False
    module = getattr(node.value, "id", "")
    return (
        node.attr == "post_save_script"
        or (module == "subprocess" and not node.attr.endswith("Error"))
        or (module in ("os", "pty") and node.attr.startswith(_STARTING))
    )


def test_every_place_of_fairseq_that_starts_a_program_is_known():
    places = places_in(folder_of("fairseq"))
    places |= places_in(folder_of("fairseq_cli"), "fairseq_cli/")
    assert "data/fasta_dataset.py:FastaDataset._build_index" in places
    unknown = sorted(places - set(PROGRAMS))
    assert not unknown, f"not in fairseq_mm/compat/loading.py: {unknown}"
    assert all(PROGRAMS.values())


def test_an_index_of_fasta_runs_no_command_of_its_name(tmp_path, monkeypatch):
    name = tmp_path / "a$(touch PWNED)"
    Path(f"{name}.fasta").write_bytes(b">one\nAB\n")
    monkeypatch.chdir(tmp_path)
    FastaDataset(str(name))
    assert not (tmp_path / "PWNED").exists()
