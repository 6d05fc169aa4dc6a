"""Defines arguments that several subcommands share, and checks the command line."""

# neither torch nor fairseq: a mistake on the command line is reported before they are imported
import argparse
import os
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import FAIRSEQ_DEFAULTS, SEED, UTILITIES, WEIGHTS_DTYPES

CHECKPOINT_HELP = (
    f"Checkpoint, its folder, or OWNER/NAME of the Hugging Face hub; several, separated by "
    f"{os.pathsep!r}, are an ensemble"
)


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of integers of ``least`` or more; for ``type`` of argparse options."""

    def parse(text: str) -> int:
        # int() would also read "1_0", " 1" and "+1"
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a number of {least} or more, but is {text!r}"
            )
        return int(text)

    return parse


natural, positive = at_least(0), at_least(1)


# one table, so that an option has the same name and meaning in every subcommand
SHARED: dict[str, dict[str, Any]] = {
    "checkpoint": {"required": True, "metavar": "PATH", "help": f"{CHECKPOINT_HELP}."},
    "data": {"metavar": "DIR", "help": "Data folder, made by fairseq-mm prepare."},
    "split": {"metavar": "NAME", "help": "Split of the data folder, such as valid."},
    "weights": {
        "metavar": "FILE",
        "help": "Extractor's weights, if not beside the checkpoint.",
    },
    "features": {
        "metavar": "STORE",
        "help": f"Feature store; several are separated by {os.pathsep!r}.",
    },
    "embedding": {
        "metavar": "PATH",
        "help": "Embedding (vse_*) whose vectors the model reads.",
    },
    "device": {
        "metavar": "NAME",
        "help": "Device: cpu, cuda or cuda:1 (default: a GPU if any).",
    },
    "batch_size": {
        "type": positive,
        "metavar": "N",
        "help": "Inputs per batch; changes only speed and memory.",
    },
    "output": {
        "metavar": "FILE",
        "help": "Write to this file; .jsonl means --jsonl.",
    },
    "jsonl": {"action": "store_true", "help": "Write one JSON object per input."},
    "json": {"metavar": "FILE", "help": "Write the result as JSON to this file."},
    "html": {"metavar": "FILE", "help": "Write an HTML page of inputs and outputs."},
    "seed": {"type": int, "help": f"Seed of random numbers (default: {SEED})."},
}

# named as in fairseq-generate, whose options do the same
GENERATION: dict[str, dict[str, Any]] = {
    "beam": {"type": int, "metavar": "N", "help": "Width of the beam; 1 is greedy search."},
    "nbest": {"type": int, "metavar": "N", "help": "Hypotheses of each input."},
    "sampling": {"action": "store_true", "help": "Sample tokens instead of searching."},
    "sampling_topk": {
        "type": int,
        "metavar": "K",
        "help": "Sample from the K most probable tokens.",
    },
    "sampling_topp": {
        "type": float,
        "metavar": "P",
        "help": "Sample from the fewest tokens with probability P.",
    },
    "typical_p": {
        "type": float,
        "metavar": "P",
        "help": "Sample from locally typical tokens of probability P.",
    },
    "mbr": {
        "choices": UTILITIES,
        "metavar": "METRIC",
        "help": "Of --beam N samples (default: 16), take those most similar by "
        f"{', '.join(UTILITIES[:-1])} or {UTILITIES[-1]}.",
    },
    "temperature": {"type": float, "metavar": "T", "help": "Divisor of the logits."},
    "lenpen": {
        "type": float,
        "metavar": "X",
        "help": "Length penalty; above 1 favours long texts.",
    },
    "min_len": {"type": int, "metavar": "N", "help": "Minimum length in tokens."},
    "max_len_b": {"type": int, "metavar": "N", "help": "Maximum length in tokens."},
    "no_repeat_ngram_size": {
        "type": int,
        "metavar": "N",
        "help": "No sequence of N tokens occurs twice.",
    },
    "prefix": {"metavar": "TOKENS", "help": "Tokens that every text begins with."},
    "allow_unk": {"action": "store_true", "help": "Allow <unk> in generated text."},
    "seed": {"type": int, "metavar": "N", "help": "Seed of sampling."},
    "weights_dtype": {
        "choices": WEIGHTS_DTYPES,
        "metavar": "TYPE",
        "help": "On a CPU: float32 (default), bfloat16 or int8 weights.",
    },
}

# not in GENERATION: a subcommand has only the constraints that its task declares
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "min_words_per_sentence": {"type": int, "metavar": "N", "help": "Minimum words of a sentence."},
    "max_words_per_sentence": {"type": int, "metavar": "N", "help": "Maximum words of a sentence."},
    "repetition_penalty": {
        "type": float,
        "metavar": "X",
        "help": "Divide a word's probability by 1 + X times its count.",
    },
    "end_after_punctuation": {
        "action": "store_true",
        "help": "End a sentence after . ? ! or at its maximum length.",
    },
}

# options of a search for candidates by part-of-speech sequences
STRUCTURES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "--data": ("Training captions and tags (default: of --split).", {"metavar": "DIR"}),
    "--vectors": (
        "Vectors of the training captions (default: embed now).",
        {"metavar": "FILE"},
    ),
    "--language-model": (
        "ARPA file (default: trigrams of the captions).",
        {"metavar": "FILE"},
    ),
    "--candidates": ("Samples for each image (default: 1000).", {"type": int, "metavar": "N"}),
    "--num-nearest": ("Words or captions of a mean (default: 5).", {"type": int, "metavar": "N"}),
    "--shortest": ("Minimum length of a sequence (default: 4).", {"type": int, "metavar": "N"}),
    "--longest": ("Maximum length of a sequence (default: 12).", {"type": int, "metavar": "N"}),
    "--translation-weight": (
        "Weight of the cosine (default: 1).",
        {"type": float, "metavar": "X"},
    ),
    "--language-weight": (
        "Weight of the log-probability (default: 0.2).",
        {"type": float, "metavar": "X"},
    ),
    "--repeat-penalty": (
        "Factor for each repeated content word (default: 0.7).",
        {"type": float, "metavar": "X"},
    ),
    "--top": (
        "Captions of an image (default: 1; with --jsonl 5).",
        {"type": int, "metavar": "N"},
    ),
    "--conditions": (
        "Vectors to generate from: image, means of the nearest words, sentences, or both "
        "(concepts).",
        {
            "nargs": "+",
            "choices": ("image", "words", "sentences", "concepts"),
            "metavar": "NAME",
        },
    ),
    "--pos-sampling": (
        "Sample sequences by frequency (default), or types.",
        {"choices": ("frequency", "types"), "metavar": "NAME"},
    ),
    "--language-score": (
        "Log-probability of a word (default) or sentence.",
        {"choices": ("word", "sentence"), "metavar": "NAME"},
    ),
}


def add_inputs(parser: argparse.ArgumentParser, media: str) -> None:
    """Add the inputs of a command that generates texts; ``media`` describes files and folders."""
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help=f"{media}; FILE.jsonl or - (standard input) with JSON lines; data folder of "
        "--split; ids of --features.",
    )


def add_output(parser: argparse.ArgumentParser, *names: str) -> Any:
    """Add options of the output and of the speed; return their group."""
    group = parser.add_argument_group("output and speed")
    add(group, *names, "device", "batch_size")
    return group


def add(parser: Any, *names: str, **changes: Mapping[str, Any]) -> None:
    """Add arguments that several subcommands share, such as ``--checkpoint``.

    Args:
        *names: Names of the arguments, keys of the table ``SHARED``.
        **changes: For an argument in ``names``, a dict of keyword arguments of ``add_argument``
            that override the table, such as ``checkpoint={"required": False}``.
    """
    for name in names:
        parser.add_argument(flag(name), **{**SHARED[name], **changes.get(name, {})})


def add_generation(
    parser: argparse.ArgumentParser,
    defaults: Optional[Mapping[str, Any]],
    *,
    presets: Iterable[str] = (),
    constraints: Iterable[str] = (),
) -> None:
    """Add the options of generation, such as ``--beam``.

    Options that are not on the command line are parsed as None, so that their values can be taken
    from a preset or from the task.

    Args:
        defaults: Defaults of the command's task; its help names those that differ from fairseq's,
            and leaves the options to ``fairseq-mm generate --help``. None to show all options.
        presets: Names that ``--preset`` accepts; empty to add no ``--preset``.
        constraints: Names of options of constrained generation.
    """
    text = None
    title = "generation (by default as the preset or the model's task says)"
    if defaults is not None:
        title = "generation, with the options of fairseq-mm generate --help"
        shown = [f"{flag(x)} {y}" for x, y in defaults.items() if y != FAIRSEQ_DEFAULTS[x]]
        text = f"By default {', '.join(shown)}." if shown else None
    group = parser.add_argument_group(title, text)
    if presets:
        about = f"Named options: {', '.join(presets)}."
        group.add_argument("--preset", choices=tuple(presets), metavar="NAME", help=about)
    table = {**GENERATION, **{name: CONSTRAINTS[name] for name in constraints}}
    for name, declared in table.items():
        hidden: dict[str, Any] = {} if defaults is None else {"help": argparse.SUPPRESS}
        group.add_argument(flag(name), default=None, **{**declared, **hidden})


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of generation that are on the command line.

    The result has keyword arguments of
    :meth:`fairseq_mm.generation.config.GenerationConfig.of_task`, by name.
    """
    names = ("preset", *GENERATION, *CONSTRAINTS)
    options = {name: getattr(args, name, None) for name in names}
    options = {name: value for name, value in options.items() if value is not None}
    for name in ("sampling_topk", "sampling_topp", "typical_p"):
        if name in options:
            options.setdefault("sampling", True)
    return options


