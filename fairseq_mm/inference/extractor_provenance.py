"""Checks that features match a checkpoint's training features, and finds extractor weights."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError
from fairseq_mm.extract.identity import (
    IDENTITY,
    WEIGHTS_DIGEST,
    check_same_extractor,
    has_name_and_digest,
)
from fairseq_mm.extract.weights import SUFFIXES, is_digest

# library of an extractor's network, as it is recorded -> extra that installs it
LIBRARY_EXTRAS = {"timm": "timm"}
# what `fairseq-mm embed` records as the extractor of its vectors
VECTORS_EXTRACTOR = "fairseq-mm embed"


def check_recorded(identity: Mapping[str, Any], file: str, *, noun: str) -> None:
    """Check that a checkpoint records an extractor that makes features of images or videos.

    Args:
        identity: Attributes of the extractor, from the checkpoint.
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
    """Return the path of an extractor's weights file (state dict).

    Weights from a file are recorded in ``identity`` by the file's SHA-256; the file is searched in
    the folders of the checkpoints. Published weights are recorded by their name. If the digest of
    their values is also recorded, the user's file can replace them.

    Args:
        identity: Attributes of the extractor, from the checkpoints.
        given: Path that the user gave, or None.

    Returns:
        ``given`` if it is not None, otherwise the path that was found. None for published weights
        without ``given``, which the extractor downloads.
    """
    recorded = str(identity.get("weights"))
    if not is_digest(recorded):
        if given is not None and not has_name_and_digest(identity):
            raise UserError(
                f"the features were made with the weights {recorded}, which are fetched by "
                f"their name; {given} (--weights) cannot take their place."
            )
        return given
    if given is not None:
        return given
    for folder in dict.fromkeys(os.path.dirname(os.path.abspath(file)) for file in files):
        for name in sorted(os.listdir(folder)):
            file = os.path.join(folder, name)
            # checkpoints are large, and hashing them takes seconds each
            is_candidate = name.endswith(SUFFIXES) and not name.startswith("checkpoint")
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
    """Check that a feature store has the same kind of features as a checkpoint's training data.

    Attributes of the extractor that the checkpoint or the store lacks are not compared.

    Args:
        identity: Attributes of the extractor, from the checkpoint.
        feature_dim: Dimension of the training features.
    """
    if dim != feature_dim:
        raise UserError(
            f"{path}: features have dimension {dim}, but {file} was trained on {feature_dim}."
        )
    # stores that were imported often have no record of their extractor
    if not identity.get("extractor") or not attributes.get("extractor"):
        return
    if all(name in identity and name in attributes for name in IDENTITY):
        by = {"recorded_by": f"the features that {file} was trained on", "given_by": path}
        check_same_extractor(identity, attributes, **by)
        return
    # an imported store may record only some of the fields, in any form
    for name in (*IDENTITY, WEIGHTS_DIGEST):
        ours, theirs = identity.get(name), attributes.get(name)
        if name in identity and name in attributes and ours != theirs:
            raise UserError(
                f"{path}: was made with {name} = {theirs!r}, but {file} was trained on features "
                f"with {ours!r}."
            )
