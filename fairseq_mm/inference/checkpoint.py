"""Opens checkpoints and builds their models.

A checkpoint of this package contains its dictionaries, its subword model and the identity of its
feature extractor, so that a model can be built without the data folder of its training. For
checkpoints of fairseq's own models, the argument ``data`` names the data folder.
"""

import contextlib
import copy
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.bart import BARTModel
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

from fairseq_mm.compat.loading import FOLDER_KEY, load_checkpoint
from fairseq_mm.data.feature_store import EXTRACTOR_NOTES
from fairseq_mm.errors import UserError, find_message
from fairseq_mm.extract.weights import check_store_extractor
from fairseq_mm.inference.checkpoint_files import (
    Path,
    Paths,
    checkpoint_file,
    checkpoint_files,
    compute_checkpoint_digest,
)
from fairseq_mm.models._provenance import (
    STATE_KEY,
    decode_provenance,
    list_words,
    subwords_fingerprint,
)
from fairseq_mm.models._vg_bart_parts import share_beams
from fairseq_mm.tasks.hierarchical_story import HierarchicalStoryTask

# tasks of fairseq whose models generate stories from prompts, and prompts
_TASKS_OF_TEXT = ("translation", "language_modeling")
# modules of fairseq whose models the commands read
_FAMILIES = (
    *("bart", "lstm", "lstm_lm", "transformer", "transformer_lm"),
    *("fconv", "fconv_lm", "fconv_self_att"),
)


@contextlib.contextmanager
def named_failures(
    path: str, what: str = "no model can be made of this checkpoint"
) -> Iterator[None]:
    """Convert all exceptions to UserErrors that name the checkpoint: options of a downloaded
    checkpoint may have any type, so that any exception is possible."""
    try:
        yield
    except OSError:
        raise
    except UserError as error:
        # an error that names the checkpoint, or a file of its folder, stays as it is
        if str(error).startswith((path, os.path.dirname(path) or path)):
            raise
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        if find_message(error) is not None:
            raise
        raise UserError(f"{path}: {what}: {type(error).__name__}: {str(error)[:500]}") from error


@dataclass(frozen=True)
class LoadedModels:
    """One model, or the models of an ensemble, ready to generate.

    Args:
        files: Path of each model's checkpoint.
        architectures: Name of each model's architecture (``--arch``).
        extractor: Attributes that identify the extractor of the training features; empty if the
            checkpoints do not record them.
        feature_dim: Dimension of the training features; 0 if the models read text only.
    """

    task: Any
    models: list[Any]
    files: list[str]
    architectures: list[str]
    extractor: dict[str, Any]
    feature_dim: int
    device: torch.device

    @property
    def dictionary(self) -> Dictionary:
        """Dictionary of the generated text."""
        return self.task.target_dictionary

    @property
    def source_dictionary(self) -> Optional[Dictionary]:
        """Dictionary of the text that the models read; None if they read no text, and for language
        models."""
        return None if self.are_language_models else self.task.source_dictionary

    @property
    def are_language_models(self) -> bool:
        return isinstance(self.task, HierarchicalStoryTask) and not self.task.reads_prompts

    def prepare_for_generation(self) -> None:
        """Call ``make_generation_fast_`` of the models; they cannot be trained afterwards."""
        for file, model in zip(self.files, self.models):
            if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
                raise UserError(
                    f"{file}: has weights that are not finite: its training has diverged; take an "
                    "earlier checkpoint."
                )
            model.make_generation_fast_()
            if type(model) is BARTModel:
                share_beams(model)
            # fairseq's replacement of `train` is a function within a function: not picklable
            model.train = _refuse_training


def _refuse_training(mode: bool = True) -> None:
    """Raise RuntimeError if ``mode`` is True.

    This function replaces the method ``train`` of models that are prepared for generation.
    """
    if mode:
        raise RuntimeError("cannot train a model that was prepared for inference")


