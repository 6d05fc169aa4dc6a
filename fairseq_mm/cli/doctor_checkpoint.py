"""Checks a checkpoint for ``fairseq-mm doctor``: its model, data folder and extractor."""

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli.doctor_data import KINDS, LANGUAGE_MODELS, find_data_folder, set_up
from fairseq_mm.cli.doctor_environment import Finding, describe_error, note, ok, problem
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.inference.checkpoint import Checkpoint

_NAME_ANOTHER = "name another checkpoint"
_USE_ITS_FOLDER = (
    "use the folder that it was trained on, or prepare with its dictionary and features"
)


def check_checkpoint(
    path: str, folder: Optional[str], features: Optional[str], store: Any, weights: Optional[str]
) -> Iterator[Finding]:
    """Check that a checkpoint's model can be built, and fits the data folder and the extractor.

    Yields findings, the lines of the report; a failed check yields a problem.

    Args:
        path: Path of the checkpoint.
        folder: Data folder; None to build the model without a data folder.
        features: Paths of feature stores (default: the stores of the data folder).
        store: The opened feature stores; None if they cannot be opened.
        weights: State dict file of the extractor (default: a file beside the checkpoint).
    """
    try:
        import torch

        from fairseq_mm.inference.checkpoint import Checkpoint
        from fairseq_mm.models._provenance import fingerprint
    except Exception as error:  # a package built for another Python or CUDA raises anything
        yield note(path, f"not checked ({describe_error(error)})", "repair the installation first")
        return
    try:
        checkpoint = Checkpoint.open(path, data=folder)
    except UserError as error:
        yield problem("checkpoint", str(error), _NAME_ANOTHER)
        return
    file, arch = checkpoint.path, checkpoint.arch
    yield ok(file, checkpoint.summary())
    # A training that diverged saves such weights, and fairseq loads them without a message.
    for name, weight in checkpoint.weights.items():
        if torch.is_tensor(weight) and not bool(torch.isfinite(weight).all()):
            yield problem(file, f"{name} has NaN or infinite values", _NAME_ANOTHER)
            break  # NaN spreads to nearly all weights; one name is enough
    if not checkpoint.has_provenance and folder is None:
        text = f"carries no dictionary, as none of fairseq's own models does (--arch {arch})"
        yield note("checkpoint", text, "name its data folder too: --data")
        return
    try:
        checkpoint.build("cpu")  # a GPU may be full
    except UserError as error:
        remedy = _NAME_ANOTHER if checkpoint.has_provenance else _USE_ITS_FOLDER
        yield problem("checkpoint", str(error), remedy)
        return
    if not checkpoint.has_provenance:
        text = f"carries no dictionary (fairseq's --arch {arch}); it fits those of {folder}"
        yield ok("checkpoint", text)
        return
    dictionaries = {"dictionary": checkpoint.words}
    # For a model of captions, source_words is the dictionary of part-of-speech tags.
    source_words = checkpoint.provenance.get("source_words")
    if checkpoint.input_kind == "prompts" and source_words is not None:
        dictionaries = {"source dictionary": source_words, "target dictionary": checkpoint.words}
    for name, words in dictionaries.items():
        kind = f", subwords {checkpoint.subwords['kind']}" if checkpoint.subwords else ""
        yield ok("checkpoint", f"{name} of {len(words)} words, {fingerprint(words)}{kind}")
    fault = None
    if folder is not None and os.path.isdir(folder):
        fault = _find_fault(checkpoint, folder, features)
        if fault is not None:
            yield fault
    if checkpoint.feature_dim:
        yield from _check_extractor(checkpoint.extractor, file, weights)
        # If there is a fault, it may be this one, reported by the folder's task already.
        if fault is None and store is not None:
            yield from _check_features_fit(checkpoint, store)


def _find_fault(
    checkpoint: "Checkpoint", folder: str, features: Optional[str]
) -> Optional[Finding]:
    """Try to build a checkpoint's model in the task of a data folder, as fairseq-generate does.

    Return a problem with the reason if the model cannot be built, else None. ``features`` has paths
    of feature stores; None for the stores of the data folder.
    """
    from fairseq.tasks import TASK_REGISTRY

    root, kind = find_data_folder(folder)
    name = checkpoint.task_name
    if KINDS[kind].inputs != checkpoint.input_kind:
        text = f"is a model of {checkpoint.input_kind} (--task {name}), but {folder} has {kind}"
        return problem("checkpoint", text, "name a data folder of its task")
    places = [root]
    if name == "language_modeling":
        places = [folder]
        # A folder of prompts has one subfolder for each of two language models; the model fits one.
        if not os.path.exists(os.path.join(folder, "dict.txt")):
            places = [os.path.join(folder, part) for part in LANGUAGE_MODELS]
    elif not hasattr(TASK_REGISTRY.get(name), "from_provenance"):
        name = KINDS[kind].task  # models of fairseq's translation run in the folder's task
    errors = []
    for place in places:
        try:
            task = set_up(name, place, features)
            # The state restores the maximum lengths, from which the build sizes position tables.
            task.load_state_dict(checkpoint.task_state)
            checkpoint.build_model(task)
            return None
        except (UserError, FileNotFoundError) as error:
            errors.append(str(error))
    return problem("checkpoint", "; ".join(errors), _USE_ITS_FOLDER)


