"""Repairs the messages and logs of fairseq's commands, and checks hydra's config files."""

import argparse
import difflib
import functools
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, Optional

from fairseq_mm.compat import activation
from fairseq_mm.compat.scope import is_ours, names_ours
from fairseq_mm.errors import EXIT_STATUS, UserError

# marks a value of a config file that the command line must give
_MISSING = "???"


def explain_arguments() -> None:
    """Make fairseq report a missing ``--task`` or an unknown name in one line.

    For an unknown name, such as ``--arch typo``, the line suggests similar names.
    """
    from fairseq import options

    original = options.parse_args_and_arch

    @functools.wraps(original)
    def parse_args_and_arch(
        parser: argparse.ArgumentParser, input_args: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        words = sys.argv[1:] if input_args is None else input_args
        names = {word.partition("=")[0] for word in words}
        task: Optional[str] = "given" if "--task" in names else parser.get_default("task")
        if task is None and not names & {"-h", "--help"}:
            raise UserError(f"--task is missing. {_our_tasks()}")
        # for an unknown --arch, argparse's message has all options and three hundred names
        parser.error = functools.partial(_explain, parser, parser.error)  # type: ignore[method-assign]
        parsed = original(parser, input_args, *args, **kwargs)
        arguments = parsed[0] if isinstance(parsed, tuple) else parsed
        # fairseq sets a missing --task to translation, which then asks for a language pair
        if task == "translation":
            _check_language_pair(arguments)
        if names_ours(arguments):
            # the only place where fairseq-generate knows its task before it runs
            activation.activate()
        return parsed

    options.parse_args_and_arch = parse_args_and_arch


def is_generate() -> bool:
    return "fairseq_cli.generate" in sys.modules


def repair_output_of_generate() -> None:
    """Make ``fairseq-generate`` write its log to stdout, or to its file in ``--results-path``.

    The log contains the settings of the search. Log handlers that another program has set up before
    it calls ``fairseq_cli.generate`` do not change.
    """
    from fairseq_cli import generate

    original = generate.main

    @functools.wraps(original)
    def main(cfg: Any) -> Any:
        if not names_ours(cfg):
            return original(cfg)
        check_sampling(getattr(cfg, "generation", cfg))
        # fairseq calls logging.basicConfig for its output, which does nothing if there is a
        # handler: one of its modules has configured the log on import
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        if all(type(x) is logging.StreamHandler and x.stream is sys.stderr for x in handlers):
            root.handlers.clear()
        try:
            return original(cfg)
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)

    generate.main = main


def check_sampling(options: Any) -> None:
    """Refuse options of generation with which fairseq's sampling ends in a traceback."""
    if options.sampling and options.nbest != options.beam:
        raise UserError(
            f"--sampling draws --beam texts and prints --nbest, but --beam is {options.beam} and "
            f"--nbest is {options.nbest}: give --beam {options.nbest} or --nbest {options.beam}."
        )


def _explain(parser: argparse.ArgumentParser, error: Any, message: str) -> NoReturn:
    """Print an error and exit; for a value outside of an option's choices, suggest similar values.

    Replaces ``parser.error``.

    Args:
        parser: Parser that found the error.
        error: Original ``parser.error``, which is called for all other errors.
        message: argparse's description of the error.
    """
    match = re.match(r"argument (\S+): invalid choice: '(.*?)' \(choose from", message)
    if match is None:
        error(message)
        raise SystemExit(EXIT_STATUS)
    # argparse joins the names of one option by slashes: --arch/-a
    option, name = match[1].partition("/")[0], match[2]
    action = next(action for action in parser._actions if option in action.option_strings)
    near = difflib.get_close_matches(name, list(action.choices or ()), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"{parser.prog} --help lists them."
    if not near and option == "--arch":
        from fairseq.models import MODEL_REGISTRY

        hint = f"the plugin's models are {_ours(MODEL_REGISTRY)}."
    elif not near and option == "--task":
        hint = _our_tasks()
    parser.exit(EXIT_STATUS, f"{parser.prog}: {option}: there is no {name!r}: {hint}\n")


def _check_language_pair(args: argparse.Namespace) -> None:
    """Raise UserError if ``--task`` is missing and the data folder is unsuitable for
    ``translation``.

    ``translation`` is fairseq's default task. It needs files that name two languages, as in
    ``train.de-en.de.bin``. ``args`` is the parsed command line.
    """
    from fairseq.data.data_utils import infer_language_pair

    if getattr(args, "source_lang", None) or getattr(args, "target_lang", None):
        return
    folder = str(getattr(args, "data", None) or "").split(os.pathsep)[0]
    if os.path.isdir(folder) and infer_language_pair(folder) == (None, None):
        raise UserError(
            f"{folder}: --task is missing, and fairseq's default, translation, finds no pair of "
            f"languages in this folder. {_our_tasks()}"
        )


def _our_tasks() -> str:
    from fairseq.tasks import TASK_REGISTRY

    return f"The plugin's tasks are {_ours(TASK_REGISTRY)}."


def _ours(registry: Any) -> str:
    return ", ".join(sorted(name for name, kind in registry.items() if is_ours(kind)))


def check_hydra_recipe() -> None:
    """Check that the command line sets all options that are ``???`` in hydra's config file.

    Without this check, ``fairseq-hydra-train`` would use fairseq's defaults for them: without
    ``checkpoint.finetune_from_model``, it would train from random weights.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    if not HydraConfig.initialized():
        return
    # else hydra prints a traceback of its own and exits, and errors.report_on_exit sees no error
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    run = HydraConfig.get()
    given = {
        key.lstrip("+")
        for key, _, value in (override.partition("=") for override in run.overrides.task)
        if value != _MISSING
    }
    # the merged config shows nothing: fairseq's defaults have replaced ??? in it
    recipe = _recipe_file(str(run.job.config_name))
    content = OmegaConf.to_container(OmegaConf.load(recipe)) if recipe else {}
    missing = [
        key
        for key in _missing_keys(content, "")
        if not any(f"{key}.".startswith(f"{group}.") for group in given)
    ]
    if missing:
        raise UserError(
            f"{recipe}: {', '.join(missing)} must be given on the command line, such as "
            f"{missing[0]}=..."
        )


def _recipe_file(name: str) -> str:
    from hydra.core.global_hydra import GlobalHydra

    for source in GlobalHydra.instance().config_loader().get_sources():
        file = os.path.join(source.path, name if name.endswith(".yaml") else f"{name}.yaml")
        if source.scheme() == "file" and os.path.isfile(file):
            return file
    return ""


def _missing_keys(section: Any, prefix: str) -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _missing_keys(value, f"{prefix}{key}.")
        elif value == _MISSING:
            yield f"{prefix}{key}"
