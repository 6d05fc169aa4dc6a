"""Common options of ``fairseq-mm rank`` and ``fairseq-mm perplexity``.

Both commands score the texts of a data folder. The kind of a checkpoint (:attr:`.Checkpoint.kind`)
decides which texts: captions, stories of prompts, visual stories or summaries.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_mm.cli import arguments
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED

if TYPE_CHECKING:
    from fairseq_mm.inference.checkpoint import Checkpoint

# kind of a checkpoint -> what its models generate or embed, for messages
KINDS = {
    "captions": "captions",
    "vectors": "image-sentence embeddings",
    "prompts": "stories of prompts",
    "albums": "visual stories",
    "summaries": "summaries of videos",
}
WORDS_HELP = "Score only the first N words of a story (default: the model's positions)."
# options and their defaults, by the kinds of checkpoints that have them
Options = Mapping[str, Mapping[str, Any]]


def add_scoring_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every kind of checkpoint accepts."""
    parser.add_argument("data", metavar="DATA", help="Data folder, made by fairseq-mm prepare.")
    arguments.add(
        parser,
        *("checkpoint", "split", "features", "seed"),
        split={"default": "valid", "help": "Split of the data folder (default: valid)."},
        features={"help": "Feature store of the images (default: features.h5 in DATA)."},
        seed={"default": SEED, "type": arguments.natural},
    )
    group = parser.add_argument_group("speed and memory")
    arguments.add(group, "device")
    group.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="Precision of the networks; bfloat16 rounds a token's log-probability in its third "
        "digit (default: float32).",
    )


def resolve_options(
    args: argparse.Namespace, options: Options, checkpoints: "Sequence[Checkpoint]"
) -> str:
    """Set options that are not given to the defaults of the checkpoints' kind; return the kind.

    ``options`` are the options of each accepted kind of checkpoint, with their defaults.
    """
    checkpoint = checkpoints[0]
    kind = checkpoint.kind
    if kind not in options:
        *others, last = (KINDS[name] for name in options)
        raise UserError(
            f"{checkpoint.path}: must be a checkpoint of {', '.join(others)} or {last}, but was "
            f"trained with --task {checkpoint.task_name}."
        )
    # These options have no default in argparse, because it would look like a given option.
    for name in dict.fromkeys(name for table in options.values() for name in table):
        if name in options[kind]:
            if getattr(args, name) is None:
                setattr(args, name, options[kind][name])
        elif name in arguments.given_options(args):
            of = " or ".join(KINDS[other] for other in options if name in options[other])
            raise UserError(
                f"{arguments.flag(name)}: is for checkpoints of {of}, but {checkpoint.path} is one "
                f"of {KINDS[kind]}."
            )
    return kind
