"""mkdocs hook: writes the help of every ``fairseq-mm`` subcommand into ``command_line.md``."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

MARK = "<!-- subcommands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of every page."""
    return markdown.replace(MARK, subcommands()) if MARK in markdown else markdown


def subcommands() -> str:
    """A table of all subcommands, then a section with the help of each."""
    from fairseq_mm.cli.main import SUBCOMMANDS

    rows = [f"| [`{name}`](#{name}) | {text} |" for name, text in SUBCOMMANDS.items()]
    sections = [_section(parser) for name in SUBCOMMANDS for parser in _parsers(_parser_of(name))]
    return "\n".join(["| `fairseq-mm` | |", "|---|---|", *rows]) + "\n\n" + "\n\n".join(sections)


def _parser_of(name: str) -> argparse.ArgumentParser:
    """The parser whose help ``fairseq-mm NAME --help`` prints."""
    from fairseq_mm.cli.main import main

    found: list[argparse.ArgumentParser] = []
    keep = mock.patch.object(argparse.ArgumentParser, "print_help", lambda self: found.append(self))
    with keep, contextlib.suppress(SystemExit):
        main([name, "--help"])
    return found[0]


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser, then the parsers of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from _parsers(child)


def _section(parser: argparse.ArgumentParser) -> str:
    words = parser.prog.split()[1:]
    with mock.patch.dict(os.environ, COLUMNS="82"):
        text = parser.format_help().rstrip()
    return f"{'#' * (len(words) + 1)} {' '.join(words)}\n\n````text\n{text}\n````"
