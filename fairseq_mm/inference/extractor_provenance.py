"""The features that a checkpoint was trained on: its extractor's weights, and other features beside
them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError
from fairseq_mm.extract.identity import IDENTITY, check_same_extractor

WEIGHT_SUFFIXES = (".pt", ".pth", ".bin")
# what `fairseq-mm embed` records as the extractor of its vectors
VECTORS_EXTRACTOR = "fairseq-mm embed"


def check_recorded(identity: Mapping[str, Any], file: str, *, noun: str) -> None:
    """
    Args:
        identity: of the extractor, as a checkpoint carries it.
        file: the checkpoint.
        noun: ``image`` or ``video``.

    Raises:
        UserError: if it carries none, or was trained on vectors of an embedding model.
    """
    if identity.get("extractor") == VECTORS_EXTRACTOR:
        raise UserError(
            f"{file}: was trained on vectors of an embedding model (checkpoint "
            f"{identity.get('weights')}), which no extractor makes of a {noun}. Give that "
            "checkpoint (--embedding PATH; in Python embedding=...), or its vectors (--features "
            "STORE)."
        )
    if not identity.get("extractor"):
        raise UserError(
            f"{file}: was trained on features whose extractor is not recorded, so no {noun} can be "
            "turned into such features. Record it (fairseq-mm store import --extractor NAME "
            "--weights FILE --layer NAME --preprocessing JSON) and train on that store, or give "
            "features (--features STORE)."
        )


def find_weights_file(
    identity: Mapping[str, Any], files: Sequence[str], given: Optional[str]
) -> Optional[str]:
    """The extractor's state dict file: the given one, or one beside a checkpoint that has the
    recorded content; None where the weights are known by a name.

    Args:
        identity: of the extractor, as the checkpoints carry it.
        files: the checkpoints.
        given: a state dict file, or None.

    Raises:
        UserError: if a file is given where none is needed, or none is found.
    """
    recorded = str(identity.get("weights"))
    if len(recorded) != 64:  # no SHA-256 of a file: weights with a name
        if given is not None:
            raise UserError(
                f"the features were made with the weights {recorded}, which are fetched by "
                f"their name; {given} (--weights) cannot take their place."
            )
        return None
    if given is not None:
        return given
    for folder in dict.fromkeys(os.path.dirname(os.path.abspath(file)) for file in files):
        for name in sorted(os.listdir(folder)):
            file = os.path.join(folder, name)
            is_candidate = name.endswith(WEIGHT_SUFFIXES) and not name.startswith("checkpoint")
            if is_candidate and os.path.isfile(file) and compute_sha256(file) == recorded:
                return file
    raise UserError(
        f"was trained on features of {identity['extractor']} with weights from a file "
        f"(SHA-256 {recorded}). Give that file (--weights FILE; in Python weights=...), or put "
        "it beside the checkpoint."
    )


def check_store_extractor(
    identity: Mapping[str, Any],
    feature_dim: int,
    file: str,
    *,
    attributes: Mapping[str, Any],
    dim: int,
    path: str,
) -> None:
    """
    Args:
        identity: of the extractor, as a checkpoint carries it.
        feature_dim: dimension that it was trained on.
        file: the checkpoint.
        attributes: of a feature store.
        dim: dimension of its features.
        path: its file.

    Raises:
        UserError: if the checkpoint was trained on other features than the store's.
    """
    if dim != feature_dim:
        raise UserError(
            f"{path}: features have dimension {dim}, but {file} was trained on {feature_dim}."
        )
    if not identity.get("extractor") or not attributes.get("extractor"):
        return
    if all(name in identity and name in attributes for name in IDENTITY):
        check_same_extractor(
            identity,
            attributes,
            recorded_by=f"the features that {file} was trained on",
            given_by=path,
        )
        return
    # features that no extractor of this package made record what they please
    for name in IDENTITY:
        ours, theirs = identity.get(name), attributes.get(name)
        if name in identity and name in attributes and ours != theirs:
            raise UserError(
                f"{path}: was made with {name} = {theirs!r}, but {file} was trained on features "
                f"with {ours!r}."
            )
