"""Loads weights of networks safely, and compares the networks that feature stores record.

A file may be a state dict, a dictionary that has a state dict under the key ``state_dict`` or
``model``, a state dict of a ``DataParallel`` (``module.`` before every name), or in half precision.
Files whose names end in ``.safetensors`` are read by the package safetensors. A file must have the
tensors that the extracted layer depends on; a classifier may be missing or have other classes.

Two extractors are the same if their model, weights, layer, grid, preprocessing and decoder of
images are equal. The version of this package, the version of the network's library and the date are
recorded as well, but not compared.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn

from fairseq_mm.compat import load_torch_file
from fairseq_mm.data.input_files import compute_sha256, parse_json
from fairseq_mm.errors import UserError, file_errors, import_extra

MAX_NAMED = 4
RANDOM = "none"
# prefix of digests of weights that cover the names of the tensors
WITH_NAMES = "names:"
SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
# libraries that fetch weights by their name
PUBLISHERS = ("torchvision", "timm")
# the DenseNet files of torchvision have the names from before 2017 (norm.1 instead of norm1)
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.\w+)$")
# attributes of a feature store that determine the rows of an image
IDENTITY = ("extractor", "weights", "layer", "grid", "preprocessing")
# compared if both extractors have it: networks of torchvision, and older stores, have none
WEIGHTS_DIGEST = "weights_digest"
# attribute of stores of earlier versions whose images a GPU decoded
DECODER = "decoder"
PILLOW = "Pillow"
# what `fairseq-mm embed` records as the extractor of its vectors
VECTORS_EXTRACTOR = "fairseq-mm embed"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's random numbers inside the context; restore their state at the end."""
    # without `devices` each GPU would be initialised
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def is_digest(recorded: str) -> bool:
    """Return True if ``recorded`` is the SHA-256 of a weights file, False if it is a name."""
    return re.fullmatch(r"[0-9a-f]{64}", recorded) is not None


def is_file(weights: str) -> bool:
    """Return True if ``weights`` is a path, which may be missing, False if it is a name."""
    # a path that does not exist is to be reported as such: no name has a slash or such an ending
    return os.path.exists(weights) or os.sep in weights or weights.endswith(SUFFIXES)


def check_weights_file(model: str, recorded: str, weights_file: str) -> None:
    """Raise UserError if a file has not the SHA-256 ``recorded``; ``model`` is for the message."""
    if (digest := compute_sha256(weights_file)) != recorded:
        raise UserError(
            f"{weights_file}: must have the SHA-256 {recorded[:12]}... of the weights that the "
            f"features were made with by {model}, but has {digest[:12]}..."
        )


def recorded_weights(model: str, recorded: str, weights_file: Optional[str]) -> tuple[str, int]:
    """Return ``weights`` and ``seed`` for :func:`.build_backbone` from ``recorded``, a feature
    store's attribute: the SHA-256 of a file (then ``weights_file`` is required), ``none:SEED``,
    ``torchvision:NAME`` or ``timm:TAG``. :func:`.check_same_network` compares the network."""
    if weights_file is not None:
        if is_digest(recorded):
            check_weights_file(model, recorded, weights_file)
        return weights_file, 0
    if is_digest(recorded):
        raise UserError(
            f"the features were made by {model} with weights from a file (SHA-256 "
            f"{recorded[:12]}...): give that file (--weights; in fairseq-train: --image-network)."
        )
    source, _, name = recorded.partition(":")
    return (RANDOM, int(name)) if source == RANDOM else (name, 0)


def check_is_recorded(attributes: Mapping[str, object], owner: str) -> None:
    """Raise UserError, with the name ``owner``, if attributes that identify an extractor are
    missing."""
    for name in IDENTITY:
        if name not in attributes:
            raise UserError(f"{owner}: no `{name}` is recorded, so the extractor is unknown.")


