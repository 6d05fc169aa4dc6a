"""Prints the script that lets a shell complete commands of fairseq-mm.

  fairseq-mm completion bash \\
      > ~/.local/share/bash-completion/completions/fairseq-mm
  fairseq-mm completion zsh > ~/.zfunc/_fairseq-mm
  fairseq-mm completion fish > ~/.config/fish/completions/fairseq-mm.fish

The shell then completes subcommands, options, choices of options and file names when you press the
Tab key. bash reads the folder if the package bash-completion is installed; without it, and to try
the completion, run: eval "$(fairseq-mm completion bash)". zsh reads ~/.zfunc if your ~/.zshrc has
the lines `fpath+=~/.zfunc` and `autoload -U compinit && compinit`. The command needs argcomplete:
pip install 'fairseq-mm[completion]'.
"""

import argparse
import importlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, Callable

from fairseq_mm.errors import import_extra

SHELLS = ("bash", "zsh", "fish")
SPLITS = ("train", "valid", "test")
# examples; the whole list is torchvision's, whose import takes seconds
_MODELS = (
    *("alexnet", "efficientnet_b0", "inception_v3", "mobilenet_v2", "resnet50", "resnet152"),
    *("squeezenet1_1", "vgg16", "vgg19", "vit_b_16", "resnext101_3d", "r3d_18", "s3d"),
    *("timm:", "hf:", "open_clip:"),
)
# metavars of values that are neither files nor folders
_PLAIN = {
    *("N", "N,...", "K", "K[,K...]", "P", "S", "T", "X", "MIB", "I/N", "ID", "SET", "PORT", "HOST"),
    *("NAME", "NAMES", "NAME=VALUE", "OWNER/NAME", "PATTERN", "TEMPLATE", "ACTIONS"),
    *("ROWSxCOLUMNS", "ROW,COLUMN", "SENTENCE", "TEXT", "TOKENS", "WORD", "WORDS"),
}
_FOLDERS = {"DIR", "FOLDER"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="Shell that reads the script.")


def run(args: argparse.Namespace) -> None:
    """Print the script for the shell ``args.shell``."""
    shell_integration = import_extra(
        "argcomplete.shell_integration", extra="completion", purpose="completion"
    )
    print(shell_integration.shellcode(["fairseq-mm"], shell=args.shell).strip())


def answer(subcommands: dict[str, str], new_parser: Callable[..., Any]) -> int:
    """Answer the shell, which asks for completions by environment variables, and end the process.

    Only the module of the subcommand on the command line is imported.

    Args:
        subcommands: Dict from the name of each subcommand to its description.
        new_parser: Class of the parser of ``fairseq-mm`` and of its subcommands.

    Returns:
        1 if argcomplete is missing. Otherwise the function does not return.
    """
    try:
        import argcomplete
    except ImportError:
        return 1
    overview = new_parser(prog="fairseq-mm")
    overview.add_argument("--version", action="version", version="", help="Print the version.")
    places = overview.add_subparsers(dest="subcommand")
    parsers = {name: places.add_parser(name, help=text) for name, text in subcommands.items()}
    _, prefix, _, words, _ = argcomplete.lexers.split_line(
        os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    )
    if len(words) > 1 and words[1] in parsers:
        module = importlib.import_module(f"fairseq_mm.cli.{words[1].replace('-', '_')}")
        module.add_arguments(parsers[words[1]])
        _insert_kind(module, words, prefix)
        for action in _actions(parsers[words[1]]):
            _set_completer(action, words[1], module)
    argcomplete.autocomplete(
        overview, always_complete_options=False, default_completer=_complete_path
    )
    return 1


def _insert_kind(module: ModuleType, words: list[str], prefix: str) -> None:
    """Insert the default action, such as ``nearest`` of ``retrieve``, into the line to complete.

    ``words`` are the words of the line before the cursor's word; ``prefix`` is the beginning of the
    cursor's word.
    """
    name_kind = getattr(module, "name_kind", None)
    # otherwise the action itself is completed
    if name_kind is None or not (words[2:] or prefix.startswith("-")):
        return
    given = [*words[2:], prefix]
    named = name_kind(given)
    if len(named) > len(given):
        line, kind = os.environ["COMP_LINE"], f" {named[0]}"
        match = re.match(rf"\s*\S+\s+{re.escape(words[1])}", line)
        if match is not None:
            os.environ["COMP_LINE"] = f"{match[0]}{kind}{line[match.end() :]}"
            os.environ["COMP_POINT"] = str(int(os.environ["COMP_POINT"]) + len(kind))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)


def _set_completer(action: argparse.Action, subcommand: str, module: ModuleType) -> None:
    option = action.option_strings[-1] if action.option_strings else ""
    if option == "--metrics" and subcommand == "score":
        action.completer = _complete_list(module.NAMES)  # type: ignore[attr-defined]
    elif option == "--model" and subcommand == "extract":
        action.completer = lambda **_: _MODELS  # type: ignore[attr-defined]
    elif option == "--split":
        action.completer = lambda **_: SPLITS  # type: ignore[attr-defined]


def _complete_list(names: Sequence[str]) -> Callable[..., list[str]]:
    """Return a completer of comma-separated lists such as ``bleu,meteor``."""

    def complete(prefix: str, **_: Any) -> list[str]:
        before, comma, _last = prefix.rpartition(",")
        used = before.split(",")
        return [f"{before}{comma}{name}" for name in names if name not in used]

    return complete


def _complete_path(prefix: str, action: argparse.Action, **others: Any) -> Iterable[str]:
    """Return files or folders that begin with ``prefix``, if the argument takes a path."""
    from argcomplete import completers

    metavar = action.metavar
    # numbers are parsed by int, float and functions of this package
    if metavar in _PLAIN or action.type in (int, float):
        return []
    if metavar in _FOLDERS:
        return completers.DirectoriesCompleter()(prefix, action=action, **others)
    return completers.FilesCompleter()(prefix, action=action, **others)
