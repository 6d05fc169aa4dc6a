"""METEOR 1.5 by the official Java program, a part of pycocoevalcap, to check :mod:`.meteor`.

In the jar's ``-stdio`` mode, a ``SCORE`` line for each pair of hypothesis and references returns
its statistics, and an ``EVAL`` line with all statistics returns the scores of the pairs and of the
corpus. The jar writes its word alignments only when it scores two files.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fairseq_mm.errors import UserError
from fairseq_mm.metrics._meteor_tables import find_file


def _run(arguments: Sequence[str], lines: Sequence[str] = ()) -> list[str]:
    """Run the jar with these lines as its input, and return the lines of its output."""
    java = shutil.which("java")
    if java is None:
        raise UserError("METEOR's jar needs Java, but no `java` is on the PATH.")
    # 2 GB of memory, as in pycocoevalcap
    command = [java, "-Xmx2G", "-Dfile.encoding=UTF-8", "-jar", str(find_file("meteor-1.5.jar"))]
    done = subprocess.run(
        [*command, *arguments],
        input="".join(f"{line}\n" for line in lines).encode("utf-8", "replace"),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip()
        raise UserError(f"METEOR's Java ended with status {done.returncode}: {message[:200]!r}.")
    return done.stdout.decode("utf-8", "replace").splitlines()


def jar_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, task: str, normalize: bool
) -> tuple[float, list[float]]:
    """Return the score of the corpus and the score of each hypothesis, like :func:`.meteor`."""
    command = ["-", "-", "-stdio", "-l", "en", "-t", task, *(["-norm"] if normalize else [])]
    questions = []
    for hypothesis, texts in zip(hypotheses, references):
        # ||| separates the fields of a line, and a line break would end it
        fields = [" ".join(text.replace("|||", " ").split()) for text in (*texts, hypothesis)]
        questions.append(" ||| ".join(["SCORE", *fields]))
    statistics = _run(command, questions)
    scores = list(map(float, _run(command, [" ||| ".join(["EVAL", *statistics])])))
    return scores[-1], scores[:-1]


def jar_alignments(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[list[tuple[int, int, int, int]]]:
    """Align each hypothesis with its reference, and return the matches of each pair.

    A match is a tuple: start and number of its words in the reference, then in the hypothesis.
    """
    with tempfile.TemporaryDirectory(prefix="fairseq-mm-meteor-") as folder:
        paths = [Path(folder, name) for name in ("hypotheses", "references")]
        for path, texts in zip(paths, (hypotheses, references)):
            content = "".join(" ".join(tokens) + "\n" for tokens in texts)
            # bytes, so that no system changes the line breaks that separate texts
            path.write_bytes(content.encode("utf-8", errors="replace"))
        prefix = f"{folder}/pairs"
        # without -norm, which would change tokens and so the positions in the alignment
        _run([*map(str, paths), "-l", "en", "-writeAlignments", "-q", "-f", prefix])
        alignments = []
        with open(f"{prefix}-align.out", encoding="utf-8", errors="replace") as lines:
            for _ in hypotheses:
                list(islice(lines, 4))  # a heading, the two texts, names of columns
                matches = []
                for line in iter(lines.readline, ""):
                    if not line.strip():
                        break
                    # start:length of the words in both texts
                    spans = ":".join(line.split()[:2]).split(":")
                    start, length, own_start, own_length = map(int, spans)
                    matches.append((start, length, own_start, own_length))
                alignments.append(matches)
    return alignments
