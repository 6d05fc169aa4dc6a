"""Compares the extractors that feature stores and checkpoints record, before features are used.

Two extractors are the same if their model, weights, layer, grid, preprocessing and decoder of
images are equal. The version of this package, the version of the network's library and the date are
recorded as well, but not compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_mm.data.input_files import parse_json
from fairseq_mm.errors import UserError
from fairseq_mm.extract.weights import PUBLISHERS, WITH_NAMES

# attributes of a feature store that determine the rows of an image
IDENTITY = ("extractor", "weights", "layer", "grid", "preprocessing")
# compared if both extractors have it: networks of torchvision, and older stores, have none
WEIGHTS_DIGEST = "weights_digest"
# attribute of stores of earlier versions whose images a GPU decoded
DECODER = "decoder"
PILLOW = "Pillow"
# what `fairseq-mm embed` records as the extractor of its vectors
VECTORS_EXTRACTOR = "fairseq-mm embed"


def check_is_recorded(attributes: Mapping[str, object], owner: str) -> None:
    """Raise UserError, which names ``owner``, if attributes that identify an extractor are
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
    """Raise UserError if two extractors, given by the attributes of a store or checkpoint, differ;
    ``recorded_by`` and ``given_by`` name them."""
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
    """Raise UserError if a network that was built again has other weights, or another layer, than a
    feature store records.

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
