"""Defines the base class of tasks that generate text; it builds fairseq's generators.

Generated texts have no ``<unk>``, ``<s>`` or ``madeupword0000`` (such words fill padded
dictionaries of fairseq). Each sampled text has its own stream of random numbers. Validation,
``fairseq-generate``, the Python interface and the commands of ``fairseq-mm`` get their generators
from the task, so that the same checkpoint, input and options give the same text in each.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch
from fairseq import search as fairseq_search
from fairseq.data import Dictionary
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.tasks.fairseq_task import StatefulContainer

from fairseq_mm.errors import UserError
from fairseq_mm.generation.beam_search import BeamSearch
from fairseq_mm.generation.config import GenerationConfig
from fairseq_mm.generation.seeded_sampling import SeededSampling
from fairseq_mm.modules.packed_weights import pack_weights

# the assertion of fairseq's search that fails if no hypothesis has ended at the last step
_NO_END = re.compile(r"\d+ < \d+")
_FILLER = re.compile(r"madeupword\d{4,}")


def tokens_never_generated(dictionary: Dictionary, *, allow_unk: bool) -> list[int]:
    """Return the indices of ``<s>``, of filler words such as ``madeupword0000``, and of ``<unk>``.

    With ``allow_unk``, the index of ``<unk>`` is left out.
    """
    # without padding, which fairseq never generates, and without indexed OOV tokens (<unk-0>),
    # which denote words of the source
    fillers = [
        index
        for index, symbol in enumerate(dictionary.symbols)
        if index >= dictionary.nspecial and _FILLER.fullmatch(symbol)
    ]
    return [dictionary.bos(), *([] if allow_unk else [dictionary.unk()]), *fillers]


def read_typical_p(args: Any, cfg: Any) -> float:
    """Return the option ``typical_p`` of generation or, since ``fairseq-generate`` has no such
    option, of the task; -1 for no truncation."""
    value = getattr(args, "typical_p", None)
    typical_p = float(getattr(cfg, "typical_p", -1.0) if value is None else value)
    if typical_p != -1 and not (0 < typical_p <= 1 and getattr(args, "sampling", False)):
        raise UserError("--typical-p must be above 0 and at most 1, and needs --sampling.")
    return typical_p


def explain_failed_search(
    error: AssertionError, generator: Any, models: Sequence[Any], text: str
) -> None:
    """Raise UserError with the reason why fairseq's search failed, if the reason is known."""
    problem = ""
    # only now, because this check reads all weights
    weights = (weight for model in models for weight in model.parameters())
    if "min_len" in str(error):
        problem = (
            f"--min-len {generator.min_len} is more than --max-len-a {generator.max_len_a:g}, "
            f"--max-len-b {generator.max_len_b} and the model's positions let a {text} have."
        )
    elif not all(bool(weight.isfinite().all()) for weight in weights):
        problem = f"the model's weights hold NaN or infinite values: no {text} has a probability."
    elif _NO_END.fullmatch(str(error)):
        problem = (
            f"no {text} has a probability: the model's scores are NaN or infinite, because its "
            "weights or what it reads are too large."
        )
    if problem:
        raise UserError(problem) from None


