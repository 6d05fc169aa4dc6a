"""The doctor's findings of a checkpoint: what building its model says, and its extractor."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from fairseq_mm.cli.doctor_data import KINDS, LANGUAGE_MODELS, folder_of, set_up
from fairseq_mm.cli.doctor_environment import Finding, note, ok, problem, reason_of
from fairseq_mm.errors import UserError

_ANOTHER = "name another checkpoint"
_ITS_FOLDER = "use the folder that it was trained on, or prepare with its dictionary and features"


def check_checkpoint(
    path: str, folder: Optional[str], features: Optional[str], store: Any, weights: Optional[str]
) -> Iterator[Finding]:
    """
    Args:
        path: checkpoint, or folder with one.
        folder: data folder in which the model is built; None builds it by itself.
        features: feature stores that are given, or None.
        store: the features, opened; None where there are none.
        weights: state dict file of its extractor; None finds it beside the checkpoint.
    """
    try:
        import torch

        from fairseq_mm.inference import checkpoints, loading
        from fairseq_mm.inference.checkpoint_files import checkpoint_file
        from fairseq_mm.models._provenance import STATE_KEY, fingerprint
    except Exception as error:
        yield note(path, f"not checked ({reason_of(error)})", "repair the installation first")
        return
    try:
        file = checkpoint_file(path)
        state = checkpoints.load_checkpoint(file)
    except UserError as error:
        yield problem("checkpoint", str(error), _ANOTHER)
        return
    cfg = state["cfg"]
    arch = cfg["model"]["_name"]
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates", "unknown")
    epoch = state.get("extra_state", {}).get("train_iterator", {}).get("epoch", "unknown")
    yield ok(
        file, f"--arch {arch}, --task {cfg['task']['_name']}, {updates} updates, epoch {epoch}"
    )
    for name, weight in state["model"].items():
        if torch.is_tensor(weight) and not bool(torch.isfinite(weight).all()):
            yield problem(file, f"{name} has NaN or infinite values", _ANOTHER)
            break
    carries = STATE_KEY in state["model"]
    if not carries and folder is None:
        text = f"carries no dictionary, as none of fairseq's own models does (--arch {arch})"
        yield note("checkpoint", text, "name its data folder too: --data")
        return
    try:
        data = None if carries else folder
        carried = loading.load_models(file, data=data, device="cpu", states={file: state})
    except UserError as error:
        yield problem("checkpoint", str(error), _ANOTHER if carries else _ITS_FOLDER)
        return
    if not carries:
        text = f"carries no dictionary (fairseq's --arch {arch}); it fits those of {folder}"
        yield ok("checkpoint", text)
        return
    provenance = carried.provenance
    inputs = loading.task_class_of(state).input_kind
    named = {"dictionary": provenance["words"]}
    if inputs == "prompts" and provenance.get("source_words") is not None:
        source = {"source dictionary": provenance["source_words"]}
        named = {**source, "target dictionary": provenance["words"]}
    subwords = provenance.get("subwords")
    for name, words in named.items():
        kind = f", subwords {subwords['kind']}" if subwords else ""
        yield ok("checkpoint", f"{name} of {len(words)} words, {fingerprint(words)}{kind}")
    fault = None
    if folder is not None and os.path.isdir(folder):
        fault = _fault_in_folder(file, state, inputs, folder, features)
        if fault is not None:
            yield fault
    if provenance["feature_dim"]:
        yield from _check_extractor(provenance["extractor"], file, weights)
        if fault is None and store is not None:
            yield from _check_features_fit(provenance, store)


def _fault_in_folder(
    file: str, state: dict[str, Any], inputs: str, folder: str, features: Optional[str]
) -> Optional[Finding]:
    """Why a model cannot be built in a data folder's task, as fairseq-generate builds it."""
    from fairseq_mm.inference import checkpoints, loading

    root, kind = folder_of(folder)
    name = state["cfg"]["task"]["_name"]
    if KINDS[kind].inputs != inputs:
        text = f"is a model of {inputs} (--task {name}), but {folder} has {kind}"
        return problem("checkpoint", text, "name a data folder of its task")
    places = [root]
    if name == "language_modeling":
        places = [folder]
        if not os.path.exists(os.path.join(folder, "dict.txt")):
            places = [os.path.join(folder, part) for part in LANGUAGE_MODELS]
    elif not hasattr(loading.TASK_REGISTRY.get(name), "from_provenance"):
        name = KINDS[kind].task
    errors = []
    for place in places:
        try:
            task = set_up(name, place, features)
            task.load_state_dict(state.get("task_state") or {})
            checkpoints.build_model(task, loading.without_files(state), file)
            return None
        except (UserError, FileNotFoundError) as error:
            errors.append(str(error))
    return problem("checkpoint", "; ".join(errors), _ITS_FOLDER)


def _check_extractor(
    identity: Mapping[str, Any], file: str, weights: Optional[str]
) -> Iterator[Finding]:
    """Whether the commands that read image or video files find the extractor's weights."""
    from fairseq_mm.extract.weights import checked_weights_file
    from fairseq_mm.inference.extractor_provenance import VECTORS_EXTRACTOR, weights_file_of

    extractor, recorded = identity.get("extractor"), str(identity.get("weights", ""))
    if not extractor:
        text = "carries no extractor: it generates of features, not of files of images or videos"
        yield note("checkpoint", text, "train on a store that names its extractor")
    if not extractor or extractor == VECTORS_EXTRACTOR or not recorded:
        return
    subject = f"weights of {extractor}"
    try:
        found = weights_file_of(identity, [file], weights)
        if found is None:
            yield from _check_named_weights(subject, str(extractor), recorded)
            return
        checked_weights_file(str(extractor), recorded, found)
    except UserError as error:
        if weights is not None:
            yield problem(subject, str(error), "give the file that the features were made with")
            return
        text = f"no file with the SHA-256 {recorded} in {os.path.dirname(os.path.abspath(file))}"
        remedy = (
            "put the file beside the checkpoint, or give it as --weights FILE here and where it is "
            "used"
        )
        yield problem(subject, f"{text}, which image and video files need", remedy)
        return
    yield ok(subject, found)


def _check_named_weights(subject: str, extractor: str, recorded: str) -> Iterator[Finding]:
    """Weights that torchvision fetches by a name."""
    source, _, name = recorded.partition(":")
    if source != "torchvision":
        return
    try:
        import torch

        from fairseq_mm.extract.backbones import weights_entry

        url = weights_entry(extractor, name).url
        path = os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(url))
    except UserError as error:
        yield problem(subject, str(error), "install the torchvision that has them")
    except Exception as error:  # a missing or broken torchvision, or one without this model
        yield note(subject, f"not checked ({reason_of(error)})", "repair the installation first")
    else:
        if os.path.isfile(path):
            yield ok(subject, path)
        else:
            text = f"{recorded} is not there yet: {path}"
            yield note(subject, text, f"it is downloaded from {url}")


def _check_features_fit(carried: Mapping[str, Any], store: Any) -> Iterator[Finding]:
    from fairseq_mm.extract.identity import check_same_extractor

    remedy = "extract the features with the checkpoint's extractor"
    dim, extractor = carried["feature_dim"], carried["extractor"]
    if store.dim != dim:
        yield problem(
            "checkpoint", f"needs feature dimension {dim}, but {store.path} has {store.dim}", remedy
        )
    elif extractor.get("extractor") and store.attributes.get("extractor"):
        try:
            check_same_extractor(
                extractor,
                store.attributes,
                recorded_by="the checkpoint's features",
                given_by=store.path,
            )
        except UserError as error:
            yield problem("checkpoint", str(error), remedy)
