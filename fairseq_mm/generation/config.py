"""Defines the options of generation: one config for Python, ``fairseq-mm`` and validation.

Most options have the names of fairseq's ``GenerationConfig`` and ``fairseq-generate``, whose values
:func:`check_search` checks. A task adds options for its constraints, such as
``repetition_penalty`` for visual stories.
"""

import dataclasses
import difflib
import math
import numbers
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from fairseq.dataclass import configs

from fairseq_mm.data.input_files import parse_object
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import (
    MBR_BEAM,
    NAMES_ELSEWHERE,
    SAMPLING_BEAM,
    SEED,
    UTILITIES,
    WEIGHTS_DTYPES,
)

# type of an option -> accepted types, with NumPy's numbers, and the name of the type in messages
_ACCEPTED: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "True or False"),
    int: ((numbers.Integral,), "an integer"),
    float: ((numbers.Real,), "a number"),
    str: ((str,), "a string"),
}
# the tenth power of a text's length is still a number of float32; published systems use 0 to 3
LARGEST_LENPEN = 10.0
LARGEST = sys.float_info.max  # infinite options would give NaN


def typed_option(
    name: str,
    value: Any,
    kind: type,
    *,
    least: float = -LARGEST,
    most: float = LARGEST,
    also: Any = None,
    choices: Optional[Sequence[str]] = None,
    expected: str = "",
) -> Any:
    """Return the value of an option as a plain ``bool``, ``int``, ``float`` or ``str``.

    NumPy's integers count as integers; ``True``, ``2.0`` and ``"3"`` do not.

    Args:
        least: Minimum of a number.
        most: Maximum of a number.
        also: Value outside the limits that is accepted, too.
        choices: Accepted strings; None for all.
        expected: Description of the limits for messages, if the limits do not say it.
    """
    accepted, type_name = _ACCEPTED[kind]
    # True is an Integral, but as a beam it is a mistake
    is_right = isinstance(value, accepted) and (kind is bool) == isinstance(value, (bool, np.bool_))
    if is_right:
        if kind is str:
            is_right = choices is None or value in choices
            type_name = f"one of {', '.join(choices)}" if choices else "left out"
        elif kind is not bool:
            is_right = value == also or least <= value <= most
            type_name = f"{least:g} or more" if most >= LARGEST else f"from {least:g} to {most:g}"
            type_name = expected or ("finite" if least <= -LARGEST else type_name)
    if not is_right:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        raise UserError(f"`{name}` must be {type_name}, but is {shown}.")
    return kind(value)


def declare(default: Any, least: float = -LARGEST, most: float = LARGEST, **limits: Any) -> Any:
    """Declare an option as a field of a dataclass; for the limits see :func:`typed_option`."""
    return field(default=default, metadata={"least": least, "most": most, **limits})


def check_declared(options: Any) -> None:
    """Check the declared fields of a frozen dataclass, and store their values as plain types."""
    for item in dataclasses.fields(options):
        value = getattr(options, item.name)
        if item.metadata and not (value is None and item.default is None):
            kind = str if item.default is None else type(item.default)
            value = typed_option(item.name, value, kind, **item.metadata)
            # the class is frozen: a plain assignment would raise an error
            object.__setattr__(options, item.name, value)


_SHARE = "above 0 and at most 1, or -1 for all tokens"
_ABOVE_0 = sys.float_info.min


def check_names(options: Iterable[str], known: Sequence[str], what: str) -> None:
    """Raise UserError if a name of an option of ``what`` is not in ``known``."""
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            close = [NAMES_ELSEWHERE[name]] if name in NAMES_ELSEWHERE else close
            hint = f"; did you mean `{close[0]}`?" if close else "."
            raise UserError(f"`{name}` is no option of {what}{hint}")