def add_numbers(group: Any, **helps: str) -> None:
    """Add options whose value is an integer of 1 or more.

    Args:
        **helps: Help text of each option, by the option's name.
    """
    for name, text in helps.items():
        group.add_argument(flag(name), type=positive, metavar="N", help=text)


# flag or name -> help and the other keyword arguments of add_argument
Rows = Mapping[str, tuple[str, Mapping[str, Any]]]
FLAG: dict[str, Any] = {"action": "store_true"}
NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
# argparse appends to a copy of the default
REPEATED: dict[str, Any] = {"action": "append", "default": []}


def add_rows(group: Any, rows: Rows) -> None:
    """Add the arguments of a table to a parser or group.

    ``rows``, the table, is a dict from the name of an argument to its help text and to further
    keyword arguments of ``add_argument``.
    """
    for name, (text, more) in rows.items():
        group.add_argument(name, help=text, **more)


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, tuple[str, Rows]]) -> None:
    """Add a required subcommand, ``args.action``.

    ``actions`` is a dict from the subcommand's name to its description and its table of arguments.
    """
    parsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (summary, rows) in actions.items():
        short = summary.partition(". ")[0].rstrip(".")
        add_rows(parsers.add_parser(name, help=short, description=summary), rows)


class Rule(NamedTuple):
    """Rule for combining an option with others.

    Attributes:
        option: Name of the option in the parsed arguments.
        excludes: Names of options that cannot be given together with ``option``.
        needs: Names of options, at least one of which must be given together with ``option``;
            empty if ``option`` may be given on its own.
        because: Reason for the rule, which ends the error message.
    """

    option: str
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    because: str = ""


