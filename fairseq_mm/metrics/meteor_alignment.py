"""Which words METEOR 1.5 aligns, for measures that are made of the alignment itself.

The jar writes alignments (``-writeAlignments``) only when it scores two files, so it runs once for
all pairs over files in a temporary folder, apart from the run that gives the score.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.meteor import find_jar, find_java

_SECONDS_A_PAIR = 0.5


class Match(NamedTuple):
    """Words of the reference that are aligned with words of the hypothesis.

    Args:
        reference_start: first word in the reference, counted from 0.
        reference_length: number of words there; above 1 for paraphrases.
        hypothesis_start: first word in the hypothesis.
        hypothesis_length: number of words there.
    """

    reference_start: int
    reference_length: int
    hypothesis_start: int
    hypothesis_length: int


def align(
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    timeout: float = 300.0,
) -> list[list[Match]]:
    """METEOR's alignment of each pair (``-l en``, task rank, without ``-norm``).

    Args:
        hypotheses: tokens, without white space in them.
        references: one for each hypothesis.
        timeout: seconds for the start; each pair adds half a second. Java counts as hung after it.

    Returns:
        For each pair its matches, in the order of the reference.

    Raises:
        UserError: if Java or the jar is missing, fails, or hangs; if counts differ.
    """
    if len(hypotheses) != len(references):
        raise UserError(
            f"METEOR aligns pairs, but there are {len(hypotheses)} hypotheses and "
            f"{len(references)} references."
        )
    if not hypotheses:
        return []
    java, jar = find_java(), find_jar()
    with tempfile.TemporaryDirectory(prefix="fairseq-mm-meteor-") as folder:
        paths = [Path(folder, name) for name in ("hypotheses", "references")]
        for path, texts in zip(paths, (hypotheses, references)):
            content = "".join(" ".join(tokens) + "\n" for tokens in texts)
            path.write_bytes(content.encode("utf-8", errors="replace"))
        prefix = str(Path(folder, "pairs"))
        command = [java, "-Xmx2G", "-Dfile.encoding=UTF-8", "-jar", str(jar), *map(str, paths)]
        command += ["-l", "en", "-writeAlignments", "-q", "-f", prefix]
        _run(command, timeout + _SECONDS_A_PAIR * len(hypotheses))
        return _read(Path(f"{prefix}-align.out"), hypotheses, references)


def _run(command: Sequence[str], timeout: float) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        raise UserError(f"METEOR's Java could not be started: {command[0]}: {error}") from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"METEOR's Java had not aligned all pairs after {timeout:g} s and was ended."
        ) from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").split("\n")
        message = next((line.strip() for line in lines if line.strip()), "it left no message")
        raise UserError(
            f"METEOR's Java ended with status {done.returncode} while it aligned: {message}"
        )


def _read(
    path: Path, hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[list[Match]]:
    """Per pair: a line ``Alignment...``, both texts, a heading, a line a match, an empty line.

    The first column of a match is the reference's ``start:length``, the second the hypothesis's.
    """
    found: list[list[Match]] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for hypothesis, reference in zip(hypotheses, references):
                head = list(islice(lines, 4))
                counts = [len(line.split()) for line in head[1:3]]
                if len(head) < 4 or counts != [len(hypothesis), len(reference)]:
                    raise ValueError("another pair's texts")
                matches = []
                for line in iter(lines.readline, ""):
                    if not line.strip():
                        break
                    spans = ":".join(line.split()[:2]).split(":")
                    matches.append(Match(*map(int, spans)))
                found.append(matches)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"METEOR's Java must write an alignment for each of {len(hypotheses)} pairs, but after "
            f"{len(found)} of them there is none ({error})."
        ) from None
    return found