class Checkpoint:
    """Content of a checkpoint file or a model folder: config, weights, and a record of the
    training data.

    Args:
        path: Path of the checkpoint file, or of the ``model.safetensors`` of a model folder.
        state: Content of the file, as fairseq reads it.
        data: Folder of the training data, to read the dictionary from if the file has none.

    Attributes:
        cfg: Config of the training, with the sections ``task`` and ``model``.
        arch: Name of the model's architecture (``--arch``).
        task_name: Name of the task that the model was trained with (``--task``).
        weights: State dict of the model.
        task_state: State that the task saved in the checkpoint.
        has_provenance: True if the file contains dictionaries and the extractor's identity.
        is_embedding: True if the model embeds images and sentences, and generates no text.
        reads_structure: True if the model generates from a part-of-speech sequence and a content
            vector.
        task_class: Class of the task that generates with the model: the class of its training task,
            or :class:`.HierarchicalStoryTask` if the training task is fairseq's own.
        input_kind: Kind of the model's inputs: ``images``, ``videos`` or ``prompts``.
        command: Subcommand of ``fairseq-mm`` that the model is meant for; empty if there is none.
        kind: Kind of the model: ``vectors`` (of images and sentences), or the kind of its task,
            such as ``captions``; empty for tasks of other packages.
        folder_config: Content of a model folder's ``config.json``; None for a checkpoint file.
    """

    def __init__(self, path: str, state: Mapping[str, Any], *, data: Optional[Path] = None) -> None:
        self.path = path
        self.state = state
        self.folder_config: Optional[dict[str, Any]] = state.get(FOLDER_KEY)
        # a folder has the dictionaries of fairseq's own models as a data folder has them
        is_folder = self.folder_config is not None
        self.data = os.path.dirname(path) or os.curdir if is_folder else data
        self.cfg = state["cfg"]
        self.arch = str(self.cfg["model"]["_name"])
        self.task_name = str(self.cfg["task"]["_name"])
        self.weights: Mapping[str, Any] = state["model"]
        # older builds of fairseq save no state of the task
        self.task_state: Mapping[str, Any] = state.get("task_state") or {}
        self.has_provenance = STATE_KEY in self.weights
        kind, task = ARCH_MODEL_REGISTRY.get(self.arch), TASK_REGISTRY.get(self.task_name)
        self.is_embedding = hasattr(kind, "embed_sentences")
        self.reads_structure: bool = getattr(kind, "reads_structure", False)
        # fairseq's own tasks cannot be built without a data folder; their models of text are
        # generated from by the task of prompts, which can
        is_of_fairseq = not hasattr(task, "from_provenance")
        self.task_class: Any = HierarchicalStoryTask if is_of_fairseq else task
        self.input_kind: str = self.task_class.input_kind
        is_known = not is_of_fairseq or self.task_name in _TASKS_OF_TEXT
        self.command = self.task_class.command if is_known else ""
        self.kind = self.task_class.kind if is_known else ""
        if self.is_embedding:
            self.command, self.kind = "rank", "vectors"

    @property
    def num_updates(self) -> int:
        """Number of updates of the training; 0 if the file does not say it."""
        updates: int = (self.state.get("optimizer_history") or [{}])[-1].get("num_updates", 0)
        return updates

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}: --arch {self.arch}, --task {self.task_name})"

    @classmethod
    def open(cls, path: Path, *, data: Optional[Path] = None) -> "Checkpoint":
        """Read a checkpoint onto the CPU, without executing pickled code, see :meth:`open_all`."""
        return cls._read(checkpoint_file(os.fspath(path)), data=data)

    @classmethod
    def open_all(
        cls, path: Paths, *, data: Optional[Path] = None, command: Optional[str] = None
    ) -> "list[Checkpoint]":
        """Read one checkpoint or the checkpoints of an ensemble.

        Args:
            path: Checkpoint, in the forms of :func:`.checkpoint_file`. Several are a list, or a
                string joined by ``os.pathsep``.
            data: Folder of the training data, to read the dictionary from if a checkpoint has none.
            command: Subcommand of ``fairseq-mm`` that the models must be meant for; None for any.
        """
        checkpoints = [cls._read(file, data=data) for file in checkpoint_files(path)]
        if command is not None:
            for checkpoint in checkpoints:
                checkpoint.check_command(command)
        return checkpoints

    @classmethod
    def _read(cls, file: str, *, data: Optional[Path]) -> "Checkpoint":
        with named_failures(file, "is no fairseq checkpoint"):
            state = load_checkpoint(file)
            _unify_sections(state["cfg"])
            names = [state["cfg"][section]["_name"] for section in ("task", "model")]
            is_model = isinstance(state["model"], Mapping)
            if not is_model or not all(isinstance(name, str) for name in names):
                raise TypeError("it has no model or no configuration")
        checkpoint = cls(file, state, data=data)
        checkpoint._check_registered()
        return checkpoint

    def _check_registered(self) -> None:
        # presets are only in the first registry, older models of fairseq only in the second
        kind = ARCH_MODEL_REGISTRY.get(self.arch) or MODEL_REGISTRY.get(self.arch)
        module = ["", "", ""] if kind is None else kind.__module__.split(".")
        is_other = module[0] == "fairseq" and module[2] not in _FAMILIES
        if kind is not None and not is_other and self.task_name in TASK_REGISTRY:
            return
        common = self.cfg.get("common")
        # unresolved, since an interpolation could read variables of the environment
        options: Any = OmegaConf.to_container(common) if isinstance(common, DictConfig) else {}
        folder = options.get("user_dir")
        trained = f" It was trained with --user-dir {folder!r}." if isinstance(folder, str) else ""
        of_fairseq = " fairseq's BART, LSTM, transformer and convolutional models are known."
        raise UserError(
            f"{self.path}: --arch {self.arch} (--task {self.task_name}) is not known: load its "
            "plugin (--user-dir DIR; in Python import it), or update fairseq_mm."
            f"{of_fairseq if is_other else trained}"
        )

    def check_command(self, command: str) -> None:
        """Check that the model is meant for a subcommand of ``fairseq-mm``."""
        if self.command != command:
            of = f"fairseq-mm {self.command}" if self.command else "no subcommand of fairseq-mm"
            raise UserError(
                f"{self.path}: --arch {self.arch} (--task {self.task_name}) is a model of {of}, "
                f"not of fairseq-mm {command}."
            )

    def summary(self) -> str:
        """Describe the checkpoint in one line: architecture, task, number of updates, epoch."""
        updates = (self.state.get("optimizer_history") or [{}])[-1].get("num_updates", "unknown")
        iterator = self.state.get("extra_state", {}).get("train_iterator", {})
        epoch = iterator.get("epoch", "unknown")
        if iterator.get("iterations_in_epoch") == 0:  # at its end, fairseq saves the next epoch
            epoch = max(epoch - 1, 1)
        return f"--arch {self.arch}, --task {self.task_name}, {updates} updates, epoch {epoch}"

    @cached_property
    def digest(self) -> str:
        """First twelve hexadecimal digits of the checkpoint's SHA-256 digest.

        Feature stores made by ``fairseq-mm embed`` record this digest of their embedding model. A
        model folder has the digest of the checkpoint from which it was exported.
        """
        return compute_checkpoint_digest(self.path)[:12]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Record of the training data, see :func:`fairseq_mm.models._provenance.decode_provenance`.

        If the checkpoint has no record, the result has only the dictionaries and subwords of the
        data folder.
        """
        found = None
        if self.has_provenance:
            what = "its record of the training data cannot be read"
            with named_failures(self.path, what), contextlib.suppress(KeyError):
                found = decode_provenance(self.weights[STATE_KEY])
                # people read config.json, and the model is built from the weights
                for name in ("extractor", "feature_dim"):
                    if self.folder_config and self.folder_config[name] != found[name]:
                        raise UserError(f"was trained with another `{name}` than config.json says.")
        elif self.data is not None:
            found = self.task_class.read_vocabulary(str(self.data), self.cfg.task)
            if found is not None:
                words = {k: list_words(x) for k, x in found.items() if isinstance(x, Dictionary)}
                found = {"extractor": {}, "feature_dim": 0, **found, **words}
        if found is not None:
            return found
        kind = ARCH_MODEL_REGISTRY.get(self.arch) or MODEL_REGISTRY.get(self.arch)
        about = "give the data folder that it was trained on (--data DIR; in Python data=...)"
        # a model of a user's package
        if kind is not None and kind.__module__.split(".")[0] not in ("fairseq", "fairseq_mm"):
            about = "build_model must end with fairseq_mm.extension.attach_provenance(model, task)"
        raise UserError(
            f"{self.path}: carries no dictionary (--arch {self.arch}, --task {self.task_name}): "
            f"{about}."
        )

    @property
    def words(self) -> list[str]:
        """Words of the dictionary of the generated text, without fairseq's special symbols."""
        return self.provenance["words"]

    @property
    def subwords(self) -> Optional[dict[str, Any]]:
        """State of the subword model of the training text; None if the checkpoint records none."""
        return self.provenance.get("subwords")

    @property
    def extractor(self) -> dict[str, Any]:
        """Attributes that identify the extractor of the training features; may be empty."""
        return self.provenance["extractor"]

    @property
    def feature_dim(self) -> int:
        """Dimension of the training features; 0 if the model reads text only."""
        return self.provenance["feature_dim"]

    def check_features(self, store: Any) -> None:
        """Check that a feature store has the same kind of features as the training data."""
        mine = (self.extractor, self.feature_dim, self.path)
        check_store_extractor(*mine, store.attributes, store.dim, store.path)

    def check_ensemble(self, other: "Checkpoint") -> None:
        """Check that this model and the model of ``other`` can be an ensemble."""
        ours, theirs = self.provenance, other.provenance
        features = [
            [
                *(x.get("feature_dim"), x.get("rows_per_image")),
                {name: y for name, y in x["extractor"].items() if name not in EXTRACTOR_NOTES},
            ]
            for x in (ours, theirs)
        ]
        differences = {
            "task": (other.task_class, other.kind, other.reads_structure)
            != (self.task_class, self.kind, self.reads_structure),
            "dictionary": ours["words"] != theirs["words"],
            "source dictionary": ours.get("source_words") != theirs.get("source_words"),
            "subwords": len({subwords_fingerprint(x.subwords) for x in (self, other)}) > 1,
            "features": features[0] != features[1],
        }
        for name, is_other in differences.items():
            if is_other:
                raise UserError(
                    f"{other.path}: was trained with other {name} than {self.path}: they are no "
                    "ensemble."
                )
        self.task_class.check_ensemble_states(self.path, self.state, other.path, other.state)

    def build(self, device: Optional[str] = None) -> LoadedModels:
        """Build the task and the model on a device, see :func:`build_models`."""
        return build_models([self], device)

    def build_task(self) -> Any:
        """Build the task that generates with the model, without a data folder."""
        provenance = self.provenance
        # older checkpoints lack fields that were added later; the task has defaults for them
        fields = [name for name in self.task_class.provenance_fields if name in provenance]
        with named_failures(self.path):
            if getattr(self.cfg.task, "add_bos_token", False):
                raise UserError("--add-bos-token is not supported.")
            task = self.task_class.from_provenance(
                provenance["words"],
                provenance["extractor"],
                provenance["feature_dim"],
                **{name: provenance[name] for name in fields},
            )
            task.load_state_dict(self.task_state)
            return task

    def build_model(self, task: Any) -> Any:
        """Build the model with its weights, in evaluation mode.

        Args:
            task: Task whose ``build_model`` is called, such as the result of :meth:`build_task`.
        """
        with named_failures(self.path):
            cfg = self._model_cfg
            # initial weights, which are replaced, use no random numbers of the program
            with torch.random.fork_rng(devices=[]):
                model = task.build_model(cfg, from_checkpoint=True)
            with named_failures(self.path, f"its weights do not fit --arch {self.arch}"):
                # a copy, because models rename and add entries of older checkpoints in it
                model.load_state_dict(copy.copy(self.weights), strict=True, model_cfg=cfg)
            return model.eval()

    @cached_property
    def _model_cfg(self) -> Any:
        """Config of the model, changed so that the model is built without pretrained files."""
        # the pretrained files may be gone, and the checkpoint contains their weights
        cfg = self.cfg.model
        if getattr(cfg, "pretrained_checkpoint", None):
            with open_dict(cfg):
                cfg.pretrained_checkpoint = f"{cfg.pretrained_checkpoint} (carried)"
        if self.has_provenance:
            return cfg
        options = dict(cfg)
        for name in ("encoder_embed_path", "decoder_embed_path"):
            if options.get(name):
                options[name] = None
        return Namespace(**options)