_WRITTEN = ("output", "html", "json", "jsonl", "submission", "per_item", "card")


def check_names(args: argparse.Namespace) -> None:
    """Raise UserError if an output path is ``-``, which does not mean standard output here."""
    for name in _WRITTEN:
        if str(getattr(args, name, None)) == "-":
            raise UserError(
                f"{flag(name)} -: give /dev/stdout for standard output, or ./- for a file or a "
                "folder of that name."
            )


def check_inputs_are_kept(args: argparse.Namespace) -> None:
    """Check that no output would overwrite a file that another argument names as an input."""
    # real paths, because a link or ./ names the same file
    files = [
        (name, os.path.realpath(value))
        for name, values in vars(args).items()
        for value in (values if isinstance(values, list) else [values])
        if isinstance(value, (str, os.PathLike)) and os.path.isfile(value)
    ]
    read = {file for name, file in files if name not in _WRITTEN}
    for name, file in files:
        if name in _WRITTEN and file in read:
            raise _overwrites(name, str(getattr(args, name)))


def _overwrites(name: str, path: str) -> UserError:
    return UserError(f"{flag(name)} {path}: would overwrite a file that is read.")


def check(args: argparse.Namespace, rules: Iterable[Rule] = ()) -> None:
    """Check the command line before a checkpoint is opened.

    Combinations of options (``rules``), the name of the split and the paths of outputs are checked.
    """
    for rule in rules:
        if not is_given(args, rule.option):
            continue
        because = f": {rule.because}" if rule.because else ""
        for other in rule.excludes:
            if is_given(args, other):
                names = f"{written(rule.option)} and {written(other)}"
                raise UserError(f"{names}: leave one of the two out{because}.")
        if rule.needs and not any(is_given(args, other) for other in rule.needs):
            needed = " or ".join(written(other) for other in rule.needs)
            raise UserError(f"{written(rule.option)}: needs {needed} beside it{because}.")
    split = getattr(args, "split", None)
    if split is not None and (not split or split in (".", "..") or set("/\\") & set(split)):
        raise UserError(f"--split must be the name of a split, such as valid, but is {split!r}.")
    # the inputs were compared with the outputs before, see check_inputs_are_kept
    check_outputs({name: getattr(args, name, None) for name in ("output", "html", "submission")})


