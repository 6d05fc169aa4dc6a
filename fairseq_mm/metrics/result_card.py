"""Builds the result card: a dict of facts that show how a score was computed."""

import os
import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from typing import Optional

from fairseq_mm.data.input_files import file_digest
from fairseq_mm.metrics.hypotheses import decoding_settings

_PACKAGES = ("fairseq", "fairseq-fixed", "torch", "numpy", "pycocoevalcap", "sacrebleu")
# hashing a larger file, such as a feature store of video frames, would take longer than scoring
_HASHED_BYTES = 4 << 30


def file_hash(path: str) -> dict[str, object]:
    """Return a dict with the path, the size and the SHA-256 of a file; without the SHA-256 if it
    has more than 4 GiB, with the reason if it cannot be read."""
    try:
        size = os.path.getsize(path)
        entry: dict[str, object] = {"path": path, "bytes": size}
        if size <= _HASHED_BYTES:
            entry["sha256"] = file_digest(path)
    except OSError as error:
        return {"path": path, "missing": error.strerror or str(error)}
    return entry


def result_card(
    files: Mapping[str, Optional[str]], generated: Optional[str] = None
) -> dict[str, object]:
    """Return a dict with command line, versions, hashes of files and decoding settings.

    Args:
        files: Role of a file, such as ``references`` -> its path; None for an unused role.
        generated: Path of the generated texts, which may begin with decoding settings, checkpoints
            and feature stores.
    """
    versions = {"python": platform.python_version()}
    for package in ("fairseq-mm", *_PACKAGES):
        try:
            versions[package] = metadata.version(package)
        # most of the packages are optional, and fairseq has two distributions
        except metadata.PackageNotFoundError:
            continue
    card: dict[str, object] = {
        "command": shlex.join(["fairseq-mm", *sys.argv[1:]]),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions,
        "files": {role: file_hash(path) for role, path in files.items() if path is not None},
    }
    settings = {} if generated is None else decoding_settings(generated)
    if settings:
        card["decoding"] = settings
    # fairseq separates the parts of --path by os.pathsep; stores are separated as in --features
    for role, key, separator in (("checkpoints", "path", os.pathsep), ("stores", "features", ":")):
        paths = settings.get(key)
        if isinstance(paths, str) and paths:
            card[role] = [file_hash(path) for path in paths.split(separator)]
    return card