def load_models(
    path: Paths, *, data: Optional[Path] = None, device: Optional[str] = None
) -> LoadedModels:
    """Open the checkpoints at ``path`` (see :meth:`Checkpoint.open_all`) and build their models
    (see :func:`build_models`)."""
    return build_models(Checkpoint.open_all(path, data=data), device)


def build_models(checkpoints: Sequence[Checkpoint], device: Optional[str] = None) -> LoadedModels:
    """Build the task and the models of checkpoints; several models are an ensemble.

    ``device`` is ``cpu``, ``cuda`` or ``cuda:1``; by default a GPU if there is one.
    """
    place = usable_device(device)
    first, *others = checkpoints
    for other in others:
        first.check_ensemble(other)
    # one task for all models: check_ensemble has compared vocabularies, subwords and features
    task = first.build_task()
    builder = _TextModelBuilder(task) if first.task_class is HierarchicalStoryTask else task
    return LoadedModels(
        task,
        [checkpoint.build_model(builder).to(place) for checkpoint in checkpoints],
        [checkpoint.path for checkpoint in checkpoints],
        [checkpoint.arch for checkpoint in checkpoints],
        first.extractor,
        first.feature_dim,
        place,
    )


class _TextModelBuilder:
    """Builder of models that were trained with fairseq's ``translation`` or ``language_modeling``.

    The method ``build_model`` of these models gets this object in place of a task, and reads the
    dictionaries from it.
    """

    def __init__(self, task: HierarchicalStoryTask) -> None:
        self.target_dictionary = self.dictionary = task.target_dictionary
        self.source_dictionary = task.source_dictionary
        self.cfg = Namespace(data=None)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        return ARCH_MODEL_REGISTRY[cfg._name].build_model(cfg, self)


def usable_device(name: Optional[str]) -> torch.device:
    """Return the named device; by default a GPU if there is one, else the CPU."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tensor = torch.zeros(1, device=name)
        tensor.item()  # PyTorch accepts the name `meta`, but tensors of it have no values
        return tensor.device
    except (RuntimeError, AssertionError) as error:
        # the further lines of PyTorch's message are advice for debugging kernels
        raise UserError(f"device {name}: {str(error).splitlines()[0]}") from None


def _unify_sections(cfg: Any) -> None:
    """Convert config sections that are an ``argparse.Namespace`` to OmegaConf sections.

    Configs of tasks and models without a dataclass have such sections.
    """
    with open_dict(cfg):
        for name in ("task", "model"):
            if isinstance(cfg[name], Namespace):
                section = OmegaConf.create()
                # OmegaConf 2.0, which stock fairseq asks for, takes no argument for this flag
                section._set_flag("allow_objects", True)
                for key, value in vars(cfg[name]).items():
                    section[key] = value
                cfg[name] = section
