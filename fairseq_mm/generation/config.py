"""Defines the options of generation: one config for Python, ``fairseq-mm`` and validation.

Most options have the names of fairseq's ``GenerationConfig`` and ``fairseq-generate``. A task adds
options for its constraints, such as ``repetition_penalty`` for visual stories.
"""

import contextlib
import dataclasses
import difflib
import math
import numbers
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

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
_OR_ALL = "1 or more, or -1 for all tokens"
_SHARE = "above 0 and at most 1, or -1 for all tokens"
_AT_LEAST = {"beam": 1, "nbest": 1, "min_len": 1, "max_len_b": 1, "no_repeat_ngram_size": 0}


def typed_option(name: str, value: Any, kind: type) -> Any:
    """Return the value of an option as a plain ``bool``, ``int``, ``float`` or ``str``.

    NumPy's integers count as integers; ``True``, ``2.0`` and ``"3"`` do not.
    """
    accepted, expected = _ACCEPTED[kind]
    # True is an Integral, but as a beam it is a mistake
    is_flag = isinstance(value, (bool, np.bool_))
    if isinstance(value, accepted) and (kind is bool or not is_flag):
        # float() of an integer that is larger than any floating-point number
        with contextlib.suppress(OverflowError):
            return kind(value)
    raise UserError(f"`{name}` must be {expected}, but is {_shortened(value)}.")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _one_of(values: Iterable[str]) -> str:
    return f"one of {', '.join(values)}"


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

    beam: int = 5
    nbest: int = 1
    sampling: bool = False
    sampling_topk: int = -1
    sampling_topp: float = -1.0
    typical_p: float = -1.0
    mbr: Optional[str] = None
    temperature: float = 1.0
    lenpen: float = 1.0
    unkpen: float = 0.0
    min_len: int = 1
    max_len_a: float = 0.0
    max_len_b: int = 200
    no_repeat_ngram_size: int = 0
    prefix: Optional[str] = None
    allow_unk: bool = False
    seed: int = SEED
    weights_dtype: str = "float32"
    constraints: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            # the class is frozen: a plain assignment would raise an error
            if name not in _OPTIONAL or getattr(self, name) is not None:
                object.__setattr__(self, name, typed_option(name, getattr(self, name), kind))
        # at temperatures below 0.001, the probabilities are no float32 numbers
        p = ("sampling_topp", "typical_p")
        limits = [
            *((name, getattr(self, name) >= x, f"{x} or more") for name, x in _AT_LEAST.items()),
            ("nbest", self.nbest <= self.beam, f"at most `beam` ({self.beam})"),
            ("temperature", 0.001 <= self.temperature < math.inf, "0.001 or more"),
            ("lenpen", 0 <= self.lenpen <= LARGEST_LENPEN, f"from 0 to {LARGEST_LENPEN:g}"),
            ("max_len_a", 0 <= self.max_len_a < math.inf, "0 or more and finite"),
            ("unkpen", math.isfinite(self.unkpen), "finite"),
            ("seed", -(2**63) <= self.seed < 2**64, "an integer of 64 bits"),
            ("weights_dtype", self.weights_dtype in WEIGHTS_DTYPES, _one_of(WEIGHTS_DTYPES)),
            ("sampling_topk", self.sampling_topk == -1 or self.sampling_topk >= 1, _OR_ALL),
            *((x, getattr(self, x) == -1 or 0 < getattr(self, x) <= 1, _SHARE) for x in p),
            ("mbr", self.mbr in (None, *UTILITIES), _one_of(UTILITIES)),
            ("beam", self.mbr is None or self.beam >= 2, "2 or more samples for `mbr`"),
        ]
        for name, is_right, expected in limits:
            if not is_right:
                value = _shortened(getattr(self, name))
                raise UserError(f"`{name}` must be {expected}, but is {value}.")
        # minimum Bayes risk decoding chooses among samples
        for name in ("sampling_topk", "sampling_topp", "typical_p", "mbr"):
            if getattr(self, name) not in (-1, None) and not self.sampling:
                raise UserError(f"`{name}` is {getattr(self, name)}, but needs `sampling`.")

    @classmethod
    def of_task(cls, task: Any, preset: Optional[str] = None, **options: Any) -> "GenerationConfig":
        """Build the config of a task from the task's defaults, a preset and given options.

        Args:
            preset: Name of a preset, whose values replace defaults. If None, the preset is the
                task's ``default_preset``, or no preset if ``options`` has ``beam`` or ``sampling``.
            **options: Fields of this class, and constraints of the task.
        """
        allowed: Mapping[str, Any] = getattr(task, "generation_constraints", {})
        types = {**_TYPES, **{name: type(value) for name, value in allowed.items()}}
        options = {
            name: typed_option(name, value, types[name])
            if name in types and not (name in _OPTIONAL and value is None)
            else value
            for name, value in options.items()
        }
        presets: Mapping[str, Mapping[str, Any]] = getattr(task, "generation_presets", {})
        # an option that chooses between search and sampling could contradict the default preset
        if preset is None and not {"beam", "sampling"} & set(options):
            preset = getattr(task, "default_preset", None)
        if preset is not None and (not isinstance(preset, str) or preset not in presets):
            known_presets = _one_of(presets) if presets else "left out with this task"
            raise UserError(f"`preset` must be {known_presets}, but is {preset!r}.")
        defaults = dict(task.generation_defaults)
        if preset is not None:
            defaults.update(presets[preset])
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
        known = {item.name for item in dataclasses.fields(cls)} - {"constraints"}
        constraints = dict(allowed)
        for name in list(values):
            if name in allowed:
                constraints[name] = values.pop(name)
            elif name not in known:
                close = difflib.get_close_matches(name, [*known, *allowed], n=1)
                close = [NAMES_ELSEWHERE[name]] if name in NAMES_ELSEWHERE else close
                hint = f"; did you mean `{close[0]}`?" if close else "."
                raise UserError(
                    f"`{name}` is no option of generation by {type(task).__name__}{hint}"
                )
        return cls(**values, constraints=constraints)

    def to_namespace(self) -> Namespace:
        """Return a Namespace with the options that ``build_generator`` of fairseq's tasks reads."""
        names = (
            *("beam", "nbest", "sampling", "sampling_topk", "sampling_topp", "typical_p"),
            *("temperature", "lenpen", "unkpen", "min_len", "max_len_a", "max_len_b"),
            *("no_repeat_ngram_size", "weights_dtype"),
        )
        return Namespace(**{name: getattr(self, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return all options and constraints in one flat dictionary."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        constraints = values.pop("constraints")
        return {**values, **constraints}


# after the class, because its fields are the options; a task adds its constraints
_OPTIONAL = ("prefix", "mbr")
_TYPES: dict[str, type] = {
    item.name: str if item.name in _OPTIONAL else type(item.default)
    for item in dataclasses.fields(GenerationConfig)
    if item.name != "constraints"
}
