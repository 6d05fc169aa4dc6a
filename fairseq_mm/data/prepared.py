"""What every preparation shares: a folder that appears when it is complete, and fairseq-preprocess.

``prepared_*.py`` write one kind of data each, and say which files of a data folder are theirs.
``prepare.json`` belongs to every kind: what was read, and how.
"""

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from fairseq_mm import __version__
from fairseq_mm.data.caption_text import RESERVED_TOKENS
from fairseq_mm.data.captions import read_lines
from fairseq_mm.errors import UserError

_REPORT = "prepare.json"
# fairseq-preprocess's own, while it works: its log, and what its workers have written so far
_PASSING = re.compile(r"(?:.*/)?preprocess\.log|.*\.pt\d+\.(?:bin|idx)")


def run_preprocess(arguments: list[str]) -> None:
    """Calls fairseq-preprocess in this process, and leaves none of its log handlers behind."""
    from fairseq import options
    from fairseq_cli import preprocess

    args = options.get_preprocessing_parser().parse_args(arguments)
    handlers = list(preprocess.logger.handlers)
    level = preprocess.logger.level
    preprocess.logger.setLevel(logging.WARNING)
    try:
        preprocess.main(args)
    finally:
        preprocess.logger.setLevel(level)
        for handler in preprocess.logger.handlers[:]:
            if handler not in handlers:
                preprocess.logger.removeHandler(handler)
                handler.close()
    # Names files by the folder they were made in, and prepare.json has the command.
    os.remove(os.path.join(args.destdir, "preprocess.log"))


def check_output(output: Path, files: Set[str], *, kind: str, overwrite: bool) -> None:
    """
    Args:
        output: the data folder.
        files: which files of it are prepared data, by their paths inside it.
        kind: of data.
        overwrite: prepared data of this kind may be replaced.

    Raises:
        UserError: if ``output`` is no folder or one that fairseq-preprocess would stumble over,
            or has prepared data that may not be replaced.
    """
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: is a file; a folder was expected.")
    if "," in os.path.abspath(output):
        raise UserError(f"--output {output}: fairseq-preprocess cannot read paths with a comma.")
    found = sorted(name for name in {*files, _REPORT} if (output / name).exists())
    if found and not overwrite:
        raise UserError(
            f"--output {output}: has prepared data already ({found[0]}); give --overwrite to "
            "replace it, or another folder."
        )
    other = _kind_of(output)
    if other not in (None, kind):
        raise UserError(
            f"--output {output}: holds prepared {other}, and {kind} would stand among their files; "
            "give another folder."
        )


def _kind_of(folder: Path) -> object:
    """What ``prepare.json`` says that the folder holds, None where there is none to read."""
    try:
        return json.loads((folder / _REPORT).read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def partial_folder(output: Path, files: Set[str]) -> Iterator[Path]:
    """A folder beside ``output`` whose files move there at the end, and vanish after an error.

    Args:
        output: the data folder. Other files in it stay.
        files: which files of it are prepared data, by their paths inside it.

    Raises:
        UserError: if it cannot be written, or stands there with anything else in it.
    """
    output = Path(os.path.abspath(output))
    # A folder that exists may be another file system's root, from where nothing can be renamed.
    partial = output / ".partial" if output.is_dir() else output.with_name(output.name + ".partial")
    if partial.is_dir():  # left by a run that was killed
        names = {name for name in _files_in(partial) if not _PASSING.fullmatch(name)}
        foreign = sorted(names - files - {_REPORT})
        if foreign:
            raise UserError(f"{partial}: holds {foreign[0]}; remove or rename that folder.")
        shutil.rmtree(partial)
    try:
        partial.mkdir(parents=True)
        yield partial
        _move_over(partial, output, files)
    except OSError as error:
        raise UserError(f"--output {output}: cannot be written ({error}).") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _files_in(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _move_over(partial: Path, output: Path, files: Set[str]) -> None:
    if not output.exists():
        os.rename(partial, output)
        return
    # The folder may hold a feature store that took hours: only prepared files are replaced,
    # prepare.json first away and last in, so that a folder with it is whole.
    for name in [_REPORT, *sorted(files)]:
        (output / name).unlink(missing_ok=True)
    for folder in {(output / name).parent for name in files} - {output}:
        with contextlib.suppress(OSError):  # somebody else's files stand in it
            folder.rmdir()
    for name in sorted(_files_in(partial), key=lambda name: (name == _REPORT, name)):
        (output / name).parent.mkdir(exist_ok=True)
        os.replace(partial / name, output / name)


def write_report(folder: Path, kind: str, report: dict[str, object]) -> dict[str, object]:
    """Writes ``prepare.json`` and returns what stands in it."""
    report = {"kind": kind, "package_version": __version__, **report}
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    (folder / _REPORT).write_text(text, encoding="utf-8")
    return report


def read_dictionary_words(path: Path) -> set[str]:
    """The words of a ``dict.txt``.

    Raises:
        UserError: ``path:line``, if a line is not ``word count``, repeats a word or defines one
            of fairseq's control symbols.
    """
    words: set[str] = set()
    for number, line in read_lines(path):
        word, _, count = line.rpartition(" ")
        if not word or not count.isdecimal():
            raise UserError(f"{path}:{number}: must be `word count`, but is {line[:60]!r} instead.")
        if word in words or word in (*RESERVED_TOKENS, "<unk>"):
            what = "was given before" if word in words else "is a control symbol of fairseq"
            raise UserError(f"{path}:{number}: {word} {what}.")
        words.add(word)
    return words


def count_unknown(path: Path, known: set[str]) -> int:
    """Words of a text file that are not in ``known``."""
    with open(path, encoding="utf-8", newline="\n") as file:
        return sum(word not in known for line in file for word in line.split())
