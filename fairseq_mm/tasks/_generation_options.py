"""Reads generation options, and checks them before fairseq's search starts."""

import dataclasses
import json
import math
import re
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from fairseq.dataclass.configs import GenerationConfig

from fairseq_mm.data.input_files import parse_object
from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import LARGEST_LENPEN

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
# the assertion of fairseq's search that fails if no hypothesis has ended at the last step
_NO_END = re.compile(r"\d+ < \d+")
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number"}


def read_generation_options(
    text: str, name: str, allowed: Sequence[str] = SEARCH_OPTIONS
) -> dict[str, Any]:
    """Read generation options from JSON."""
    options = parse_object(text, name)
    types: dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(GenerationConfig)
    }
    types["typical_p"] = float  # ours
    for option, value in options.items():
        kind = types[option] if option in allowed else None
        # bool is a subclass of int: isinstance would accept {"beam": true}
        if type(value) is not kind and not (kind is float and type(value) is int):
            problem = (
                f"must be {_EXPECTED[kind]}, but is {json.dumps(value)}"
                if kind
                else (f"is not among the options {', '.join(allowed)}")
            )
            raise UserError(f"{name}: {option!r} {problem}.")
    return options


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


def explain_failed_search(
    error: AssertionError, generator: Any, models: Sequence[Any], text: str
) -> None:
    """Raise UserError if the reason is known for which fairseq's search failed."""
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
