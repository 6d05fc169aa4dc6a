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


def at_least(least: int, most: Optional[int] = None) -> Callable[[str], int]:
    """Return a parser of integers between two bounds; for ``type`` of argparse options."""

    def parse(text: str) -> int:
        # int() would also read "1_0", " 1" and "+1"
        if not text.isdecimal() or not least <= int(text) <= (most or int(text)):
            bounds = f"of {least} or more" if most is None else f"between {least} and {most}"
            raise argparse.ArgumentTypeError(f"must be a number {bounds}, but is {text!r}")
        return int(text)

    return parse


natural, positive = at_least(0), at_least(1)


# tables of arguments: flag or name -> help and the other keyword arguments of add_argument
Rows = Mapping[str, tuple[str, Mapping[str, Any]]]
FLAG: dict[str, Any] = {"action": "store_true"}
NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
NATURAL: dict[str, Any] = {"type": natural, "metavar": "N"}
POSITIVE: dict[str, Any] = {"type": positive, "metavar": "N"}
# argparse appends to a copy of the default
REPEATED: dict[str, Any] = {"action": "append", "default": []}
_FILE, _REAL = {"metavar": "FILE"}, {"type": float, "metavar": "X"}

# one table, so that an option has the same name and meaning in every subcommand
SHARED: Rows = {
    "--checkpoint": (f"{CHECKPOINT_HELP}.", {"required": True, "metavar": "PATH"}),
    "--data": ("Data folder, made by fairseq-mm prepare.", {"metavar": "DIR"}),
    "--split": ("Split of the data folder, such as valid.", {"metavar": "NAME"}),
    "--weights": ("Extractor's weights, if not beside the checkpoint.", _FILE),
    "--features": (
        f"Feature store; several are separated by {os.pathsep!r}.",
        {"metavar": "STORE"},
    ),
    "--embedding": ("Embedding (vse_*) whose vectors the model reads.", {"metavar": "PATH"}),
    "--device": ("Device: cpu, cuda or cuda:1 (default: a GPU if any).", {"metavar": "NAME"}),
    "--batch-size": ("Inputs per batch; changes only speed and memory.", POSITIVE),
    "--output": ("Write to this file; .jsonl means --jsonl.", _FILE),
    "--jsonl": ("Write one JSON object per input.", FLAG),
    "--json": ("Write the result as JSON to this file.", _FILE),
    "--html": ("Write an HTML page of inputs and outputs.", _FILE),
    "--images": ("Folder or .tar of the images; repeatable.", {**REPEATED, "metavar": "DIR"}),
    "--seed": (f"Seed of random numbers (default: {SEED}).", {"type": int}),
}

# named as in fairseq-generate, whose options do the same
GENERATION: Rows = {
    "--beam": ("Width of the beam; 1 is greedy search.", NUMBER),
    "--nbest": ("Hypotheses of each input.", NUMBER),
    "--sampling": ("Sample tokens instead of searching.", FLAG),
    "--sampling-topk": ("Sample from the K most probable tokens.", {**NUMBER, "metavar": "K"}),
    "--sampling-topp": (
        "Sample from the fewest tokens with probability P.",
        {**_REAL, "metavar": "P"},
    ),
    "--typical-p": (
        "Sample from locally typical tokens of probability P.",
        {**_REAL, "metavar": "P"},
    ),
    "--mbr": (
        "Of --beam N samples (default: 16), take those most similar by "
        f"{', '.join(UTILITIES[:-1])} or {UTILITIES[-1]}.",
        {"choices": UTILITIES, "metavar": "METRIC"},
    ),
    "--temperature": ("Divisor of the logits.", {**_REAL, "metavar": "T"}),
    "--lenpen": ("Length penalty; above 1 favours long texts.", _REAL),
    "--min-len": ("Minimum length in tokens.", NUMBER),
    "--max-len-b": ("Maximum length in tokens.", NUMBER),
    "--no-repeat-ngram-size": ("No sequence of N tokens occurs twice.", NUMBER),
    "--prefix": ("Tokens that every text begins with.", {"metavar": "TOKENS"}),
    "--allow-unk": ("Allow <unk> in generated text.", FLAG),
    "--seed": ("Seed of sampling.", NUMBER),
    "--weights-dtype": (
        "On a CPU: float32 (default), bfloat16 or int8 weights.",
        {"choices": WEIGHTS_DTYPES, "metavar": "TYPE"},
    ),
}

# not in GENERATION: a subcommand has only the constraints that its task declares
CONSTRAINTS: Rows = {
    "--min-words-per-sentence": ("Minimum words of a sentence.", NUMBER),
    "--max-words-per-sentence": ("Maximum words of a sentence.", NUMBER),
    "--repetition-penalty": ("Divide a word's probability by 1 + X times its count.", _REAL),
    "--end-after-punctuation": ("End a sentence after . ? ! or at its maximum length.", FLAG),
}

