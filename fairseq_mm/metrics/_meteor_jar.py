"""METEOR 1.5 by the official Java program, a part of pycocoevalcap, to check :mod:`.meteor`.

The jar runs once for all texts, in its ``-stdio`` mode. A ``SCORE`` line for each pair of
hypothesis and references returns its statistics, and one ``EVAL`` line with all statistics returns
the scores of the pairs and of the corpus. The corpus score, which coco-caption calls METEOR, is
computed from summed statistics and is not the mean of the pairs' scores.

The jar writes its word alignments (``-writeAlignments``) only when it scores two files. For metrics
based on the alignment it runs a second time, on files in a temporary folder.
"""

import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Optional

from fairseq_mm.errors import UserError
from fairseq_mm.metrics._meteor_tables import find_file

# added to the timeout for each pair, since the jar writes its alignments only at the end
_SECONDS_A_PAIR = 0.5


class _Jar:
    """Running process of METEOR's jar, which reads and writes lines.

    ``timeout`` is the number of seconds to wait for each line.
    """

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._timeout = timeout
        # A file instead of a pipe, which would block Java once it is full; closed in __exit__.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
        except OSError as error:
            self._errors.close()
            raise UserError(f"METEOR's Java could not be started: {command[0]}: {error}") from None
        # a thread reads, since a pipe cannot be read with a timeout on every system
        self._lines: queue.Queue[Optional[str]] = queue.Queue()
        # daemon threads: a hung Java must not keep Python from ending
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "_Jar":
        return self

    def __exit__(self, *_: object) -> None:
        # killed, since the jar would wait for further lines
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode("utf-8", "replace").strip())
        # the end of the output, which a reader would otherwise wait for until the timeout
        self._lines.put(None)

    def write(self, lines: Sequence[str]) -> None:
        """Send lines to the jar without waiting until it has read them."""
        # From a thread: once the pipe of unread answers is full, Java reads no further lines.
        threading.Thread(target=self._write, args=(lines,), daemon=True).start()

    def _write(self, lines: Sequence[str]) -> None:
        assert self._process.stdin is not None
        try:
            for line in lines:
                self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError, OSError):
            return  # Java has ended; the reader notices this and reports it

    def read(self, count: int) -> list[str]:
        lines: list[str] = []
        while len(lines) < count:
            try:
                line = self._lines.get(timeout=self._timeout)
            except queue.Empty:
                raise UserError(
                    f"METEOR's Java gave no answer for {self._timeout:g} s after {len(lines)} of "
                    f"{count} lines and was ended."
                ) from None
            if line is None:
                self._errors.seek(0)
                raise UserError(
                    f"METEOR's Java ended with status {self._process.wait()} after {len(lines)} of "
                    f"{count} lines: {_first_line(self._errors.read())}"
                )
            lines.append(line)
        return lines


def _first_line(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in lines if line.strip()), "it left no message")


def _command(*arguments: str) -> list[str]:
    java = shutil.which("java")
    if java is None:
        raise UserError(
            "METEOR's jar needs Java, but no `java` is on the PATH. Install one (Debian: apt "
            "install default-jre-headless) or use METEOR without its jar."
        )
    # 2 GB of memory, as in pycocoevalcap
    jar = str(find_file("meteor-1.5.jar"))
    return [java, "-Xmx2G", "-Dfile.encoding=UTF-8", "-jar", jar, *arguments, "-l", "en"]


def jar_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    task: str,
    normalize: bool,
    timeout: float,
) -> tuple[float, list[float]]:
    """Return the score of the corpus and the score of each hypothesis, like :func:`.meteor.meteor`.

    Java counts as hung after ``timeout`` seconds without an answer. Raise UserError if Java or the
    jar is missing, fails, or hangs.
    """
    command = [*_command("-", "-", "-stdio"), "-t", task, *(["-norm"] if normalize else [])]
    questions = []
    for hypothesis, texts in zip(hypotheses, references):
        # ||| separates the fields of a line, and a line break would end it
        fields = [" ".join(text.replace("|||", " ").split()) for text in (*texts, hypothesis)]
        questions.append(" ||| ".join(["SCORE", *fields]))
    with _Jar(command, timeout) as jar:
        jar.write(questions)
        statistics = jar.read(len(questions))
        jar.write([" ||| ".join(["EVAL", *statistics])])
        answers = jar.read(len(questions) + 1)
    try:
        scores = [float(answer) for answer in answers]
    except ValueError:
        wrong = next(answer for answer in answers if not answer[:1].isdigit())
        raise UserError(f"METEOR's Java must answer with numbers, but said {wrong!r}.") from None
    return scores[-1], scores[:-1]


def jar_alignments(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, timeout: float
) -> list[list[tuple[int, int, int, int]]]:
    """Align each hypothesis with its reference, and return the matches of each pair.

    A match is a tuple: start and number of its words in the reference, then in the hypothesis.
    Java counts as hung after ``timeout`` seconds plus half a second per pair. Raise UserError if
    Java or the jar is missing, fails, or hangs.
    """
    with tempfile.TemporaryDirectory(prefix="fairseq-mm-meteor-") as folder:
        paths = [Path(folder, name) for name in ("hypotheses", "references")]
        for path, texts in zip(paths, (hypotheses, references)):
            content = "".join(" ".join(tokens) + "\n" for tokens in texts)
            # bytes, so that no system changes the line breaks that separate texts
            path.write_bytes(content.encode("utf-8", errors="replace"))
        # without -norm, which would change tokens and so the positions in the alignment
        prefix = str(Path(folder, "pairs"))
        command = [*_command(*map(str, paths)), "-writeAlignments", "-q", "-f", prefix]
        _run_aligner(command, timeout + _SECONDS_A_PAIR * len(hypotheses))
        return _read_alignments(Path(f"{prefix}-align.out"), hypotheses, references)


def _run_aligner(command: Sequence[str], timeout: float) -> None:
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
        raise UserError(
            f"METEOR's Java ended with status {done.returncode} while it aligned: "
            f"{_first_line(done.stderr)}"
        )


def _read_alignments(
    path: Path, hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[list[tuple[int, int, int, int]]]:
    """Read the jar's file of alignments: the matches of each pair of hypothesis and reference.

    For each pair, the file has a line ``Alignment...``, the two texts, a heading, one line per
    match, and an empty line. The line of a match begins with ``start:length`` of the words in the
    reference and ``start:length`` of the words in the hypothesis.
    """
    alignments: list[list[tuple[int, int, int, int]]] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for hypothesis, reference in zip(hypotheses, references):
                head = list(islice(lines, 4))
                # the texts are echoed: other lengths mean that the pairs are out of step
                counts = [len(line.split()) for line in head[1:3]]
                if len(head) < 4 or counts != [len(hypothesis), len(reference)]:
                    raise ValueError("another pair's texts")
                matches = []
                for line in iter(lines.readline, ""):
                    if not line.strip():
                        break
                    spans = ":".join(line.split()[:2]).split(":")
                    start, length, own_start, own_length = map(int, spans)
                    matches.append((start, length, own_start, own_length))
                alignments.append(matches)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"METEOR's Java must write an alignment for each of {len(hypotheses)} pairs, but after "
            f"{len(alignments)} of them there is none ({error})."
        ) from None
    return alignments
