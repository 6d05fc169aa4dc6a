"""Checkpoint files -> task and model, from what the checkpoint itself carries.

fairseq's own loading asks for the data folder that a model was trained on; a captioner is to work
where there is none.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Optional

import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from omegaconf import OmegaConf, open_dict

from fairseq_mm.compat.loading import named_failures
from fairseq_mm.compat.unpickling import refusal
from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import (
    STATE_KEY,
    are_same_subwords,
    decode_provenance,
    fingerprint,
)


def usable_device(name: Optional[str]) -> torch.device:
    """The named device; by default a GPU if there is one, else the CPU.

    Raises:
        UserError: if there is no such device.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(0, device=name).device
        if device.type == "meta":
            raise UserError("device meta: has no memory, and computes nothing.")
        return device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name}: {str(error).splitlines()[0]}") from None


def load_checkpoint(path: str) -> dict[str, Any]:
    """A checkpoint as fairseq reads it, on the CPU.

    Raises:
        UserError: if the file is no fairseq checkpoint, was cut off, needs code to be unpickled, or
            holds options that fairseq would evaluate and that are no literals.
    """
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
        _unify_sections(state["cfg"])
        names = [state["cfg"][section]["_name"] for section in ("task", "model")]
        if state["model"] and all(names):
            for kind, found in ((Mapping, state["model"]), *((str, name) for name in names)):
                if not isinstance(found, kind):
                    raise TypeError(f"its model or configuration is a {type(found).__name__}")
            return state
        error: Exception = ValueError("no model or configuration in it")
    except UserError:
        raise
    except Exception as raised:  # torch and fairseq raise nearly anything on other files
        error = raised
    raise refusal(path, error, kind="fairseq checkpoint")


def _unify_sections(cfg: Any) -> None:
    """fairseq leaves the options of its older tasks and models as they were parsed."""
    with open_dict(cfg):
        for name in ("task", "model"):
            if isinstance(cfg[name], Namespace):
                section = OmegaConf.create()
                # what OmegaConf 2.0, which stock fairseq asks for, takes no argument for
                section._set_flag("allow_objects", True)
                for key, value in vars(cfg[name]).items():
                    section[key] = value
                cfg[name] = section


def provenance_of(state: Mapping[str, Any], path: str) -> dict[str, Any]:
    """``words``, ``extractor``, ``feature_dim`` and whatever else a checkpoint carries of its data,
    see :func:`fairseq_mm.models._provenance.decode_provenance`.

    Raises:
        UserError: if the checkpoint does not carry them, or not as they should be.
    """
    try:
        return decode_provenance(state["model"][STATE_KEY])
    except UserError as error:
        raise naming(path, error) from None
    except KeyError:
        raise UserError(
            f"{path}: carries no dictionary (--arch {state['cfg']['model']['_name']}, --task "
            f"{state['cfg']['task']['_name']}): it is no model of fairseq_mm, or of an earlier "
            "version: train it again."
        ) from None


def check_ensemble(
    first: str, ours: Mapping[str, Any], other: str, theirs: Mapping[str, Any]
) -> None:
    """
    Args:
        first: a checkpoint.
        ours: its :func:`provenance_of`.
        other: another one.
        theirs: the other's.

    Raises:
        UserError: if the two cannot be averaged.
    """
    if ours["words"] != theirs["words"]:
        raise UserError(
            f"{other}: has another dictionary ({len(theirs['words'])} words, fingerprint "
            f"{fingerprint(theirs['words'])}) than {first} ({len(ours['words'])}, "
            f"{fingerprint(ours['words'])}): an ensemble needs one."
        )
    if ours.get("source_words") != theirs.get("source_words"):
        raise UserError(
            f"{other}: has another dictionary of the source text than {first}: an ensemble needs "
            "one."
        )
    if not are_same_subwords(ours.get("subwords"), theirs.get("subwords")):
        raise UserError(f"{other}: was trained on other subwords than {first}.")
    for name in ("feature_dim", "rows_per_image", "extractor"):
        if ours.get(name) != theirs.get(name):
            raise UserError(
                f"{other}: was trained on other features than {first}: {name} is "
                f"{theirs.get(name)} and {ours.get(name)}."
            )


def build_model(task: Any, state: Mapping[str, Any], path: str) -> Any:
    """The model of a checkpoint with its weights, in evaluation mode.

    Raises:
        UserError: if the architecture is not known, or the weights do not fit it.
    """
    cfg = state["cfg"].model
    name = cfg._name
    if name not in MODEL_REGISTRY and name not in ARCH_MODEL_REGISTRY:
        raise UserError(
            f"{path}: --arch {name} is not known to this version of fairseq_mm. Update it: pip "
            "install -U fairseq-mm"
        )
    try:
        with named_failures(path):
            model = task.build_model(cfg, from_checkpoint=True)
            try:
                model.load_state_dict(state["model"], strict=True, model_cfg=cfg)
            except RuntimeError as error:
                raise UserError(f"its weights do not fit --arch {name}: {error}") from None
    except UserError as error:
        raise naming(path, error) from None
    return model.eval()


def naming(path: str, error: UserError) -> UserError:
    """The error with the checkpoint's name before it, where it has none."""
    return error if str(error).startswith(f"{path}: ") else UserError(f"{path}: {error}")
