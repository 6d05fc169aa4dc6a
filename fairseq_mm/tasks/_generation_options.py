"""Reads generation options, and checks them before fairseq's search starts."""

import dataclasses
import difflib
import json
import math
import re
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
    *("diverse_beam_groups", "diverse_beam_strength", "diversity_rate"),
)
# the assertion of fairseq's search that fails if no hypothesis has ended at the last step
_NO_END = re.compile(r"\d+ < \d+")
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number"}


def read_generation_options(text: str, name: str) -> dict[str, Any]:
    """Read generation options from JSON.

    Args:
        text: JSON object with some of ``SEARCH_OPTIONS``, such as ``{"beam": 3}``.
        name: Name of the command-line argument, for messages.
    """
    try:
        options = parse_object(text, name)
    except UserError as error:
        raise UserError(f"{error} Give a JSON object such as '{{\"beam\": 3}}'.") from None
    types: dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(GenerationConfig)
    }
    types["typical_p"] = float  # ours
    for option, value in options.items():
        if option not in SEARCH_OPTIONS:
            close = difflib.get_close_matches(option, SEARCH_OPTIONS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise UserError(f"{name}: {option!r} is no option of fairseq's search{hint}")
        # bool is a subclass of int: isinstance would accept {"beam": true}
        kind = types[option]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UserError(
                f"{name}: {option} must be {_EXPECTED[kind]}, but is {json.dumps(value)}."
            )
    if options.get("beam", 1) < 1:
        raise UserError(f"{name}: beam must be 1 or more, but is {options['beam']}.")
    return options


def check_search(args: Any, *, reads_only_text: bool = False) -> None:
    """Refuse generation options that are out of range, exclude each other, or do not suit the task.

    fairseq would ignore some of these options and fail with a traceback for others.

    Args:
        args: Some or all of fairseq's generation options.
        reads_only_text: True if the model reads neither images nor videos.
    """
    # args of validation has only the options that were given, hence getattr with fairseq's defaults
    if getattr(args, "constraints", None):
        raise UserError("--constraints: this task takes none.")
    if getattr(args, "print_alignment", None) and not reads_only_text:
        raise UserError("--print-alignment: there are no source words to align with.")
    for name in ("print_step", "retain_iter_history"):
        if getattr(args, name, False):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option}: is of decoders that revise a whole text at each step.")
    if getattr(args, "beam", 5) < 1:
        raise UserError(f"--beam must be 1 or more, but is {args.beam}.")
    if not 0 < getattr(args, "temperature", 1.0) < math.inf:
        raise UserError(f"--temperature must be above 0 and finite, but is {args.temperature}.")
    # not "x > limit": NaN compares as False
    if not abs(getattr(args, "lenpen", 1.0)) <= LARGEST_LENPEN:
        raise UserError(
            f"--lenpen must be from {-LARGEST_LENPEN:g} to {LARGEST_LENPEN:g}, but is "
            f"{args.lenpen:g}."
        )
    sampling = getattr(args, "sampling", False)
    for name in ("sampling_topk", "sampling_topp"):
        if getattr(args, name, -1) > 0 and not sampling:
            raise UserError(f"--{name.replace('_', '-')} needs --sampling.")
    if getattr(args, "sampling_topp", -1) > 1:
        raise UserError(f"--sampling-topp must be at most 1, but is {args.sampling_topp}.")
    groups, beam = getattr(args, "diverse_beam_groups", -1), getattr(args, "beam", 5)
    chosen = {
        "--sampling": sampling,
        "--diverse-beam-groups": groups > 0,
        "--diversity-rate": getattr(args, "diversity_rate", -1) > 0,
        "--match-source-len": getattr(args, "match_source_len", False),
    }
    # fairseq has one class of search for each, and its own error does not name the options
    names = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(names) > 1:
        raise UserError(f"{names[0]} and {names[1]} exclude each other.")
    if groups > 0 and beam % groups:
        raise UserError(
            f"--beam must be a multiple of --diverse-beam-groups ({groups}), but is {beam}."
        )


def explain_failed_search(
    error: AssertionError, generator: Any, models: Sequence[Any], text: str
) -> None:
    """Raise UserError that explains why fairseq's search failed; return if the reason is unknown.

    Args:
        error: Error of the search.
        generator: Sequence generator that raised the error.
        models: Models of the ensemble.
        text: Name of a generated text in messages, such as "caption".
    """
    if "min_len" in str(error):
        raise UserError(
            f"--min-len {generator.min_len} is more than --max-len-a {generator.max_len_a:g}, "
            f"--max-len-b {generator.max_len_b} and the model's positions let a {text} have."
        ) from None
    # checked only now, because it reads all weights
    weights = (weight for model in models for weight in model.parameters())
    if not all(bool(weight.isfinite().all()) for weight in weights):
        raise UserError(
            f"the model's weights hold NaN or infinite values: no {text} has a probability."
        ) from None
    if _NO_END.fullmatch(str(error)):
        raise UserError(
            f"no {text} has a probability: the model's scores are NaN or infinite, because its "
            "weights or what it reads are too large."
        ) from None
