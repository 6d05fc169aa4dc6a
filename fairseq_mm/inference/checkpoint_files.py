"""Finds the checkpoint files for the paths that a user gives."""

# neither torch nor fairseq: their import takes seconds, and a missing checkpoint is reported before
import os
import sys
from collections.abc import Sequence
from typing import Optional, Union

from fairseq_mm.data.input_files import compute_sha256, start_digest
from fairseq_mm.data.model_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    read_config,
)
from fairseq_mm.errors import UserError
from fairseq_mm.inference.hub_models import download_model, parse_hub_name

Path = Union[str, os.PathLike]
Paths = Union[Path, Sequence[Path]]

CHECKPOINT_NAMES = ("checkpoint_best.pt", "checkpoint_last.pt")


def checkpoint_file(
    path: str, *, revision: Optional[str] = None, token: Optional[str] = None
) -> str:
    """Return the path of a checkpoint's file.

    Args:
        path: Checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``, or
            model folder with ``model.safetensors``. If there is no such file or folder, the name of
            a model of the Hugging Face hub, ``OWNER/NAME`` or ``OWNER/NAME@REVISION``, which is
            downloaded to the cache of huggingface_hub.
        revision: Branch, tag or commit of a model of the hub (default: its main branch).
        token: Access token of the hub (default: the token that huggingface_hub finds).
    """
    if not os.path.lexists(path):
        name = parse_hub_name(path, revision=revision)
        if name is None:
            raise UserError(f"{path}: no such checkpoint or folder.")
        return _begin_to_check(os.path.join(download_model(name, token=token), WEIGHTS_FILE))
    if not os.path.isdir(path):
        if not os.path.isfile(path):
            raise UserError(f"{path}: no such checkpoint or folder.")
        return path
    # a folder of the hub may have further files, none of which is a checkpoint; if config.json is
    # missing, model.safetensors beside a checkpoint has the weights of a Hugging Face extractor
    is_exported = os.path.isfile(os.path.join(path, CONFIG_FILE))
    names = (WEIGHTS_FILE, *CHECKPOINT_NAMES)
    for name in names if is_exported else (*CHECKPOINT_NAMES, WEIGHTS_FILE):
        file = os.path.join(path, name)
        if os.path.isfile(file):
            return _begin_to_check(file)
    raise UserError(
        f"{path}: has neither {' nor '.join(CHECKPOINT_NAMES)}, nor {WEIGHTS_FILE}; name the file "
        "itself."
    )


def _begin_to_check(file: str) -> str:
    """Start to compute the digest of a model folder's weights; return ``file``."""
    # meanwhile, the import of torch and fairseq takes seconds
    if os.path.basename(file) == WEIGHTS_FILE and "torch" not in sys.modules:
        start_digest(file)
    return file


def checkpoint_files(
    path: Paths, *, revision: Optional[str] = None, token: Optional[str] = None
) -> list[str]:
    """Return the file paths of one checkpoint, or of several (a list, or a string joined by
    ``os.pathsep``), see :func:`checkpoint_file`."""
    names = _split(path)
    if not names:
        raise UserError("`path` must name at least one checkpoint, but is empty.")
    if revision is not None and all(map(os.path.lexists, names)):
        raise UserError(f"`revision` is for models of the hub, but {names[0]} is on this machine.")
    return [checkpoint_file(name, revision=revision, token=token) for name in names]


def _split(path: Paths) -> list[str]:
    """Return the paths of one or several checkpoints as a list."""
    names = os.fspath(path).split(os.pathsep) if isinstance(path, (str, os.PathLike)) else path
    return [os.fspath(name) for name in names]


def download_checkpoints(path: Paths, *, token: Optional[str] = None) -> list[str]:
    """Download those checkpoints that are models of the Hugging Face hub; return all paths, with
    the path of the downloaded file in place of a name."""
    return [
        name
        if os.path.lexists(name) or parse_hub_name(name) is None
        else checkpoint_file(name, token=token)
        for name in _split(path)
    ]


def with_local_paths(path: str) -> str:
    """Check that checkpoints exist, and download those of the Hugging Face hub; return ``path``
    with the paths of downloaded files in place of names."""
    names = path.split(os.pathsep)
    files = checkpoint_files(names)
    return os.pathsep.join(
        name if os.path.lexists(name) else file for name, file in zip(names, files)
    )


def compute_checkpoint_digest(file: str) -> str:
    """Return the SHA-256 of a checkpoint, in hexadecimal.

    If ``file`` is the ``model.safetensors`` of a model folder, return the digest of the checkpoint
    from which the folder was exported.
    """
    if os.path.basename(file) == WEIGHTS_FILE:
        return read_config(os.path.dirname(file) or os.curdir)["checkpoint_sha256"]
    return compute_sha256(file)


def compute_digests(files: Sequence[str]) -> Union[str, list[str]]:
    """Return the SHA-256 digest of a checkpoint or, for several, the list of their digests."""
    digests = [compute_checkpoint_digest(file) for file in files]
    return digests[0] if len(digests) == 1 else digests