# options of a search for candidates by part-of-speech sequences
STRUCTURES: Rows = {
    "--data": ("Training captions and tags (default: of --split).", {"metavar": "DIR"}),
    "--vectors": ("Vectors of the training captions (default: embed now).", _FILE),
    "--language-model": ("ARPA file (default: trigrams of the captions).", _FILE),
    "--candidates": ("Samples for each image (default: 1000).", NUMBER),
    "--num-nearest": ("Words or captions of a mean (default: 5).", NUMBER),
    "--shortest": ("Minimum length of a sequence (default: 4).", NUMBER),
    "--longest": ("Maximum length of a sequence (default: 12).", NUMBER),
    "--translation-weight": ("Weight of the cosine (default: 1).", _REAL),
    "--language-weight": ("Weight of the log-probability (default: 0.2).", _REAL),
    "--repeat-penalty": ("Factor for each repeated content word (default: 0.7).", _REAL),
    "--top": ("Captions of an image (default: 1; with --jsonl 5).", NUMBER),
    "--conditions": (
        "Vectors to generate from: image, means of the nearest words, sentences, or both "
        "(concepts).",
        {"nargs": "+", "choices": ("image", "words", "sentences", "concepts"), "metavar": "NAME"},
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


def name_of(flag: str) -> str:
    """Return the name of an option in the parsed arguments: ``max_len`` for ``--max-len``."""
    return flag.lstrip("-").replace("-", "_")


OF_SEARCH = tuple(name_of(x) for x in GENERATION if x != "--seed")
# options that only some of the commands have which generate texts
_OF_SOME = (
    *("best_by", "best_of", "compare", "html", "images", "limit", "line", "n", "prompt_model"),
    *("submission", "preset", *map(name_of, CONSTRAINTS)),
)


def add_inputs(parser: argparse.ArgumentParser, media: str) -> None:
    """Add the inputs of a command that generates texts; ``media`` describes files and folders."""
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help=f"{media}; FILE.jsonl or - (standard input) with JSON lines; data folder of "
        "--split; ids of --features.",
    )
    parser.set_defaults(**dict.fromkeys(_OF_SOME))


def add_output(parser: argparse.ArgumentParser, *names: str) -> Any:
    """Add options about output and speed as a group; return the group."""
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
        text, more = SHARED[flag(name)]
        parser.add_argument(flag(name), **{"help": text, **more, **changes.get(name, {})})


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
        defaults: Defaults of the command's task; its help shows only defaults that differ from
            fairseq's, and refers to ``fairseq-mm generate --help`` for options. None to show all
            options.
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
    table = {**GENERATION, **{flag(name): CONSTRAINTS[flag(name)] for name in constraints}}
    for name, (text, more) in table.items():
        about = text if defaults is None else argparse.SUPPRESS
        group.add_argument(name, default=None, help=about, **more)


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of generation that are on the command line.

    The result has keyword arguments of
    :meth:`fairseq_mm.generation.config.GenerationConfig.of_task`, by name.
    """
    names = ("preset", *map(name_of, [*GENERATION, *CONSTRAINTS]))
    options = {name: value for name in names if (value := getattr(args, name)) is not None}
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


_WRITTEN = ("output", "html", "json", "jsonl", "submission", "per_item")


def check_names(args: argparse.Namespace) -> None:
    """Raise UserError if an output path is ``-``: commands do not take it as standard output."""
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


def check(args: argparse.Namespace, rules: Iterable[Rule] = ()) -> set[str]:
    """Check the command line before a checkpoint is opened; return the result of
    :func:`given_options`.

    Combinations of options (``rules``) and the paths of outputs are checked.
    """
    given = given_options(args)
    for rule in rules:
        because = f": {rule.because}" if rule.because else ""
        name = written(rule.option)
        if rule.option in given and (others := [x for x in rule.excludes if x in given]):
            raise UserError(f"{name} and {written(others[0])}: leave one of the two out{because}.")
        if rule.option in given and rule.needs and not given & {*rule.needs}:
            needed = " or ".join(map(written, rule.needs))
            raise UserError(f"{name}: needs {needed} beside it{because}.")
    # the inputs were compared with the outputs before, see check_inputs_are_kept
    check_outputs({name: getattr(args, name, None) for name in ("output", "html", "submission")})
    return given


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
    """Raise UserError if none of the options ``names`` is given."""
    if not given_options(args) & {*names}:
        raise UserError(f"give {' or '.join(map(written, names))}.")


def given_options(args: argparse.Namespace) -> set[str]:
    """Return the names of the options with a value other than None, False and an empty list."""
    # not `in`: 0 equals False
    values = vars(args).items()
    return {name for name, x in values if not (x is None or x is False or x == [])}


def written(name: str) -> str:
    """Return the name of an argument in messages: ``--max-len`` for ``max_len``.

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
    has_folder = not folder or os.path.isdir(folder)
    if path and (os.path.isdir(path) or not has_folder):
        problem = "is a folder; give the name of a file in it"
        problem = problem if has_folder else f"there is no folder {folder}"
        raise UserError(f"{option} {path}: {problem}.")
