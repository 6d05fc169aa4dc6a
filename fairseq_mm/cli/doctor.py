"""Checks the installation, a data folder, feature stores and a checkpoint.

  fairseq-mm doctor
  fairseq-mm doctor --data data-bin/flickr8k --checkpoint checkpoints/m_rnn

The task of the data folder is set up as in fairseq-train, and the splits are
loaded. The model of the checkpoint is built in this task, or from the
checkpoint alone. Nothing is downloaded.

Each finding is a line: "ok", "note" (something optional is missing) or
"PROBLEM", with a remedy behind "->". The exit status is 2 if there is a
problem. The command also works if a package is missing or broken.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import logging
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.records import counted
from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.errors import EXIT_STATUS, UserError

# modules that extras of fairseq-mm install
EXTRAS = "pycocoevalcap timm pillow_heif av safetensors huggingface_hub fairscale gradio"
_ANEW = "prepare the folder anew with fairseq-mm prepare"


# kind of records -> task of a data folder, and noun of a line
TASKS = {
    "captions": ("multimodal_captioning", "lines"),
    "visual stories": ("visual_storytelling", "lines"),
    "prompts": ("hierarchical_story", "pairs"),
    "videos": ("video_summarization", "videos"),
}

# level (ok, note or PROBLEM), what was checked, result, remedy
Finding = tuple[str, str, str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ("data", "features", "checkpoint", "weights")
    arguments.add(parser, *names, checkpoint={"required": False})


def run(args: argparse.Namespace) -> int:
    # Tasks log while they are set up, and packages warn; both would mix with the findings.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    num_problems = 0
    stores: list[Any] = []
    names = [os.path.join(args.data or "", f"features.{end}") for end in ("h5", "json")]
    checks = [("installation", "install it again", check_environment())]
    if args.features is not None or (args.data and any(map(os.path.exists, names))):
        remedy = "make it anew with extract or store import"
        checks.append(("features", remedy, _check_features(args.data or "", args.features, stores)))
    if args.data:
        checks.append((args.data, _ANEW, _check_data(args.data, args.features, stores)))
    if args.checkpoint:
        remedy = "name another checkpoint, or the folder that it was trained on"
        checks.append(("checkpoint", remedy, _check_checkpoint(args, stores)))
    for level, subject, text, remedy in itertools.chain(*itertools.starmap(_catch, checks)):
        num_problems += level == "PROBLEM"
        line = f"{level:<8} {subject}: {text}" + (f" -> {remedy}" if remedy else "")
        # flushed, so that the last line before a crash shows where the crash happened
        print(" ".join(line.splitlines()), flush=True)
    print(f"{counted(num_problems, 'problem')} found" if num_problems else "no problem found")
    return EXIT_STATUS if num_problems else 0


def _catch(subject: str, remedy: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings. If an exception ends them, as in a broken package, yield it as a problem."""
    try:
        yield from findings
    except Exception as error:
        yield "PROBLEM", subject, _describe(error), remedy


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def check_environment() -> Iterator[Finding]:
    """Check Python, packages, fairseq and the device."""
    yield "ok", "Python", f"{platform.python_version()} at {sys.executable}", ""
    for name in ("numpy", "h5py", "torch", "torchvision"):
        try:
            module = importlib.import_module(name)
            yield "ok", name, getattr(module, "__version__", "of unknown version"), ""
        except Exception as error:  # for example, a package built for another CUDA
            text = f"does not import ({_describe(error)})"
            yield "PROBLEM", name, text, f"pip install --force-reinstall {name}"
    yield from check_fairseq()
    for name in EXTRAS.split():
        if importlib.util.find_spec(name) is None:  # an import can take seconds
            yield "note", name, "not installed", "if an error names it, install it"
        else:
            yield "ok", name, "installed", ""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield "ok", "device", ", ".join(names) or f"CPU, {os.cpu_count()} cores", ""


def check_fairseq() -> Iterator[Finding]:
    """Yield a problem if fairseq is missing, broken, incomplete or installed twice."""
    names = ("fairseq", "fairseq-fixed")
    installed = [x for name in names for x in importlib.metadata.distributions(name=name)]
    build = " and ".join(f"{x.name} {x.version}" for x in installed) or "of unknown origin"
    try:
        if len(installed) == 2:
            raise ImportError("both are installed, in the same folder")
        import fairseq_mm

        fairseq_mm.register()
        # compiled parts without which fairseq reads no data
        for name in ("data_utils_fast", "token_block_utils_fast"):
            importlib.import_module(f"fairseq.data.{name}")
        yield "ok", "fairseq", f"{build} imports", ""
    except Exception as error:
        remedy = "pip uninstall -y fairseq fairseq-fixed, then pip install 'fairseq-mm[fairseq]'"
        yield "PROBLEM", "fairseq", f"{build} does not import ({_describe(error)})", remedy