def _check_extractor(
    identity: Mapping[str, Any], file: str, weights: Optional[str]
) -> Iterator[Finding]:
    """Check that commands which read images or videos will find the weights of the extractor.

    Yields a problem if the file of the weights is missing or is another file. ``identity`` are the
    attributes of the extractor in training, ``file`` is the checkpoint's path, ``weights`` the
    state dict file (default: a file beside the checkpoint).
    """
    from fairseq_mm.extract.weights import checked_weights_file
    from fairseq_mm.inference.extractor_provenance import VECTORS_EXTRACTOR, find_weights_file

    extractor, recorded = identity.get("extractor"), str(identity.get("weights", ""))
    if not extractor:
        text = "carries no extractor: it generates of features, not of files of images or videos"
        yield note("checkpoint", text, "train on a store that names its extractor")
    # Vectors were made by an embedding checkpoint, not by an extractor with weights of its own.
    if not extractor or extractor == VECTORS_EXTRACTOR or not recorded:
        return
    yield from _check_library(str(extractor), str(identity.get("library", "")))
    subject = f"weights of {extractor}"
    try:
        weights_file = find_weights_file(identity, [file], weights)
        if weights_file is None:
            yield from _check_named_weights(subject, str(extractor), recorded)
            return
        checked_weights_file(str(extractor), recorded, weights_file)
    except UserError as error:
        if weights is not None:
            yield problem(subject, str(error), "give the file that the features were made with")
            return
        text = f"no file with the SHA-256 {recorded} in {os.path.dirname(os.path.abspath(file))}"
        remedy = "put the file beside the checkpoint, or give it as --weights FILE here and where "
        remedy += "it is used"
        yield problem(subject, f"{text}, which image and video files need", remedy)
        return
    yield ok(subject, weights_file)


def _check_library(extractor: str, recorded: str) -> Iterator[Finding]:
    """Check that the library of an extractor's network is installed.

    Yields a problem if the library is missing, a note if it has another version. ``recorded`` is
    its name and version, such as ``timm 1.0.31``; empty if the network needs no further library.
    """
    from fairseq_mm.inference.extractor_provenance import LIBRARY_EXTRAS

    distribution, _, version = recorded.partition(" ")
    if distribution not in LIBRARY_EXTRAS:
        return
    subject = f"library of {extractor}"
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        remedy = f"pip install 'fairseq-mm[{LIBRARY_EXTRAS[distribution]}]'"
        yield problem(subject, f"{distribution} is not installed", remedy)
        return
    if installed == version:
        yield ok(subject, recorded)
    else:
        text = f"the features were made with {recorded}, and {installed} is installed"
        remedy = f"if an error names the extractor, pip install {distribution}=={version}"
        yield note(subject, text, remedy)


def _check_named_weights(subject: str, extractor: str, recorded: str) -> Iterator[Finding]:
    """Check that torchvision knows the recorded weights, and whether they are downloaded.

    Yields a problem if torchvision does not know the weights. ``recorded`` is ``torchvision:NAME``;
    other weights are not checked. ``subject`` is the finding's subject, ``extractor`` the name of
    the network.
    """
    source, _, name = recorded.partition(":")
    if source != "torchvision":
        return
    try:
        import torch

        from fairseq_mm.extract.backbones import get_weights_entry

        # torchvision calls torch.hub.load_state_dict_from_url, which caches files in this folder.
        url = get_weights_entry(extractor, name).url
        path = os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(url))
    except UserError as error:
        yield problem(subject, str(error), "install the torchvision that has them")
    except Exception as error:  # a missing or broken torchvision, or one without this model
        yield note(
            subject, f"not checked ({describe_error(error)})", "repair the installation first"
        )
    else:
        if os.path.isfile(path):
            yield ok(subject, path)
        else:
            text = f"{recorded} is not there yet: {path}"
            yield note(subject, text, f"it is downloaded from {url}")


def _check_features_fit(checkpoint: "Checkpoint", store: Any) -> Iterator[Finding]:
    from fairseq_mm.extract.identity import check_same_extractor

    remedy = "extract the features with the checkpoint's extractor"
    dim, extractor = checkpoint.feature_dim, checkpoint.extractor
    # Checkpoint.check_features would accept a store that records only some attributes.
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
