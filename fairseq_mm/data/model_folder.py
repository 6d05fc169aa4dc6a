"""Reads and writes folders to share a model: ``config.json``, ``model.safetensors``, vocabulary.

``config.json`` has the architecture, the task, their options, the extractor of the training
features, and the SHA-256 digest of every other file that is read. ``model.safetensors`` has the
state dict. A folder may come from anybody: only files in it are read, and nothing in it is run.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from fairseq_mm.data.input_files import compute_sha256, read_json
from fairseq_mm.data.output_file import library_errors
from fairseq_mm.errors import UserError, file_errors, import_extra

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
FORMAT, FORMAT_VERSION = "fairseq_mm", 1
# stands in the commands of a model card for the name that the model gets on the hub
PLACEHOLDER = "OWNER/NAME"

# a plain name, so that it cannot lead out of the folder
_FILE_NAME = re.compile(
    r"(?!(?:config\.json|model\.safetensors|README\.md)\Z)[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
)
# a path in a list of paths that is absolute or leads upwards
_OUTER_PATH = re.compile(r"(?:^|:)[/~]|(?:^|[:/])\.\.(?:$|[:/])")
_MAX_FILES = 20
_MAX_CONFIG_BYTES = 1 << 24
_MAX_FILE_BYTES = 1 << 29
# the safetensors library accepts headers of 100 MB, whose objects would take gigabytes; 10,000
# tensors need a header of about 1 MB
_MAX_HEADER_BYTES = 1 << 24
# largest integer that every reader of JSON can hold
_MAX_COUNT = 2**53


class ModelFolder(NamedTuple):
    """Checked content of ``config.json``, and the state dict of the model."""

    config: dict[str, Any]
    weights: dict[str, Any]


def is_count(value: Any) -> bool:
    """Return True if a value is an integer from 0 to 2**53, such as a number of updates."""
    # type() and not isinstance(), because True is an int
    return type(value) is int and 0 <= value <= _MAX_COUNT


# (fields of config.json, which may be null if they end with ?; their type in words; its test)
_FIELDS = (
    (
        ("architecture", "task", "plugin?"),
        "a string of at most 200 characters",
        lambda x: isinstance(x, str) and 0 < len(x) <= 200,
    ),
    (
        (*("model_options", "task_options", "task_state", "training"), "extractor", "weights"),
        "an object",
        lambda x: isinstance(x, dict),
    ),
    (
        ("training.num_updates?", "training.epoch?", "feature_dim", "weights.bytes"),
        "a number of 0 or more",
        is_count,
    ),
    (("weights.sha256", "checkpoint_sha256"), "a digest", lambda x: isinstance(x, str)),
    (
        ("weights.shared",),
        "an object of strings",
        lambda x: isinstance(x, dict) and all(isinstance(y, str) for y in x.values()),
    ),
    (
        ("files",),
        f"an object of at most {_MAX_FILES} plain file names with their SHA-256 digests",
        lambda x: (
            isinstance(x, dict) and len(x) <= _MAX_FILES and all(map(_FILE_NAME.fullmatch, x))
        ),
    ),
)
# fields of config.json from which the task and the model are built
_WITH_OPTIONS = ("model_options", "task_options", "task_state")


def read_config(folder: str) -> dict[str, Any]:
    """Read and check ``config.json`` of a model folder."""
    path = _check_file(folder, CONFIG_FILE, _MAX_CONFIG_BYTES)
    with file_errors(path):
        config = read_json(path)
        if (config.get("format"), config.get("format_version")) != (FORMAT, FORMAT_VERSION):
            raise ValueError(
                f"must have `format` {FORMAT!r} and `format_version` {FORMAT_VERSION}; update "
                "fairseq_mm for newer ones, and use fairseq-mm convert for transformers' models"
            )
        for fields, kind, is_kind in _FIELDS:
            for field in fields:
                value: Any = config
                name = field.rstrip("?")
                for part in name.split("."):
                    value = value[part]
                if not is_kind(value) and not (value is None and field != name):
                    raise ValueError(f"`{name}` must be {kind}, but is {_shown(value)}")
        for name in (*_WITH_OPTIONS, "extractor"):
            check_plain(config[name], name)
            if name != "extractor" and shorten_paths(config[name]) != config[name]:
                raise ValueError(f"`{name}` must not name paths outside of the folder, but does")
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
        _check_file(folder, name, _MAX_FILE_BYTES, digest)
    library = import_extra("safetensors.torch", extra="hub", purpose="reading a model folder")
    path = _check_file(folder, WEIGHTS_FILE, _MAX_COUNT, config["weights"]["sha256"])
    with file_errors(path):
        with open(path, "rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > _MAX_HEADER_BYTES:
            raise ValueError(f"its header must have at most {_MAX_HEADER_BYTES >> 20} MiB")
        weights: dict[str, Any] = library.load_file(path)
        # tensors that share their memory are stored under the name of the first
        weights.update({name: weights[x] for name, x in config["weights"]["shared"].items()})
    return ModelFolder(config, weights)


def check_links(folder: str) -> None:
    """Check that no symbolic link in a folder leads out of the folder.

    The links of huggingface_hub's cache are accepted: they lead from
    ``models--OWNER--NAME/snapshots/REVISION`` to ``models--OWNER--NAME/blobs``, or for files that
    several models share to ``blobs`` of the cache.
    """
    with file_errors(folder, kinds=OSError):
        links = [entry.path for entry in os.scandir(folder) if entry.is_symlink()]
    root = os.path.realpath(folder)
    repository, snapshots = os.path.split(os.path.dirname(root))
    is_cache = snapshots == "snapshots" and os.path.basename(repository).startswith("models--")
    places = (repository, os.path.dirname(repository)) if is_cache else ()
    blobs = tuple(os.path.join(place, "blobs", "") for place in places)
    for link in links:
        target = os.path.realpath(link)
        if os.path.dirname(target) != root and not target.startswith(blobs):
            raise UserError(f"{link}: is a link that leads out of the folder; copy the file.")


def _check_file(folder: str, name: str, most: int, digest: Optional[str] = None) -> str:
    """Return the path of a file in a folder, after a check of its size, and of its SHA-256."""
    path = os.path.join(folder, name)
    with file_errors(path):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise ValueError(f"must be a file of at most {most >> 20} MiB")
        if digest is not None and compute_sha256(path) != digest:
            raise ValueError(f"is damaged or was changed: {CONFIG_FILE} has another SHA-256")
    return path


def write_weights(weights: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Write the state dict ``weights`` to ``model.safetensors``.

    Returns:
        The field ``weights`` of ``config.json``: size, digest, number of parameters, and for each
        tensor that shares its memory with another tensor the name under which it is stored.
    """
    library = import_extra("safetensors.torch", extra="hub", purpose="writing a model folder")
    kept: dict[str, Any] = {}
    shared: dict[str, str] = {}
    places: dict[Any, str] = {}
    for name, weight in weights.items():
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


def shorten_paths(value: Any) -> Any:
    """Return a config value, with paths that lead out of the folder cut to their last component.

    These are absolute paths and paths with ``..`` or ``~``, which describe somebody's machine.
    """
    if isinstance(value, dict):
        return {key: shorten_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten_paths(item) for item in value]
    if isinstance(value, str) and _OUTER_PATH.search(value):
        names = [os.path.basename(path.rstrip("/")) for path in value.split(os.pathsep)]
        return os.pathsep.join("" if name == ".." else name for name in names)
    return value


def check_plain(options: dict[Any, Any], where: str) -> None:
    """Raise ValueError if a value of ``options``, which ``where`` names, is not plain JSON."""
    for name, value in options.items():
        try:
            text = json.dumps({name: value}, ensure_ascii=False, allow_nan=False)
            text.encode()
            # tuples and keys that are no strings are changed
            is_plain = json.loads(text) == {name: value}
        except (ValueError, TypeError, RecursionError):
            is_plain = False
        if not is_plain:
            raise ValueError(f"`{where}.{name}` must be plain JSON, but is {_shown(value)}")


def _shown(value: Any) -> str:
    """Format a value for a message, with at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
