"""Documented commands, parsed as their programs parse them and not run."""

import argparse
import re
import runpy
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from fairseq import options
from pages import ROOT
from toy_data import PACKAGE

from fairseq_mm.cli.main import main

FAIRSEQ_PARSERS = {
    "fairseq-train": lambda: options.get_training_parser("translation"),
    "fairseq-generate": lambda: options.get_generation_parser(default_task="translation"),
    "fairseq-interactive": lambda: options.get_interactive_generation_parser("translation"),
    "fairseq-validate": lambda: options.get_validation_parser("translation"),
    "fairseq-eval-lm": lambda: options.get_eval_lm_parser(),
}
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PROGRAM = re.compile(
    r"(?:env )?(?:[A-Z_]+=\S+ )*(?:(?:fairseq-[\w-]+|python|\S+\.(?:sh|py)) |\$[A-Z_0-9]+)"
)


class Parsed(Exception):  # noqa: N818
    """The arguments of a program have been parsed."""


def inline_commands(text: str) -> Iterator[str]:
    """Yield the commands in backticks: a program with at least one argument, or a variable."""
    return (code for code in CODE.findall(text) if PROGRAM.match(code))


def parse_command(
    command: str, monkeypatch: pytest.MonkeyPatch, run_recipe: Callable[..., Any]
) -> None:
    """Parse a command; a recipe runs, and the commands that it calls are parsed.

    Raises:
        SystemExit: if a program does not take its arguments.
        AssertionError: if a recipe does not take its arguments, or there is no such program.
    """
    words = [word for word in shlex.split(command) if word != "env"]
    start = next(i for i, word in enumerate(words) if not re.match("[A-Z_]+=", word))
    variables = dict(word.split("=", 1) for word in words[:start])
    words = words[start:]
    if not words[0].endswith(".sh"):
        parse_program(words, monkeypatch)
        return
    recipe = ROOT / words[0]
    assert recipe.is_file(), f"there is no {words[0]}"
    for call in run_recipe(recipe.parent, recipe.stem, *words[1:], **variables):
        parse_program(call, monkeypatch)


def parse_program(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse one command, given as words."""
    program, *arguments = words
    if program in FAIRSEQ_PARSERS:
        place = arguments.index("--user-dir") + 1
        assert arguments[place].endswith(("fairseq_mm", "$(fairseq-mm user-dir)"))
        arguments[place] = str(PACKAGE)
        options.parse_args_and_arch(FAIRSEQ_PARSERS[program](), arguments)
    elif program == "fairseq-preprocess":
        options.get_preprocessing_parser().parse_args(arguments)
    elif program == "fairseq-mm":
        _parse_until_run(monkeypatch, lambda: main(arguments))
    else:
        assert program == "python", f"{program} is no known program"
        script = ROOT / arguments[0]
        assert script.is_file(), f"there is no {arguments[0]}"
        monkeypatch.setattr("sys.argv", arguments)
        monkeypatch.syspath_prepend(script.parent)  # as python does
        _parse_until_run(monkeypatch, lambda: runpy.run_path(str(script), run_name="__main__"))


def _parse_until_run(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> None:
    """Call a program up to its parsed arguments. Options must be written in full."""
    parse_known_args = argparse.ArgumentParser.parse_known_args
    parse_args = argparse.ArgumentParser.parse_args

    def parse_in_full(parser: Any, *arguments: Any) -> Any:
        parser.allow_abbrev = False
        return parse_known_args(parser, *arguments)

    def parse_and_stop(parser: Any, *arguments: Any) -> Any:
        parsed = parse_args(parser, *arguments)
        if parser.prog != "fairseq-mm":  # whose subcommand has a parser of its own
            raise Parsed
        return parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", parse_in_full)
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        with pytest.raises(Parsed):
            call()