def check_same_extractor(
    recorded: Mapping[str, object],
    other: Mapping[str, object],
    *,
    recorded_by: str = "the recorded features",
    given_by: str = "the given ones",
) -> None:
    """Raise UserError if the attributes of two extractors differ; ``recorded_by`` and ``given_by``
    name the stores or checkpoints that they come from."""
    check_is_recorded(recorded, recorded_by)
    check_is_recorded(other, given_by)
    _compare(recorded, other, IDENTITY, recorded_by=recorded_by, given_by=given_by)


def _compare(
    recorded: Mapping[str, object],
    other: Mapping[str, object],
    names: Sequence[str],
    *,
    recorded_by: str,
    given_by: str,
) -> None:
    """Raise UserError if the attributes ``names``, decoders or digests of two extractors differ."""
    # digests of 0.2, without the names of the tensors, are not compared
    has_digests = all(str(x.get(WEIGHTS_DIGEST)).startswith(WITH_NAMES) for x in (recorded, other))
    recorded, other = ({DECODER: PILLOW, **attributes} for attributes in (recorded, other))
    for name in (*names, DECODER, *((WEIGHTS_DIGEST,) if has_digests else ())):
        ours, theirs = _normalize(name, recorded[name]), _normalize(name, other[name])
        if ours == theirs:
            continue
        if isinstance(ours, dict) and isinstance(theirs, dict):
            name, ours, theirs = next(
                (f"preprocessing: {key}", ours.get(key), theirs.get(key))
                for key in sorted({*ours, *theirs})
                if ours.get(key) != theirs.get(key)
            )
        raise UserError(
            f"another extractor: {recorded_by} were made with {name} = {_shorten(ours)}, but "
            f"{given_by} with {_shorten(theirs)}."
        )


def check_store_extractor(
    identity: Mapping[str, Any],
    feature_dim: int,
    file: str,
    attributes: Mapping[str, Any],
    dim: int,
    path: str,
) -> None:
    """Check that a feature store has the same kind of features as a checkpoint's training data.

    Attributes of the extractor that the checkpoint or the store lacks are not compared, because
    imported stores often record few of them.

    Args:
        identity: Attributes of the extractor, from the checkpoint ``file``.
        feature_dim: Dimension of the training features.
        attributes: Attributes of the store at ``path``, whose features have dimension ``dim``.
    """
    names = ["dim"]
    if identity.get("extractor") and attributes.get("extractor"):
        names += [name for name in IDENTITY if name in identity and name in attributes]
    by = f"the features that {file} was trained on"
    recorded, given = {**identity, "dim": feature_dim}, {**attributes, "dim": dim}
    _compare(recorded, given, names, recorded_by=by, given_by=path)


def has_name_and_digest(identity: Mapping[str, object]) -> bool:
    """Return True if published weights are recorded by their name and by their digest, so that a
    file with the same weights may replace them."""
    source = str(identity.get("weights")).partition(":")[0]
    return source in PUBLISHERS and str(identity.get(WEIGHTS_DIGEST)).startswith(WITH_NAMES)


def check_same_network(
    identity: Mapping[str, object], weights: str, digest: str, layer: str, library: str
) -> None:
    """Raise UserError if a rebuilt network and a feature store's record differ in weights or layer.

    ``weights``, ``digest`` (empty if it has none), ``layer`` and ``library`` describe the network.
    """
    found = {**identity, "weights": weights, "layer": layer, WEIGHTS_DIGEST: digest}
    by = f"the recorded features (by {identity.get('library', 'torchvision')})"
    _compare(
        identity,
        found,
        ("weights", "layer") if digest else ("weights",),
        recorded_by=by,
        given_by=f"the network ({library or 'torchvision'})",
    )


def _normalize(name: str, value: Any) -> object:
    # attributes of HDF5 can be bytes or numpy's numbers, values of a checkpoint are Python's
    value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    try:
        if name == "grid":
            return int(value)  # a bool, a number, or numpy's
        # compared as a value: equal JSON may differ in white space and in the order of keys
        if name == "preprocessing":
            return parse_json(str(value), name)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return str(value)


def _shorten(value: object) -> str:
    text = str(value).removeprefix(WITH_NAMES)
    return text[:12] + "..." if len(text) == 64 else text  # a SHA-256 is long