@dataclass(frozen=True)
class GenerationConfig:
    """Options for generating text with a model.

    Args:
        beam: Width of the beam; 1 is greedy search. With ``sampling``, the number of texts to
            sample for each input (default: 1).
        nbest: Number of hypotheses to return for each input, at most ``beam``. In :meth:`of_task`,
            and so in ``generate``, a beam that is not given is at least ``nbest`` wide.
        sampling: True to sample tokens, False for a beam search. The samples of an input depend
            only on ``seed`` and the input's index, not on the other inputs of its batch.
        sampling_topk: Number of most probable tokens to sample from at each step; -1 for all.
        sampling_topp: Probability p from 0 to 1. Each step samples from the fewest most probable
            tokens whose probabilities sum to p; -1 for all tokens. See Holtzman et al. 2020,
            https://arxiv.org/abs/1904.09751.
        typical_p: Probability tau from 0 to 1. Each step samples from the tokens whose information
            content is nearest to the entropy, as many as sum to tau; -1 for all tokens. They are
            chosen after ``sampling_topk`` and ``sampling_topp``. See Meister et al. 2023,
            https://arxiv.org/abs/2202.00666.
        mbr: Utility of minimum Bayes risk decoding: ``bleu``, ``rouge_l``, ``meteor`` or ``cider``.
            Of the ``beam`` texts that are sampled for an input (default: 16), the ``nbest`` texts
            with the highest mean utility are returned; the utility of a text is its score with
            another sample as reference. None to switch it off. See Eikema, Aziz 2022,
            https://arxiv.org/abs/2108.04718.
        temperature: Divisor of the logits; above 1 it flattens the distribution.
        lenpen: Length penalty of a beam search, from 0 to 10; above 1 it favours long texts.
        unkpen: Penalty of ``<unk>`` in the search; it has an effect only with ``allow_unk``.
        min_len: Minimum length of a text in tokens, without ``</s>``.
        max_len_a: The maximum length is ``max_len_a * source length + max_len_b`` tokens, without
            ``</s>``.
        max_len_b: See ``max_len_a``.
        no_repeat_ngram_size: Length of token sequences that may not occur twice in a text; 0 allows
            all repetitions.
        prefix: Tokens, separated by spaces, that every text begins with.
        allow_unk: True to allow ``<unk>`` in texts.
        seed: Seed of the samples.
        weights_dtype: Type of the weights of linear layers on a CPU: ``float32``, ``bfloat16`` or
            ``int8``. In ``int8``, their inputs are rounded to 8 bits as well.
        constraints: Value of each constraint that the task declares in
            ``generation_constraints``, by name.
    """

    beam: int = declare(5, 1)
    nbest: int = declare(1, 1)
    sampling: bool = declare(False)
    sampling_topk: int = declare(-1, 1, also=-1, expected="1 or more, or -1 for all tokens")
    sampling_topp: float = declare(-1.0, _ABOVE_0, 1, also=-1, expected=_SHARE)
    typical_p: float = declare(-1.0, _ABOVE_0, 1, also=-1, expected=_SHARE)
    mbr: Optional[str] = declare(None, choices=UTILITIES)
    # at temperatures below 0.001, the probabilities are no float32 numbers
    temperature: float = declare(1.0, 0.001)
    lenpen: float = declare(1.0, 0, LARGEST_LENPEN)
    unkpen: float = declare(0.0)
    min_len: int = declare(1, 1)
    max_len_a: float = declare(0.0, 0)
    max_len_b: int = declare(200, 1)
    no_repeat_ngram_size: int = declare(0, 0)
    prefix: Optional[str] = declare(None)
    allow_unk: bool = declare(False)
    seed: int = declare(SEED, -(2**63), 2**64 - 1, expected="an integer of 64 bits")
    weights_dtype: str = declare("float32", choices=WEIGHTS_DTYPES)
    constraints: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_declared(self)
        rules = [
            ("nbest", self.nbest <= self.beam, f"at most `beam` ({self.beam})"),
            ("beam", self.mbr is None or self.beam >= 2, "2 or more samples for `mbr`"),
            # minimum Bayes risk decoding chooses among samples
            *(
                (name, self.sampling or getattr(self, name) in (-1, None), "left out in a search")
                for name in ("sampling_topk", "sampling_topp", "typical_p", "mbr")
            ),
        ]
        for name, is_right, expected in rules:
            if not is_right:
                raise UserError(f"`{name}` must be {expected}, but is {getattr(self, name)}.")

    @classmethod
    def of_task(cls, task: Any, preset: Optional[str] = None, **options: Any) -> "GenerationConfig":
        """Build the config of a task from the task's defaults, a preset and given options.

        Args:
            preset: Name of a preset, whose values replace defaults. If None, the preset is the
                task's ``default_preset``, or no preset if ``options`` has ``beam`` or ``sampling``.
            **options: Fields of this class, and constraints of the task.
        """
        allowed: Mapping[str, Any] = getattr(task, "generation_constraints", {})
        kinds = {name: type(value) for name, value in allowed.items()}
        kinds.update(nbest=int, min_len=int, max_len_b=int)  # compared below
        for name in options.keys() & kinds.keys():
            options[name] = typed_option(name, options[name], kinds[name])
        presets: Mapping[str, Mapping[str, Any]] = getattr(task, "generation_presets", {})
        # an option that chooses between search and sampling could contradict the default preset
        if preset is None and not {"beam", "sampling"} & set(options):
            preset = getattr(task, "default_preset", None)
        defaults = dict(task.generation_defaults)
        if preset is not None:
            defaults.update(presets[typed_option("preset", preset, str, choices=[*presets])])
        values = {**defaults, **options}
        if values.get("sampling") and "beam" not in options:
            number = SAMPLING_BEAM if values.get("mbr") is None else MBR_BEAM
            values["beam"] = max(number, values.get("nbest", 1))
        # if only one of the two lengths is given, the default of the other must not contradict it
        if "min_len" in options and "max_len_b" not in options:
            values["max_len_b"] = max(values["max_len_b"], values["min_len"])
        elif "max_len_b" in options and "min_len" not in options:
            values["min_len"] = min(values["min_len"], max(values["max_len_b"], 1))
        if "nbest" in options and "beam" not in options:
            values["beam"] = max(values["beam"], values["nbest"])
        known = [item.name for item in dataclasses.fields(cls) if item.metadata]
        check_names(values, [*known, *allowed], f"generation by {type(task).__name__}")
        constraints = {name: values.pop(name, value) for name, value in allowed.items()}
        return cls(**values, constraints=constraints)

    def to_namespace(self) -> Namespace:
        """Return a Namespace with the options that ``build_generator`` of fairseq's tasks reads."""
        return Namespace(**{name: x for name, x in vars(self).items() if name != "constraints"})

    def to_dict(self) -> dict[str, Any]:
        """Return all options and constraints in one flat dictionary."""
        values = {name: x for name, x in vars(self).items() if name != "constraints"}
        return {**values, **self.constraints}


