"""The archives of ``tests/data/golden``: data folders and checkpoints, each family in one file."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
OUTPUTS = GOLDEN / "outputs"
DATA = "data"


def pack(folders: list[Path], root: Path, archive: Path) -> None:
    """Writes an archive whose bytes depend on the files' names and contents alone.

    Args:
        folders: below ``root``.
        root: names in the archive are relative to it.
        archive: a ``.tar.gz`` to write.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder in folders:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                entry = tarfile.TarInfo(str(path.relative_to(root)))
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(entry, file)
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(gzip.compress(content.getvalue(), compresslevel=9, mtime=0))


def unpack(name: str, root: Path) -> None:
    """
    Args:
        name: ``data`` or a family.
        root: folder to write into.
    """
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as tar:
        for entry in tar:
            path = root / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            file = tar.extractfile(entry)
            assert file is not None
            path.write_bytes(file.read())


def read_outputs(folder: Path, family: str) -> dict[str, Any]:
    """System -> invocation -> id -> fields."""
    return json.loads((folder / f"{family}.json").read_text(encoding="utf-8"))


def write_outputs(folder: Path, family: str, outputs: dict[str, Any]) -> None:
    """A line a record, so that a change can be read in a diff."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for system, invocations in outputs.items():
        blocks = []
        for invocation, records in invocations.items():
            rows = [
                f"   {json.dumps(key)}: {json.dumps(record, ensure_ascii=False)}"
                for key, record in records.items()
            ]
            blocks.append(f"  {json.dumps(invocation)}: {{\n" + ",\n".join(rows) + "\n  }")
        lines.append(f" {json.dumps(system)}: {{\n" + ",\n".join(blocks) + "\n }")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (folder / f"{family}.json").write_text(text, encoding="utf-8")