def read_state_dict(path: str) -> dict[str, Tensor]:
    """Read a file of named tensors."""
    with file_errors(path, "is no state dict of tensors"):
        if path.endswith(".safetensors"):
            safetensors = import_extra("safetensors.torch", extra="hub", purpose=f"the file {path}")
            tensors: dict[str, Tensor] = safetensors.load_file(path)
            return tensors
        content: Any = load_torch_file(path)
        # trainers of ImageNet and timm save `state_dict`, torchvision's reference scripts `model`
        for key in ("state_dict", "model"):
            if isinstance(content.get(key), dict):
                content = content[key]
        if not content or not all(isinstance(value, Tensor) for value in content.values()):
            raise ValueError("it has none, or other values")
    if all(name.startswith("module.") for name in content):
        content = {name[len("module.") :]: value for name, value in content.items()}
    return {_OLD_DENSENET.sub(r"\1\2", name): value for name, value in content.items()}


def load_state_dict(
    model: nn.Module, state_dict: dict[str, Tensor], *, needed: Collection[str], origin: str
) -> None:
    """Copy the tensors of a file into a whole network, cast to the dtypes of the network.

    ``needed`` has the names of the tensors that the extracted layer depends on; others may be
    missing. ``origin`` names the file or the weights in messages.
    """
    own = model.state_dict()
    # batch normalisation reads its count of steps only in training, and older files do not have it
    needed = [name for name in needed if not name.endswith("num_batches_tracked")]
    check_tensors(state_dict, own, origin, needed=needed)
    # The network's own state dict, because it has the version of the format, without which mnasnet
    # loads nothing. A classifier that the layer does not need may keep its values.
    for name, value in state_dict.items():
        if value.shape == own[name].shape:
            own[name] = value.to(own[name].dtype)
    model.load_state_dict(own)


def check_tensors(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Any],
    origin: str,
    *,
    needed: Optional[Collection[str]] = None,
) -> None:
    """Raise UserError if tensors do not fit a model.

    Args:
        expected: State dict of the model, or the shapes of its tensors, by name.
        origin: Name of the file or the weights, for the message.
        needed: Names of the tensors that must be there, and have the right shape (default: all).
    """
    shapes = {name: tuple(getattr(x, "shape", x)) for name, x in expected.items()}
    needed = shapes if needed is None else needed
    known = [name for name in needed if name in tensors]
    faults = {
        "lacks": [name for name in needed if name not in tensors],
        "has no place for": [name for name in tensors if name not in shapes],
        "needs other shapes of": [
            f"{name} ({list(tensors[name].shape)}, must be {list(shapes[name])})"
            for name in known
            if tensors[name].shape != shapes[name]
        ],
        # loading a NaN raises no error: it would show only in features or texts without sense
        "has NaN or infinite values in": [x for x in known if not tensors[x].isfinite().all()],
    }
    said = [f"{fault} {name_some(names)}" for fault, names in faults.items() if names]
    if said:
        raise UserError(f"{origin}: does not fit the model: it {', '.join(said)}.")


def compute_weights_digest(network: nn.Module, needed: Collection[str]) -> str:
    """Compute ``names:`` and a SHA-256 of the names and values of a network's float32 weights.

    The digest does not depend on the order of the tensors, or on the format and the dtype of the
    file with the weights. ``needed`` has the names of the tensors that the features depend on.
    """
    digests = []
    for name, tensor in network.state_dict().items():
        # counts of training steps, which not every file has
        if name in needed and tensor.is_floating_point():
            values = tensor.detach().contiguous().numpy()
            shape = ",".join(map(str, values.shape)).encode()
            digests.append(
                hashlib.sha256(name.encode() + b"|" + shape + b"|" + values.tobytes()).digest()
            )
    return WITH_NAMES + hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def name_some(names: Sequence[str]) -> str:
    """Join the first names of a list, followed by the number of further names."""
    listed = ", ".join(names[:MAX_NAMED])
    return listed + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
