"""What generating subcommands write.

A record has ``id``, ``hypothesis`` and ``score``, then what is particular to its task, then what
made it: ``options``, ``checkpoint`` (SHA-256), ``extractor``.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, TextIO

from fairseq_mm.data.output_file import output_file

if TYPE_CHECKING:
    from fairseq_mm.generation.config import GenerationConfig
    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.hypothesis import Hypothesis


# stands in the name of an output file for the rank of the texts in it
RANK = "{k}"


@contextlib.contextmanager
def opened(path: Optional[str]) -> Iterator[TextIO]:
    """Standard output, or a file that appears when it is complete."""
    if path is None:
        yield sys.stdout
        return
    with output_file(path) as file:
        yield file


def json_line(
    name: Any,
    hypotheses: "Sequence[Hypothesis]",
    others: Mapping[str, Any],
    *,
    as_line: bool = False,
    each: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The record of an input.

    Args:
        name: of the input.
        hypotheses: the best first; several are all written.
        others: fields beside ``id``, ``hypothesis`` and ``score``.
        as_line: ``hypothesis`` has the tokens, not the detokenised text.
        each: fields of each hypothesis, the best first; none by default.
    """
    found = [
        {"hypothesis": best.line if as_line else best.text, "score": round(best.score, 4)}
        for best in hypotheses
    ]
    found = [{**best, **fields} for best, fields in zip(found, each)] if each else found
    several = {"hypotheses": found} if len(found) > 1 else {}
    return json.dumps({"id": name, **found[0], **several, **others}, ensure_ascii=False)


def ranks_of(args: argparse.Namespace, hypotheses: Sequence[Any]) -> list[dict[str, Any]]:
    """What the record of each hypothesis says of ``--best-of``."""
    if args.best_of is None:
        return []
    return [
        {"rank": number, "candidates": args.best_of, "best_by": args.best_by or "score"}
        for number in range(1, len(hypotheses) + 1)
    ]


def rank_paths(args: argparse.Namespace) -> list[str]:
    """Return the paths that ``--output`` names: with ``{k}``, one for each rank of ``--nbest``."""
    ranks = range(1, (args.nbest or 1) + 1) if RANK in args.output else [1]
    return [args.output.replace(RANK, str(rank)) for rank in ranks]


def facts_of(model: "Generator", config: "GenerationConfig") -> dict[str, Any]:
    """Checkpoint, options of generation and extractor, the same in each record."""
    options = {name: value for name, value in config.to_dict().items() if value is not None}
    facts = {"checkpoint": hashes_of(model.files), "options": options}
    identity = model.processor.extractor_identity
    return facts if identity is None else {**facts, "extractor": identity}


def hashes_of(files: Sequence[str]) -> Any:
    """SHA-256 of a checkpoint, or of each of an ensemble's."""
    from fairseq_mm.extract.weights import compute_sha256

    hashes = [compute_sha256(file) for file in files]
    return hashes[0] if len(hashes) == 1 else hashes


def counted(number: int, one: str, several: Optional[str] = None) -> str:
    """``1 story``, ``1,200 stories``."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