# Options of fairseq-generate that its search reads. Any other would do nothing, or would score the
# references themselves.
SEARCH_OPTIONS = (
    *("beam", "max_len_a", "max_len_b", "min_len", "lenpen", "unnormalized", "unkpen"),
    *("no_repeat_ngram_size", "temperature", "match_source_len"),
    *("sampling", "sampling_topk", "sampling_topp", "typical_p"),
    "diversity_rate",
)
# options of fairseq-generate that check_search reads
_DEFAULTS: dict[str, Any] = {
    **{"constraints": None, "print_alignment": None, "print_step": False},
    **{"retain_iter_history": False, "beam": 5, "temperature": 1.0, "lenpen": 1.0},
    **{"sampling": False, "sampling_topk": -1, "sampling_topp": -1.0},
    **{"diverse_beam_groups": -1, "diversity_rate": -1.0, "match_source_len": False},
}


def read_generation_options(
    text: str, name: str, allowed: Sequence[str] = SEARCH_OPTIONS
) -> dict[str, Any]:
    """Read generation options from JSON."""
    options = parse_object(text, name)
    types: dict[str, Any] = {x.name: x.type for x in dataclasses.fields(configs.GenerationConfig)}
    types["typical_p"] = float  # ours
    check_names(options, allowed, name)
    return {x: typed_option(f"{name} {x}", value, types[x]) for x, value in options.items()}


def check_search(args: Any, *, has_source: bool = False, aligns: bool = False) -> None:
    """Refuse generation options that are out of range, exclude each other, or do not suit the task.

    fairseq would ignore some of these options and fail with a traceback for others.

    Args:
        has_source: True if the models read a source text.
        aligns: True if the models align the words of a text with words of its source.
    """
    # args of validation has only the options that were given
    given = {name: getattr(args, name, default) for name, default in _DEFAULTS.items()}
    x = Namespace(**given)
    revises = "is of decoders that revise a whole text at each step"
    # fairseq has one class of search for each, and its own error does not name the options
    exclusive = {
        "--sampling": x.sampling,
        "--diversity-rate": x.diversity_rate > 0,
        "--match-source-len": x.match_source_len,
    }
    chosen = [name for name, is_chosen in exclusive.items() if is_chosen]
    largest = LARGEST_LENPEN
    problems = (
        (x.constraints, "--constraints: this task takes none"),
        (
            x.print_alignment and not aligns,
            "--print-alignment: the model aligns no words with a source text",
        ),
        (
            x.match_source_len and not has_source,
            "--match-source-len: the model reads no source text",
        ),
        (x.print_step, f"--print-step: {revises}"),
        (x.retain_iter_history, f"--retain-iter-history: {revises}"),
        (x.beam < 1, f"--beam must be 1 or more, but is {x.beam}"),
        (
            not 0 < x.temperature < math.inf,
            f"--temperature must be above 0 and finite, but is {x.temperature}",
        ),
        # not "x > limit": NaN compares as False
        (
            not abs(x.lenpen) <= largest,
            f"--lenpen must be from {-largest:g} to {largest:g}, but is {x.lenpen:g}",
        ),
        (x.sampling_topk > 0 and not x.sampling, "--sampling-topk needs --sampling"),
        (x.sampling_topp > 0 and not x.sampling, "--sampling-topp needs --sampling"),
        (x.sampling_topp > 1, f"--sampling-topp must be at most 1, but is {x.sampling_topp}"),
        (len(chosen) > 1, f"{' and '.join(chosen[:2])} exclude each other"),
        # with a batch of several inputs, fairseq fails, or writes words after the end of a text
        (x.diverse_beam_groups > 0, "--diverse-beam-groups: give --diversity-rate or --sampling"),
    )
    for is_wrong, problem in problems:
        if is_wrong:
            raise UserError(f"{problem}.")