def find_data_folder(folder: str) -> tuple[str, str]:
    """Return the path of the data folder and the kind of its records. The path differs from
    ``folder`` if this is a language model's subfolder of a data folder."""
    from fairseq_mm.data.record_split import LANGUAGE_MODELS, PROMPTS, VIDEOS

    path = Path(folder).absolute()
    for place in (path, path.parent) if path.name in LANGUAGE_MODELS else (path,):
        for kind in (PROMPTS, VIDEOS):
            if any((place / f"dict.{side}.txt").exists() for side in kind.sides):
                return (folder if place == path else str(place)), kind.name
    with contextlib.suppress(OSError):
        if b"\n<sent> " in b"\n" + (path / "dict.txt").read_bytes():
            return folder, "visual stories"
    return folder, "captions"


def _check_features(folder: str, paths: Optional[str], stores: list[Any]) -> Iterator[Finding]:
    """Open the feature stores, append their union to ``stores``, and check all content."""
    from fairseq_mm.data.feature_store import open_folder_features

    store = open_folder_features(folder, paths)
    # The store records that its values are finite, but they may have changed since then.
    store.check_finite(reread=True)
    for one in store.stores:
        one.check_content()
    stores.append(store)
    yield "ok", store.path, f"{len(store)} items of feature dimension {store.dim}, all finite", ""


def set_up(task: str, folder: str, features: Optional[str]) -> Any:
    """Set up a task in a data folder as ``fairseq-train`` does, with default options."""
    import fairseq_mm

    fairseq_mm.register()  # this imports fairseq, which may be broken
    from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

    options: dict[str, Any] = {"features": features} if features else {}
    cfg = TASK_DATACLASS_REGISTRY[task](data=folder, seed=1, **options)
    return TASK_REGISTRY[task].setup_task(cfg)


def _check_data(folder: str, features: Optional[str], stores: Sequence[Any]) -> Iterator[Finding]:
    """Set up the task of a data folder, and load its splits as training does."""
    from fairseq_mm.data.record_split import KINDS
    from fairseq_mm.data.records import split_names
    from fairseq_mm.prepare.data_folder import is_half_moved

    root, name = find_data_folder(folder)
    (kind,) = (kind for kind in KINDS if kind.name == name)
    task_name, noun = TASKS[name]
    if is_half_moved(folder):
        raise UserError("a run of prepare was killed before its files had moved into place")
    if not kind.sides and not stores and (Path(root) / "dict.txt").exists():
        text = "its text is not checked, as no task can be set up without features"
        yield "note", folder, text, "extract its features; SC-NLM and n-gram models need none"
        return
    task = set_up(task_name, root, features if name != "prompts" else None)
    dictionaries = [task.source_dictionary, task.target_dictionary][-max(len(kind.sides), 1) :]
    for side, dictionary in zip(kind.sides or [""], dictionaries):
        file = f"dict.{side}.txt" if side else "dict.txt"
        words = len(dictionary) - dictionary.nspecial
        yield "ok", os.path.join(root, file), f"{words} words", ""
    if name == "videos" and not stores:
        # The task opens features unless its model reads text only.
        reads_text = SimpleNamespace(reads_video=False, max_positions=lambda: (10**9, 10**9))
        task.models.append(reads_text)
    splits = [split for split in split_names(root) if split in SPLITS]
    if not splits:
        raise UserError(f"has none of the splits {', '.join(SPLITS)}")
    for split in splits:
        try:
            if hasattr(task.cfg, "eval_gen"):  # which reads the references, as a validation does
                path = os.path.join(root, f"{split}.references.jsonl")
                task.cfg.eval_gen = split != "train" or os.path.exists(path)
            # `combine` and `epoch` tell the task that it loads the split for training.
            task.load_dataset(split, combine=False, epoch=1)
        except UserError as error:
            yield "PROBLEM", split, str(error), _ANEW
            continue
        dataset = task.datasets[split]
        items = "" if kind.sides else f" of {len(set(dataset.visual_ids))} items"
        yield "ok", split, f"{len(dataset)} {noun}{items}", ""


