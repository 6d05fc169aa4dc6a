"""Reads and writes folders to share a model: ``config.json``, ``model.safetensors``, vocabulary.

``config.json`` has the architecture, the task, their options, the extractor of the training
features, and the SHA-256 digest of every other file that is read. ``model.safetensors`` has the
state dict. A folder may come from anybody: only files in it are read, and nothing in it is run.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fairseq_mm.data.input_files import MAX_FILE_BYTES, compute_sha256, read_json
from fairseq_mm.data.output_file import library_errors
from fairseq_mm.errors import UserError, import_extra

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
FORMAT, FORMAT_VERSION = "fairseq_mm", 1
# stands in the commands of a model card for the name that the model gets on the hub
PLACEHOLDER = "OWNER/NAME"

# a plain name, so that it cannot lead out of the folder
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# a path in a list of paths that is absolute or leads upwards
_OUTER_PATH = re.compile(r"(?:^|:)[/~]|(?:^|[:/])\.\.(?:$|[:/])")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_FILES = 20
_MAX_CONFIG_BYTES = 1 << 24
# the safetensors library accepts headers of 100 MB, whose objects would take gigabytes; 10,000
# tensors need a header of about 1 MB
_MAX_HEADER_BYTES = 1 << 24
# largest integer that every reader of JSON can hold
_MAX_COUNT = 2**53
# an object of a checkpoint can contain itself; options have a few levels
_MAX_DEPTH = 50


class ModelFolder(NamedTuple):
    """Content of a model folder.

    Attributes:
        config: Content of ``config.json``, with checked types.
        weights: State dict of the model.
    """

    config: dict[str, Any]
    weights: dict[str, Any]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200


def is_count(value: Any) -> bool:
    """Return True if a value is an integer from 0 to 2**53, such as a number of updates."""
    # type() and not isinstance(), because True is an int
    return type(value) is int and 0 <= value <= _MAX_COUNT


def _is_count_or_none(value: Any) -> bool:
    return value is None or is_count(value)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _are_files(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= _MAX_FILES
        and all(
            _FILE_NAME.fullmatch(name) and name not in (CONFIG_FILE, WEIGHTS_FILE, CARD_FILE)
            for name in value
        )
        and all(map(_is_digest, value.values()))
    )


# path of a field of config.json -> test and description of its values
_FIELDS: dict[tuple[str, ...], tuple[Callable[[Any], bool], str]] = {
    ("architecture",): (_is_name, "a string of at most 200 characters"),
    ("task",): (_is_name, "a string of at most 200 characters"),
    ("plugin",): (
        lambda value: value is None or _is_name(value),
        "a string of at most 200 characters, or null",
    ),
    ("model_options",): (_is_object, "an object"),
    ("task_options",): (_is_object, "an object"),
    ("task_state",): (_is_object, "an object"),
    ("training",): (_is_object, "an object"),
    ("training", "num_updates"): (_is_count_or_none, "a number of 0 or more, or null"),
    ("training", "epoch"): (_is_count_or_none, "a number of 0 or more, or null"),
    ("extractor",): (_is_object, "an object"),
    ("feature_dim",): (is_count, "a number of 0 or more"),
    ("weights",): (_is_object, "an object"),
    ("weights", "bytes"): (is_count, "a number of 0 or more"),
    ("weights", "sha256"): (_is_digest, "a SHA-256 digest in hexadecimal"),
    ("weights", "shared"): (
        lambda value: _is_object(value) and all(isinstance(x, str) for x in value.values()),
        "an object of strings",
    ),
    ("files",): (
        _are_files,
        f"an object of at most {_MAX_FILES} plain file names with their SHA-256 digests",
    ),
    ("checkpoint_sha256",): (_is_digest, "a SHA-256 digest in hexadecimal"),
}


# fields of config.json from which the task and the model are built
_WITH_OPTIONS = ("model_options", "task_options", "task_state")


def read_config(folder: str) -> dict[str, Any]:
    """Read and check ``config.json`` of a model folder."""
    path = _inner_file(folder, CONFIG_FILE, _MAX_CONFIG_BYTES)
    config = read_json(path)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        hint = ""
        if isinstance(config, dict) and "model_type" in config:
            hint = " Models of Hugging Face's transformers: fairseq-mm convert."
        raise UserError(
            f"{path}: must have `format` {FORMAT!r}, as models of fairseq_mm have, but has "
            f"not.{hint}"
        )
    version: Any = config.get("format_version")
    if version != FORMAT_VERSION or not is_count(version):
        raise UserError(
            f"{path}: `format_version` must be {FORMAT_VERSION}, but is {_shown(version)}; a newer "
            "fairseq_mm may read it (pip install -U fairseq-mm)."
        )
    for names, (is_right, expected) in _FIELDS.items():
        value: Any = config
        for name in names:
            if name not in value:
                raise UserError(f"{path}: has no `{'.'.join(names)}`.")
            value = value[name]
        if not is_right(value):
            raise UserError(
                f"{path}: `{'.'.join(names)}` must be {expected}, but is {_shown(value)}."
            )
    try:
        for name in (*_WITH_OPTIONS, "extractor"):
            check_plain(config[name], name)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    for name in _WITH_OPTIONS:
        if shorten_paths(config[name]) != config[name]:
            raise UserError(
                f"{path}: `{name}` must not name paths outside of the folder (absolute ones, or "
                "with ..), but does."
            )
    return config


def read_model_folder(path: str) -> ModelFolder:
    """Read a model folder; compare all files with the digests of ``config.json``.

    Args:
        path: Path of the folder or of its ``model.safetensors``.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path) or os.curdir
    check_links(folder)
    config = read_config(folder)
    for name, digest in config["files"].items():
        file = _inner_file(folder, name, MAX_FILE_BYTES)
        _check_digest(file, digest)
    return ModelFolder(config, _read_weights(folder, config["weights"]))


