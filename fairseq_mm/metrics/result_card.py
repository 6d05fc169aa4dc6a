"""The card beside a result: what it takes to make the number again, or to see why it differs."""

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from typing import Optional

from fairseq_mm.data.input_files import file_digest, parse_json
from fairseq_mm.metrics.generated_output import LOGGED_SETTINGS, read_settings

_PACKAGES = ("fairseq", "fairseq-fixed", "torch", "numpy", "pycocoevalcap", "sacrebleu")
_HASHED_BYTES = 4 << 30
_LOG_CHARACTERS = 1 << 18


def file_hash(path: str) -> dict[str, object]:
    """Path, size and sha256; files of more than 4 GiB keep their size alone."""
    try:
        size = os.path.getsize(path)
        entry: dict[str, object] = {"path": path, "bytes": size}
        if size <= _HASHED_BYTES:
            entry["sha256"] = file_digest(path)
    except OSError as error:
        return {"path": path, "missing": error.strerror or str(error)}
    return entry


def decoding_settings(path: str) -> dict[str, object]:
    """Settings in the log lines at the head of fairseq-generate's output, or the ``options`` of the
    first line of a JSONL file of fairseq-mm's commands; empty without them."""
    with open(path, encoding="utf-8", errors="replace") as file:
        head = file.read(_LOG_CHARACTERS)
    if head.lstrip().startswith("{"):
        return _options_of_line(head.lstrip().split("\n", 1)[0])
    return next(map(read_settings, LOGGED_SETTINGS.findall(head)), {})


def _options_of_line(line: str) -> dict[str, object]:
    try:
        entry = parse_json(line)
    except ValueError:
        return {}
    options = entry.get("options") if isinstance(entry, dict) else None
    return options if isinstance(options, dict) else {}


def allows_unk(path: str) -> Optional[bool]:
    """Whether generated texts may have had ``<unk>``; None where the file does not say."""
    value = decoding_settings(path).get("allow_unk")
    return value if isinstance(value, bool) else None


def result_card(
    *, command: str, files: dict[str, Optional[str]], generated: Optional[str]
) -> dict[str, object]:
    """What a result was made with.

    Args:
        command: the command line.
        files: role -> path of what was read; hashed. None is left out.
        generated: output of fairseq-generate, whose log names decode settings, checkpoint and
            feature store; or JSONL of fairseq-mm's commands, which has decode settings; None if
            no file was generated.
    """
    versions = {"python": platform.python_version()}
    for package in ("fairseq-mm", *_PACKAGES):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    card: dict[str, object] = {
        "command": command,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions,
        "files": {role: file_hash(path) for role, path in files.items() if path is not None},
    }
    settings = {} if generated is None else decoding_settings(generated)
    if settings:
        card["decoding"] = settings
    for role, key, separator in (("checkpoints", "path", os.pathsep), ("stores", "features", ":")):
        paths = settings.get(key)
        if isinstance(paths, str) and paths:
            card[role] = [file_hash(path) for path in paths.split(separator)]
    return card