def _check_checkpoint(args: argparse.Namespace, stores: Sequence[Any]) -> Iterator[Finding]:
    """Build the model of a checkpoint, with the task of the data folder if one is given, and
    compare the checkpoint's extractor with the feature stores."""
    import torch

    from fairseq_mm.extract.weights import check_same_extractor
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.models._provenance import fingerprint

    checkpoint = Checkpoint.open(args.checkpoint, data=args.data)
    yield "ok", checkpoint.path, checkpoint.summary(), ""
    # A training that diverged saves such weights, and fairseq loads them without a message.
    for name, weight in checkpoint.weights.items():
        if torch.is_tensor(weight) and not bool(torch.isfinite(weight).all()):
            # NaN spreads to nearly all weights; one name is enough
            raise UserError(f"{checkpoint.path}: {name} has NaN or infinite values")
    if not checkpoint.has_provenance and args.data is None:
        text = f"carries no dictionary (fairseq's --arch {checkpoint.arch})"
        yield "note", "checkpoint", text, "name its data folder too: --data"
        return
    checkpoint.build("cpu")  # a GPU may be full
    if not checkpoint.has_provenance:
        text = f"carries no dictionary (fairseq's --arch {checkpoint.arch}); it fits those of"
        yield "ok", "checkpoint", f"{text} {args.data}", ""
        return
    words = {"dictionary": checkpoint.words}
    # For a model of captions, source_words is the dictionary of part-of-speech tags.
    if checkpoint.kind == "prompts" and checkpoint.provenance.get("source_words"):
        words = {"source dictionary": checkpoint.provenance["source_words"]}
        words["target dictionary"] = checkpoint.words
    kind = f", subwords {checkpoint.subwords['kind']}" if checkpoint.subwords else ""
    for name, own in words.items():
        yield "ok", "checkpoint", f"{name} of {len(own)} words, {fingerprint(own)}{kind}", ""
    if args.data is not None and os.path.isdir(args.data):
        _build_in_folder(checkpoint, args.data, args.features)
    identity = checkpoint.extractor
    if stores and checkpoint.feature_dim:
        (store,) = stores
        try:
            checkpoint.check_features(store)
            if identity.get("extractor") and store.attributes.get("extractor"):
                by = {"recorded_by": "the checkpoint's features", "given_by": store.path}
                check_same_extractor(identity, store.attributes, **by)
        except UserError as error:
            remedy = "extract the features with the checkpoint's extractor"
            yield "PROBLEM", "checkpoint", str(error), remedy
    subject = f"weights of {identity.get('extractor')}"
    remedy = "put the file beside the checkpoint, or name it with --weights"
    yield from _catch(subject, remedy, _find_weights(subject, checkpoint, args.weights))


def _find_weights(subject: str, checkpoint: Any, given: Optional[str]) -> Iterator[Finding]:
    from fairseq_mm.extract.weights import check_weights_file
    from fairseq_mm.inference.image_processor import find_weights_file

    recorded = str(checkpoint.extractor.get("weights", ""))
    if len(recorded) == 64:  # SHA-256 of a file; published weights have a name instead
        name = str(checkpoint.extractor.get("extractor"))
        file: Any = find_weights_file(checkpoint.extractor, [checkpoint.path], given)
        check_weights_file(name, recorded, file)
        yield "ok", subject, file, ""


def _build_in_folder(checkpoint: Any, folder: str, features: Optional[str]) -> None:
    """Build a checkpoint's model in the task of a data folder, as fairseq-generate does."""
    from fairseq.tasks import TASK_REGISTRY

    root, kind = find_data_folder(folder)
    name = checkpoint.task_name
    if TASK_REGISTRY[TASKS[kind][0]].input_kind != checkpoint.task_class.input_kind:
        about = f"is a model of {checkpoint.task_class.input_kind} (--task {name})"
        raise UserError(f"{about}, but {folder} has {kind}")
    if name != "language_modeling":  # whose folder is one of two subfolders
        # models of fairseq's translation run in the folder's task
        is_ours = hasattr(TASK_REGISTRY.get(name), "from_provenance")
        task = set_up(name if is_ours else TASKS[kind][0], root, features)
        # The state restores the maximum lengths, from which the build sizes position tables.
        task.load_state_dict(checkpoint.task_state)
        checkpoint.build_model(task)