def check_outputs(outputs: Mapping[str, Optional[str]], read: Iterable[str] = ()) -> None:
    """Check the paths of the files that a command will write.

    Args:
        outputs: Dict from the name of an option to the path of its output; None if the option is
            not given.
        read: Paths of the files that the command reads.
    """
    # real paths, because a link or ./ names the same file
    sources = {os.path.realpath(path) for path in read}
    written_by: dict[str, str] = {}
    for name, path in outputs.items():
        if not path:
            continue
        # now, not after hours of generating
        check_writable(flag(name), path)
        file = os.path.realpath(path)
        if file in written_by:
            raise UserError(f"{flag(name)} and {flag(written_by[file])} name one file; give two.")
        if file in sources:
            raise _overwrites(name, path)
        written_by[file] = name


def require(args: argparse.Namespace, *names: str) -> None:
    """Raise UserError if none of the options is given."""
    if not any(is_given(args, name) for name in names):
        raise UserError(f"give {' or '.join(map(written, names))}.")


def is_given(args: argparse.Namespace, name: str) -> bool:
    """Return True if the option ``name`` has a value other than None, False and an empty list."""
    value = getattr(args, name, None)
    # not `in`: 0 equals False
    return not (value is None or value is False or value == [])


def written(name: str) -> str:
    """Return the name of an argument for messages: ``--max-len`` for ``max_len``.

    Inputs without an option are called "the inputs".
    """
    return "the inputs" if name == "inputs" else flag(name)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_writable(option: str, path: Optional[str]) -> None:
    """Check that a file can be written at ``path``, the value of ``option``.

    If ``path`` is None, nothing is checked.
    """
    folder = os.path.dirname(path or "")
    if folder and not os.path.isdir(folder):
        raise UserError(f"{option} {path}: there is no folder {folder}.")
    if path and os.path.isdir(path):
        raise UserError(f"{option} {path}: is a folder; give the name of a file in it.")
