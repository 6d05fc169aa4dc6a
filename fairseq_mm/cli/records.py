"""JSON records, output files and progress bars of the subcommands that generate texts.

A record has ``id``, ``hypothesis`` and ``score``, then fields that depend on the task, then its
provenance: ``options``, ``checkpoint`` (SHA-256) and ``extractor``.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, TextIO

from fairseq_mm.data.output_file import output_file

# for annotations alone: these modules import torch, which takes seconds
if TYPE_CHECKING:
    from fairseq_mm.generation.config import GenerationConfig
    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.hypothesis import Hypothesis


# placeholder in the name of an output file for the rank of the texts in it
RANK = "{k}"


@contextlib.contextmanager
def open_output(path: Optional[str]) -> Iterator[TextIO]:
    """Open a file for writing; it appears when it is complete. None is standard output."""
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
        many: Number of inputs below which the bar is not shown.
    """
    from tqdm import tqdm

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
    """Return the JSON record of an input.

    Args:
        name: Id of the input.
        hypotheses: Hypotheses, best first. The record has the fields of the best hypothesis; if
            there are several hypotheses, it also has a list of all.
        others: Further fields of the record.
        as_line: True to write the tokens of a hypothesis instead of its detokenized text.
        each: For each hypothesis, its further fields; empty if there are no further fields.
    """
    # the best hypothesis is always a field of its own, where `score` looks for it
    entries = [
        {"hypothesis": best.line if as_line else best.text, "score": round(best.score, 4)}
        for best in hypotheses
    ]
    entries = [{**entry, **fields} for entry, fields in zip(entries, each)] if each else entries
    several = {"hypotheses": entries} if len(entries) > 1 else {}
    return json.dumps({"id": name, **entries[0], **several, **others}, ensure_ascii=False)


def rank_fields(args: argparse.Namespace, hypotheses: Sequence[Any]) -> list[dict[str, Any]]:
    """Return for each hypothesis its record's fields ``rank``, ``candidates`` (their number) and
    ``best_by`` (how they were ranked). Without ``--best-of``, return an empty list.
    """
    if args.best_of is None:
        return []
    return [
        {"rank": number, "candidates": args.best_of, "best_by": args.best_by or "score"}
        for number in range(1, len(hypotheses) + 1)
    ]


def rank_paths(args: argparse.Namespace) -> list[str]:
    """Return the paths of the output files.

    If the name in ``--output`` contains ``{k}``, there is one file per rank, from 1 to ``--nbest``.
    """
    ranks = range(1, (args.nbest or 1) + 1) if RANK in args.output else [1]
    return [args.output.replace(RANK, str(rank)) for rank in ranks]


def provenance_fields(model: "Generator", config: "GenerationConfig") -> dict[str, Any]:
    """Return the fields of a JSON record that say how its text was generated.

    These are the digest of the checkpoint, the options of generation and, for models of images or
    videos, the extractor.
    """
    options = {name: value for name, value in config.to_dict().items() if value is not None}
    facts = {"checkpoint": compute_digests(model.files), "options": options}
    identity = model.processor.extractor_identity
    return facts if identity is None else {**facts, "extractor": identity}


def compute_digests(files: Sequence[str]) -> Any:
    """Return the SHA-256 digest of a file or, for several files, the list of their digests."""
    from fairseq_mm.data.input_files import compute_sha256

    digests = [compute_sha256(file) for file in files]
    return digests[0] if len(digests) == 1 else digests


def list_first(names: Sequence[str], count: int) -> str:
    """Join the first ``count`` names with commas, followed by dots if ``names`` has more."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def counted(number: int, one: str, several: Optional[str] = None) -> str:
    """Return a number with its noun: ``1 story``, ``1,200 stories``.

    Args:
        number: The number.
        one: Singular of the noun.
        several: Plural of the noun (default: the singular with ``s``).
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