class GeneratesText:
    """Base class of tasks that generate text; it must precede ``FairseqTask`` among the bases.

    The task's config must have ``allow_unk`` and ``seed``. The commands and the Python interface
    read the attributes, which subclasses set.

    Attributes:
        command: Subcommand of ``fairseq-mm`` that generates with the task's models.
        kind: Name of the kind of the task's models, such as ``captions``.
        text_names: Name of a generated text, singular and plural.
        input_names: Name of an input, singular and plural.
        input_kind: Kind of the inputs: ``images``, ``videos`` or ``prompts``.
        processor: Subclass of :class:`~fairseq_mm.inference.processor.Processor`, which turns raw
            inputs into examples, or its name as ``module:class``.
        generation_defaults: Default options of generation, see
            :mod:`fairseq_mm.generation.defaults`.
        generation_presets: Options that replace defaults, for each name of a preset.
        default_preset: Name of the preset that the commands and the Python interface use by
            default; None for no preset.
        generation_constraints: Default value of each constraint of the generated texts, by name;
            the task's config has options of the same names.
        provenance_fields: Names of the arguments that ``from_provenance`` takes in addition to
            vocabulary, extractor and feature dimension.
    """

    command: str = "generate"
    kind: str = ""
    text_names: tuple[str, str] = ("text", "texts")
    input_names: tuple[str, str] = ("input", "inputs")
    input_kind: Optional[str] = None
    processor: Any
    generation_defaults: Mapping[str, Any]
    generation_presets: Mapping[str, Mapping[str, Any]] = {}
    default_preset: Optional[str] = None
    generation_constraints: Mapping[str, Any] = {}
    provenance_fields: tuple[str, ...] = ("source_words",)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle; fairseq's ``StatefulContainer`` becomes a dictionary."""
        # its __getattr__ reads an attribute that is missing while it is unpickled, without end
        return {**vars(self), "state": dict(self.state.state_dict)}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self.state = StatefulContainer()
        self.state.merge_state_dict(values["state"])

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the task's options to a parser.

        If the parser has options of generation, as in ``fairseq-generate``, set their defaults to
        the task's ``generation_defaults``.
        """
        super().add_args(parser)  # type: ignore[misc]
        # set_defaults would also add names without an option, as in the parser of fairseq-train
        known = {
            name: value
            for name, value in cls.generation_defaults.items()
            if parser.get_default(name) is not None
        }
        parser.set_defaults(**known)

    @classmethod
    def read_vocabulary(cls, folder: str, cfg: Any) -> Optional[dict[str, Any]]:
        """Return the dictionaries ``words`` and ``source_words``, and the ``subwords``, of a data
        folder, for checkpoints of fairseq's own models; None if the task has no such models.

        ``cfg`` is the config of the training's task.
        """
        return None

    @classmethod
    def check_ensemble_states(
        cls, first: str, ours: Mapping[str, Any], other: str, theirs: Mapping[str, Any]
    ) -> None:
        """Check that two checkpoints, given by their paths and contents, can be an ensemble.

        Tasks, vocabularies and features have already been compared.
        """

    def generator_for(self, models: Any, config: GenerationConfig, *, stream: int = 0) -> Any:
        """Build fairseq's generator with the options of a config, see :meth:`build_generator`."""
        return self.build_generator(
            models,
            config.to_namespace(),
            allow_unk=config.allow_unk,
            seed=config.seed,
            stream=stream,
        )

    def build_generator(
        self,
        models: Any,
        args: Any,
        *others: Any,
        allow_unk: Optional[bool] = None,
        seed: Optional[int] = None,
        stream: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Build fairseq's generator, or its scorer of given texts with ``args.score_reference``.

        Args:
            models: One model, or the models of an ensemble.
            args: Some or all of fairseq's generation options, as attributes.
            allow_unk: True to allow ``<unk>`` in texts; None for the value in the task's config.
            seed: Seed of sampling; None for the value in the task's config.
            stream: Number of the stream of random numbers, see :class:`.SeededSampling`.
        """
        generator = super().build_generator(models, args, *others, **kwargs)  # type: ignore[misc]
        # a scorer has no search to change
        if getattr(args, "score_reference", False):
            return generator
        generator.weights_dtype = getattr(args, "weights_dtype", "float32")
        # here too, so that a type that cannot be used is reported before inputs are read
        self.use_weights(generator, models)
        cfg = self.cfg  # type: ignore[attr-defined]
        self._forbid_tokens(generator, args, cfg.allow_unk if allow_unk is None else allow_unk)
        size = getattr(args, "no_repeat_ngram_size", 0)
        if size > 0:
            # fairseq's CUDA extension, where it is built, forbids words of a prefix as well
            generator.repeat_ngram_blocker = NGramRepeatBlock(size, use_extension=False)
        if type(generator.search) is fairseq_search.BeamSearch:
            generator.search = BeamSearch(generator.tgt_dict)
        typical_p = read_typical_p(args, cfg)
        if getattr(args, "sampling", False):
            topk, topp = getattr(args, "sampling_topk", -1), getattr(args, "sampling_topp", -1.0)
            generator.search = SeededSampling(
                generator.tgt_dict,
                topk=max(topk, 0),
                topp=topp if topp > 0 else 1.0,
                typical_p=typical_p if typical_p > 0 else 1.0,
                seed=cfg.seed if seed is None else seed,
                stream=stream,
            )
        return generator

    def use_weights(self, generator: Any, models: Any) -> None:
        """Pack the models' weights in the generator's type, and move its forbidden tokens to the
        models' device.

        This method is called for each batch, because another generator may have packed them in
        another type. Weights are not packed while a model is trained, or if texts are scored.
        """
        dtype = getattr(generator, "weights_dtype", None)
        models = models if isinstance(models, (list, tuple)) else [models]
        forbidden = getattr(generator, "token_indices_to_suppress", None)
        if forbidden is not None:
            # A GPU would copy them from the CPU, and wait, at every step.
            device = next(models[0].parameters()).device
            generator.token_indices_to_suppress = forbidden.to(device)
        for model in models:
            # models prepared by make_generation_fast_ are not trained any more. `training` is False
            # in a training, too: fairseq's generator sets evaluation mode
            if dtype is not None and getattr(model, "_is_generation_fast", False):
                pack_weights(model, dtype)

    def _forbid_tokens(self, generator: Any, args: Any, allow_unk: bool) -> None:
        unkpen = getattr(args, "unkpen", 0)
        if not allow_unk:
            if unkpen < 0:
                raise UserError(
                    f"--unkpen {unkpen:g} favours <unk>, which is generated with --allow-unk only."
                )
            # the penalty would lower the score of a forced prefix with <unk>
            generator.unk_penalty = 0.0
        indices = tokens_never_generated(generator.tgt_dict, allow_unk=allow_unk)
        others = generator.token_indices_to_suppress
        if others is not None:
            indices = sorted({*indices, *others.tolist()})
        # fairseq does not suppress them at the steps of a forced prefix
        generator.token_indices_to_suppress = torch.tensor(indices)

    def numbered(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``sample``, a batch of ``fairseq-interactive``, with the key ``id`` added.

        ``id`` numbers the inputs in the order in which they arrive; sampling depends on it.
        """
        count = len(sample["net_input"]["src_tokens"])
        first = getattr(self, "_num_numbered", 0)
        self._num_numbered = first + count
        return {**sample, "id": torch.arange(first, first + count)}
