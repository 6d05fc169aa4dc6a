"""Suggest names on fairseq's command lines where one is misspelt or missing.

fairseq's parser answers an unknown ``--arch`` with all options and three hundred names, and fills a
missing ``--task`` with ``translation``, which then asks for a language pair. ``fairseq-generate``
writes its log, which says the settings of a search, elsewhere than to its output.
"""

import argparse
import difflib
import functools
import logging
import os
import re
import sys
from typing import Any, NoReturn, Optional

from fairseq_mm.compat.scope import is_ours, names_ours
from fairseq_mm.errors import EXIT_STATUS, UserError


def explain_arguments() -> None:
    """Answer unknown names and a missing ``--task`` in one line, only in commands with this
    package as ``--user-dir``. Goes when fairseq suggests names itself."""
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
        parser.error = functools.partial(_explain, parser, parser.error)  # type: ignore[method-assign]
        parsed = original(parser, input_args, *args, **kwargs)
        arguments = parsed[0] if isinstance(parsed, tuple) else parsed
        if task == "translation":
            _check_language_pair(arguments)
        if names_ours(arguments):
            # fairseq-generate has no other place where its task is known before it runs
            from fairseq_mm.compat import repairs

            repairs.activate()
        return parsed

    options.parse_args_and_arch = parse_args_and_arch


def is_generate() -> bool:
    return "fairseq_cli.generate" in sys.modules


def repair_output_of_generate() -> None:
    """Write the log of ``fairseq-generate``, which has the settings of its search, to its output.

    fairseq asks for that, but one of its modules has configured the log when it was imported, and
    ``logging.basicConfig`` then does nothing. Handlers of a program that calls it stay. Goes when
    no module of fairseq configures the log.
    """
    from fairseq_cli import generate

    original = generate.main

    @functools.wraps(original)
    def main(cfg: Any) -> Any:
        if not names_ours(cfg):
            return original(cfg)
        check_sampling(getattr(cfg, "generation", cfg))
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        if all(_is_of_basic_config(handler) for handler in handlers):
            root.handlers.clear()
        try:
            return original(cfg)
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)

    generate.main = main


def _is_of_basic_config(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler and handler.stream is sys.stderr


def check_sampling(options: Any) -> None:
    """Refuse options of sampling for which fairseq's generation ends in a traceback.

    Args:
        options: ``sampling``, ``beam`` and ``nbest`` of a command.

    Raises:
        UserError: if ``--sampling`` draws another number of texts than ``--nbest`` prints.
    """
    if options.sampling and options.nbest != options.beam:
        raise UserError(
            f"--sampling draws --beam texts and prints --nbest, but --beam is {options.beam} and "
            f"--nbest is {options.nbest}: give --beam {options.nbest} or --nbest {options.beam}."
        )


def _explain(parser: argparse.ArgumentParser, error: Any, message: str) -> NoReturn:
    """End the program with near names for a choice that does not exist."""
    found = re.match(r"argument (\S+): invalid choice: '(.*?)' \(choose from", message)
    if found is None:
        error(message)
        raise SystemExit(EXIT_STATUS)
    option, name = found[1].partition("/")[0], found[2]
    action = next(action for action in parser._actions if option in action.option_strings)
    near = difflib.get_close_matches(name, list(action.choices or ()), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"{parser.prog} --help lists them."
    if not near and option == "--arch":
        hint = _our_models()
    elif not near and option == "--task":
        hint = _our_tasks()
    parser.exit(EXIT_STATUS, f"{parser.prog}: {option}: there is no {name!r}: {hint}\n")


def _check_language_pair(args: argparse.Namespace) -> None:
    """
    Raises:
        UserError: if fairseq's translation, the default task, would find no language pair.
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


def _our_models() -> str:
    from fairseq.models import MODEL_REGISTRY

    return f"the plugin's models are {_ours(MODEL_REGISTRY)}."


def _ours(registry: Any) -> str:
    return ", ".join(sorted(name for name, kind in registry.items() if is_ours(kind)))