def check_links(folder: str) -> None:
    """Check that no symbolic link in a folder leads out of the folder.

    The links of huggingface_hub's cache are accepted: they lead from ``snapshots/REVISION`` to
    files of the same cache.
    """
    try:
        links = [entry.path for entry in os.scandir(folder) if entry.is_symlink()]
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}).") from None
    root = os.path.realpath(folder)
    for link in links:
        target = os.path.realpath(link)
        if os.path.dirname(target) != root and not _is_in_hub_cache(root, target):
            raise UserError(f"{link}: is a link that leads out of the folder; copy the file.")


def _is_in_hub_cache(folder: str, target: str) -> bool:
    """Return True if ``target`` is a file in the cache of huggingface_hub that contains ``folder``.

    Both are real paths. The cache has ``models--OWNER--NAME/snapshots/REVISION`` with links to
    ``models--OWNER--NAME/blobs``. Files that several models share are in ``blobs`` of the cache.
    """
    snapshots = os.path.dirname(folder)
    repository = os.path.dirname(snapshots)
    is_snapshot = os.path.basename(snapshots) == "snapshots"
    if not is_snapshot or not os.path.basename(repository).startswith("models--"):
        return False
    stores = [os.path.join(place, "blobs") for place in (repository, os.path.dirname(repository))]
    return any(target.startswith(store + os.sep) for store in stores)


def _inner_file(folder: str, name: str, most: int) -> str:
    """Return the path of a file in a folder, of ``most`` bytes at most."""
    path = os.path.join(folder, name)
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        raise UserError(f"{path}: must be a file of at most {most >> 20} MiB.")
    return path


def _check_digest(path: str, expected: str) -> None:
    digest = compute_sha256(path)
    if digest != expected:
        raise UserError(
            f"{path}: is damaged or was changed: its SHA-256 is {digest[:12]}..., but "
            f"{CONFIG_FILE} records {expected[:12]}...."
        )


