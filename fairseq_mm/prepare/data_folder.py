"""Writes prepared files to data folders.

Only one process at a time may write to a folder. All files are moved to the folder at once, when
they are complete.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from fairseq_mm.data.folder_lock import only_writer
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)

# folder for the files of a run before they are moved to the data folder; name of its prepare.json
# while they are moved, so that the next run recognises a move that was killed
REPORT = "prepare.json"
_PARTIAL = ".partial"
_MOVING = "prepare.json.moving"
# list of the files of the data folder that the run replaces or removes
_REPLACED = "replaced.json"


def former_files(split: str, sides: Iterable[str] = ()) -> list[str]:
    """Return the paths of files that version 0.2 wrote for a split in addition to the binarised
    text; ``sides`` are the suffixes of the split's texts."""
    endings = ["visual_ids", "tags", "ids", "unknowns.jsonl", "transcripts.jsonl", "stories.jsonl"]
    endings += ["references.jsonl", "album_references.jsonl"]
    texts = [f"text/{split}.{side}" for side in sides]
    return ["missing_images.txt", *texts, *(f"{split}.{ending}" for ending in endings)]


def _check_output(output: Path, files: Set[str], *, kind: str, overwrite: bool) -> None:
    """Check that prepared data may be written to the folder ``output``."""
    existing = sorted(name for name in {*files, REPORT} if (output / name).exists())
    try:
        other = read_json(output / REPORT)["kind"]
    except (UserError, KeyError, TypeError):
        other = kind
    problem = ""
    if other != kind:
        problem = (
            f"holds prepared {other}, and {kind} would stand among their files; give another folder"
        )
    elif existing and not overwrite:
        problem = (
            f"has prepared data already ({existing[0]}); give --overwrite to replace it, or "
            "another folder"
        )
    if problem:
        raise UserError(f"--output {output}: {problem}.")


@contextmanager
def locked_output(output: Path) -> Iterator[None]:
    """Lock a data folder against other writers; create the folder if it does not exist.

    A folder that this function has created is removed if it is empty at the end. Feature stores
    have a lock of their own, and can be written at the same time.
    """
    is_new = not output.exists()
    try:
        with only_writer(str(output)):
            yield
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error}).") from error
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it is not empty
                output.rmdir()


@contextmanager
def partial_folder(
    output: Path, files: Set[str], *, kind: str, overwrite: bool = False
) -> Iterator[Path]:
    """Yield a temporary folder in ``output`` whose files are moved to ``output`` at the end.

    After an error the files are deleted. Inside the ``with`` block, ``output`` is locked. The files
    of an earlier run that was killed while they were moved are moved first.

    Args:
        files: Paths in ``output`` that are replaced or removed; other files stay.
        overwrite: Allow to replace prepared data of the same kind.
    """
    output = Path(os.path.abspath(output))
    partial = output / _PARTIAL
    with locked_output(output):
        try:
            finish_move(output)
            _check_output(output, files, kind=kind, overwrite=overwrite)
            partial.mkdir()
            (partial / _REPLACED).write_text(json.dumps(sorted(files)), encoding="utf-8")
            yield partial
            _move_over(output)
        finally:
            # once files have moved, the next run continues: old and new files must not mix
            if not (partial / _MOVING).exists():
                shutil.rmtree(partial, ignore_errors=True)


def is_half_moved(folder: str) -> bool:
    """Return True if a run was killed after it had prepared all files, but before it had moved
    every file to the data folder ``folder``."""
    partial = os.path.join(folder, _PARTIAL)
    return any(os.path.exists(os.path.join(partial, name)) for name in (REPORT, _MOVING))


def finish_move(output: Path) -> None:
    """Move the files of a killed run to the data folder if the run had completed all files, and
    remove its temporary folder."""
    partial = output / _PARTIAL
    with contextlib.suppress(UserError):  # killed within the report, which is written last
        if (partial / REPORT).exists():
            read_json(partial / REPORT)
        if is_half_moved(str(output)):
            logger.warning(f"{output}: moved into place what a killed run had prepared")
            _move_over(output)
    if partial.is_dir():
        shutil.rmtree(partial)


def _move_over(output: Path) -> None:
    # The folder may hold a feature store that took hours: only prepared files are replaced. The old
    # prepare.json is removed first and the new one moved last, so that a folder with prepare.json
    # is complete. After a kill here, another call continues: no new file is removed once the first
    # one has moved.
    partial = output / _PARTIAL
    if not (partial / _MOVING).exists():
        names = [REPORT, *read_json(partial / _REPLACED)]
        for name in names:
            (output / name).unlink(missing_ok=True)
        for folder in {(output / name).parent for name in names} - {output}:
            with contextlib.suppress(OSError):  # it may hold the user's files
                folder.rmdir()
        os.replace(partial / REPORT, partial / _MOVING)
    paths = sorted(path for path in partial.rglob("*") if path.is_symlink() or not path.is_dir())
    for name in (path.relative_to(partial).as_posix() for path in paths):
        if name not in (_MOVING, _REPLACED):
            (output / name).parent.mkdir(exist_ok=True)
            os.replace(partial / name, output / name)
    os.replace(partial / _MOVING, output / REPORT)
