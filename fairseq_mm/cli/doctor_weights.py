"""The doctor's look for the extractor that a checkpoint's features were made with."""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Optional

from fairseq_mm.cli.doctor_data import checked
from fairseq_mm.cli.doctor_findings import Finding, note, ok, problem, reason_of
from fairseq_mm.errors import UserError


def check_extractor_weights(
    identity: Mapping[str, Any], file: str, weights: Optional[str]
) -> list[Finding]:
    """Whether the commands that read image or video files find the extractor's weights.

    Args:
        identity: of the extractor, as the checkpoint carries it.
        file: the checkpoint.
        weights: the state dict file that is given, or None: it is looked for beside the checkpoint,
            by its content.
    """
    from fairseq_mm.extract.weights import checked_weights_file
    from fairseq_mm.inference.extractor_provenance import VECTORS_EXTRACTOR, weights_file_of

    extractor, recorded = identity.get("extractor"), str(identity.get("weights", ""))
    if not extractor or extractor == VECTORS_EXTRACTOR or not recorded:
        return []
    subject = f"weights of {extractor}"
    try:
        found = weights_file_of(identity, [file], weights)
        if found is None:
            return _check_named(subject, str(extractor), recorded)
        checked_weights_file(str(extractor), recorded, found)
    except UserError as error:
        if weights is not None:
            return [problem(subject, str(error), "give the file that the features were made with")]
        folder = os.path.dirname(os.path.abspath(file))
        return [
            problem(
                subject,
                f"no file with the SHA-256 {recorded} in {folder}, which image and video files "
                "need",
                "put the file beside the checkpoint, or give it as --weights FILE here and where "
                "it is used",
            )
        ]
    return [ok(subject, found)]


def _check_named(subject: str, extractor: str, recorded: str) -> list[Finding]:
    """Weights that torchvision fetches by a name."""
    source, _, name = recorded.partition(":")
    if source != "torchvision":
        return []
    try:
        import torch

        from fairseq_mm.extract.backbones import weights_entry

        url = weights_entry(extractor, name).url
        path = os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(url))
    except UserError as error:
        return [problem(subject, str(error), "install the torchvision that has them")]
    except Exception as error:  # a missing or broken torchvision, or one without this model
        return [note(subject, f"not checked ({reason_of(error)})", "repair the installation first")]
    if os.path.isfile(path):
        return [ok(subject, path)]
    return [note(subject, f"{recorded} is not there yet: {path}", f"it is downloaded from {url}")]


def check_features_fit(carried: Mapping[str, Any], store: Any) -> list[Finding]:
    """Whether a model can read a feature store.

    Args:
        carried: of its checkpoint, see :func:`.provenance_of`.
        store: the features; None where there is none.
    """
    from fairseq_mm.extract.identity import check_same_extractor

    if store is None:
        return []
    remedy = "extract the features with the checkpoint's extractor"
    dim, extractor = carried["feature_dim"], carried["extractor"]
    if store.dim != dim:
        text = f"needs {dim} channels, but {store.path} has {store.dim}"
        return [problem("checkpoint", text, remedy)]
    if extractor.get("extractor") and store.attributes.get("extractor"):
        check = partial(
            check_same_extractor,
            extractor,
            store.attributes,
            recorded_by="the checkpoint's features",
            given_by=store.path,
        )
        return checked("checkpoint", remedy, check)
    return []
