"""JSON records, output files and progress bars of subcommands that generate texts.

A record has ``id``, ``hypothesis`` and ``score``, then fields that depend on the task, then
``options``, ``checkpoint`` (SHA-256) and ``extractor``.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, TextIO

from fairseq_mm.data.output_file import output_file
from fairseq_mm.inference.checkpoint_files import compute_checkpoint_digest

# for annotations alone: this module imports torch, which takes seconds
if TYPE_CHECKING:
    from fairseq_mm.inference.hypothesis import Hypothesis


@contextlib.contextmanager
def open_output(path: Optional[str]) -> Iterator[TextIO]:
    """Open the file ``path`` for writing; the file appears only when it is complete.

    If ``path`` is None, yield standard output.
    """
    if path is None:
        yield sys.stdout
        return
    with output_file(path) as file:
        yield file


def progress_bar(total: int, unit: str, *, many: int = 50) -> Any:
    """Return a progress bar on stderr, which is shown only on a terminal.

    Args:
        total: Number of inputs.
        unit: Plural noun for the inputs, such as ``images``.
        many: Minimum number of inputs for which the bar is shown.
    """
    from tqdm.auto import tqdm

    # disable=None, unlike False, disables the bar if stderr is no terminal
    return tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=total < many or None)


def json_line(
    name: Any,
    hypotheses: "Sequence[Hypothesis]",
    others: Mapping[str, Any],
    *,
    as_line: bool = False,
    each: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the JSON record of an input, with its generated texts, as a line.

    Args:
        name: Id of the input.
        hypotheses: Hypotheses, best first. The record has the fields of the best hypothesis; if
            there are several hypotheses, it also has a list of all.
        others: Further fields of the record.
        as_line: True to write the tokens of a hypothesis instead of its detokenized text.
        each: Further fields of each hypothesis, in order; empty for no further fields.
    """
    # the best hypothesis is always a field of its own, where `score` looks for it
    entries = [
        {
            "hypothesis": best.line if as_line else best.text,
            "score": round(best.score, 4),
            **({} if best.utility is None else {"utility": round(best.utility, 4)}),
        }
        for best in hypotheses
    ]
    entries = [{**entry, **fields} for entry, fields in zip(entries, each)] if each else entries
    several = {"hypotheses": entries} if len(entries) > 1 else {}
    return json.dumps({"id": name, **entries[0], **several, **others}, ensure_ascii=False)


def provenance_fields(model: Any, config: Any) -> dict[str, Any]:
    """Return the fields of a JSON record that say how its text was generated.

    The fields are the digest of the checkpoint, the options of generation and, for models of images
    or videos, the extractor.
    """
    options = {name: value for name, value in config.to_dict().items() if value is not None}
    facts = {"checkpoint": compute_digests(model.files), "options": options}
    identity = model.processor.extractor_identity
    return facts if identity is None else {**facts, "extractor": identity}


def compute_digests(files: Sequence[str]) -> Any:
    """Return the SHA-256 digest of a checkpoint or, for several, the list of their digests."""
    digests = [compute_checkpoint_digest(file) for file in files]
    return digests[0] if len(digests) == 1 else digests


def rank_fields(args: argparse.Namespace, hypotheses: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the fields of ``--best-of`` in each hypothesis's record; empty without this option.

    The fields are ``rank``, ``candidates`` (their number) and ``best_by`` (method of ranking).
    """
    if args.best_of is None:
        return []
    return [
        {"rank": number, "candidates": args.best_of, "best_by": args.best_by or "score"}
        for number in range(1, len(hypotheses) + 1)
    ]


def heading(index: int, title: str) -> str:
    """Return the heading line of a story: its index and, if it has one, its title."""
    title = " ".join(title.split())
    return f"=== {index}{': ' if title else ''}{title} ===\n"


def list_first(names: Sequence[str], count: int) -> str:
    """Join the first ``count`` names with commas, followed by dots if ``names`` has more."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def counted(number: int, one: str, several: Optional[str] = None) -> str:
    """Return a number with its noun: ``1 story``, ``1,200 stories``.

    By default, the plural ``several`` is the singular ``one`` with an ``s``.
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