def _read_weights(folder: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Read the state dict in ``model.safetensors``."""
    library = import_extra("safetensors.torch", extra="hub", purpose="reading a model folder")
    path = _inner_file(folder, WEIGHTS_FILE, _MAX_COUNT)
    size = os.path.getsize(path)
    # before the file is hashed, which takes a second per gigabyte
    if size != record["bytes"]:
        raise UserError(
            f"{path}: must have {record['bytes']:,} bytes, as {CONFIG_FILE} records, but has "
            f"{size:,}."
        )
    _check_digest(path, record["sha256"])
    with open(path, "rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header > _MAX_HEADER_BYTES:
        raise UserError(
            f"{path}: its header must have at most {_MAX_HEADER_BYTES >> 20} MiB, but has "
            f"{header:,} bytes."
        )
    try:
        weights: dict[str, Any] = library.load_file(path)
    except Exception as error:  # the library raises classes of its own, torch nearly anything
        lines = str(error).strip().splitlines()
        raise UserError(
            f"{path}: is no safetensors file ({lines[0][:200] if lines else 'it is damaged'})."
        ) from None
    for name, kept in record["shared"].items():
        if kept not in weights or name in weights:
            raise UserError(
                f"{os.path.join(folder, CONFIG_FILE)}: `weights.shared` names {_shown(name)} as "
                f"another name of {_shown(kept)}, which does not fit {WEIGHTS_FILE}."
            )
        weights[name] = weights[kept]
    return weights


def write_weights(weights: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Write ``model.safetensors`` to a folder.

    Args:
        weights: State dict.
        folder: Folder to write to.

    Returns:
        The field ``weights`` of ``config.json``: size, digest, number of parameters, and for each
        tensor that shares its memory with another tensor the name under which it is stored.

    Raises:
        OSError: if the file cannot be written.
    """
    library = import_extra("safetensors.torch", extra="hub", purpose="writing a model folder")
    import torch

    kept: dict[str, Any] = {}
    shared: dict[str, str] = {}
    places: dict[Any, str] = {}
    for name, weight in weights.items():
        if not isinstance(weight, torch.Tensor) or weight.layout != torch.strided:
            raise UserError(
                f"{_shown(name)} must be a dense tensor, but is a {type(weight).__name__}: a model "
                "folder holds tensors only."
            )
        place = (weight.data_ptr(), weight.dtype, weight.shape, weight.stride())
        first = places.setdefault(place, name) if weight.numel() else name
        if first != name:
            shared[name] = first
            continue
        kept[name] = weight.detach().contiguous()
    # a view that is contiguous can still overlap with another tensor, which safetensors refuses
    seen: set[int] = set()
    for name, weight in kept.items():
        storage = weight.untyped_storage().data_ptr()
        kept[name] = weight.clone() if storage in seen else weight
        seen.add(storage)
    path = os.path.join(folder, WEIGHTS_FILE)
    with open(path, "wb"):
        mode = stat.S_IMODE(os.stat(path).st_mode)
    # transformers refuses a file whose metadata names no framework
    with library_errors():
        library.save_file(kept, path, metadata={"format": "pt"})
    os.chmod(path, mode)  # the library keeps the file from other users
    return {
        "bytes": os.path.getsize(path),
        "sha256": compute_sha256(path),
        "parameters": sum(x.numel() for x in kept.values() if x.is_floating_point()),
        "shared": shared,
    }


def write_config(config: Mapping[str, Any], folder: str) -> None:
    """Write ``config.json`` to a folder.

    Args:
        config: Fields of the file except ``format`` and ``format_version``.
        folder: Folder to write to.
    """
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, **config}
    for name, value in content.items():
        check_plain(value, name)
    path = os.path.join(folder, CONFIG_FILE)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    read_config(folder)  # every folder that is written can be read


def shorten_paths(value: Any) -> Any:
    """Return a value of a config, in which paths out of the folder are cut to their last component.

    Absolute paths and paths with ``..`` or ``~`` are cut, since they describe somebody's machine.
    """
    if isinstance(value, dict):
        return {key: shorten_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten_paths(item) for item in value]
    if isinstance(value, str) and _OUTER_PATH.search(value):
        names = [os.path.basename(path.rstrip("/")) for path in value.split(os.pathsep)]
        return os.pathsep.join("" if name == ".." else name for name in names)
    return value


def check_plain(value: Any, where: str, *, depth: int = 0) -> None:
    """Check that a value is plain JSON; ``where`` names it in the message.

    ``depth`` is the number of lists and objects around the value.
    """
    if depth > _MAX_DEPTH:
        raise UserError(f"`{where[:80]}` is nested more than {_MAX_DEPTH} deep.")
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise UserError(f"`{where}` has the key {_shown(key)}, which is no string.")
            check_plain(item, f"{where}.{key}", depth=depth + 1)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            check_plain(item, f"{where}[{place}]", depth=depth + 1)
    elif value is not None and type(value) not in (str, bool, int, float):
        raise UserError(
            f"`{where}` must be plain JSON (text, numbers, lists, objects), but is a "
            f"{type(value).__name__}."
        )
    else:
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except ValueError:
            raise UserError(f"`{where}` must be plain JSON, but is {_shown(value)}.") from None


def _shown(value: Any) -> str:
    """Return a value for a message, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
