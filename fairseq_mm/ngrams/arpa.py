"""Reads and writes n-gram language models as ARPA files, the text format of SRILM and KenLM.

Loads KenLM's binary files through ``kenlm``, too.

The format is described in http://www.speech.sri.com/projects/srilm/manpages/ngram-format.5.html
"""

import gzip
import math
import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol, Union

import numpy as np

from fairseq_mm.data.output_file import output_file
from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.ngrams.ngram_model import END, START, UNKNOWN, NgramModel, NgramTable, find_ngrams

_OTHER_UNKNOWN = b"<UNK>"
_LOG_UNKNOWN = -100.0  # KenLM's value for a model without <unk>
_GZIP_MAGIC = b"\x1f\x8b"
_KENLM_MAGIC = b"mmap lm http://kheafield.com/code"


def read_arpa(path: Union[str, os.PathLike]) -> NgramModel:
    """Read an n-gram model of any order from an ARPA file, which may be compressed by gzip.

    A file without an n-gram for ``<unk>`` gets one with the log probability -100 to base 10, as in
    KenLM. ``<UNK>`` is read as ``<unk>``. Raise UserError if the file cannot be read or is
    malformed; the message names the malformed line.
    """
    path = os.fspath(path)
    try:
        with _open(path) as file:
            return _read(_Lines(path, file))
    except (OSError, EOFError, zlib.error) as error:
        # gzip raises EOFError for a file that was cut short, zlib.error for damaged content
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read as an ARPA file ({reason}).") from None


def write_arpa(model: NgramModel, path: Union[str, os.PathLike]) -> None:
    """Write a model as an ARPA file, with log probabilities and backoffs of eight digits. Raise
    UserError if a word of the model is empty or contains white space, or the file cannot be
    written."""
    for word in model.words:
        # split as bytes, as readers do: str.split() also splits at spaces beyond ASCII
        if word.encode().split() != [word.encode()]:
            raise UserError(f"{path}: words must have no spaces, but {word!r} is one of them.")
    with output_file(path) as file:
        file.write("\\data\\\n")
        for n, table in enumerate(model.tables, start=1):
            file.write(f"ngram {n}={len(table.keys)}\n")
        for n, (table, texts) in enumerate(zip(model.tables, model.ngrams()), start=1):
            file.write(f"\n\\{n}-grams:\n")
            rows = zip(table.log_probs.tolist(), texts, table.backoffs.tolist())
            # n-grams of the highest order are no contexts and have no backoff
            if n < model.order:
                file.writelines(f"{p:.8g}\t{text}\t{b:.8g}\n" for p, text, b in rows)
            else:
                file.writelines(f"{p:.8g}\t{text}\n" for p, text, _ in rows)
        file.write("\n\\end\\\n")


class _Lines:
    """Lines of an ARPA file, read once in order, section by section.

    ``header`` is the line that ended the last section and is the header of the next section; empty
    at the end of the file.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path = path
        self.number = 0
        self.header = b""
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines up to the next header, a line that begins with a backslash; skip blank
        lines."""
        self.header = b""
        for line in self._file:
            self.number += 1
            line = line.strip()
            if line.startswith(b"\\"):
                self.header = line
                return
            if line:
                yield line

    def expect_header(self, expected: str) -> None:
        if not self.header:
            raise self.error("must be followed by \\end\\, but the file ends: is it complete?")
        if self.header != expected.encode():
            raise self.error(f"must be {expected}, but is {_shown(self.header)} instead.")

    def error(self, message: str, number: int = 0) -> UserError:
        return UserError(f"{self.path}:{number or self.number}: {message}")


class _Section:
    """The n-grams of one order that have been read from an ARPA file so far, G in number.

    ``words`` [G * order] has the word indices of the n-grams, one n-gram after the other. ``lines``
    [G] has the number of each n-gram's line in the file. ``log_probs`` [G] and ``backoffs`` [G] are
    the values in this line; a missing backoff is 0.
    """

    def __init__(self) -> None:
        # arrays, since lists of millions of Python numbers take several times the memory
        self.lines = array("q")
        self.words = array("q")
        self.log_probs = array("d")
        self.backoffs = array("d")


def _open(path: str) -> BinaryIO:
    # by content: files are called .arpa as well as .arpa.gz whether compressed or not
    with open(path, "rb") as file:
        is_compressed = file.read(2) == _GZIP_MAGIC
    if is_compressed:
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")


def _shown(text: bytes) -> str:
    return text[:60].decode(errors="replace")


def _read(lines: _Lines) -> NgramModel:
    counts = _read_counts(lines)
    indices: dict[bytes, int] = {}
    tables: list[NgramTable] = []
    for n, count in enumerate(counts, start=1):
        lines.expect_header(f"\\{n}-grams:")
        first = lines.number
        section = _read_section(lines, n, indices)
        # if the file ends here, the message on the missing \end\ below is more helpful
        if lines.header and len(section.lines) != count:
            raise lines.error(
                f"must be followed by the {count} {n}-grams that \\data\\ has, but is by "
                f"{len(section.lines)}.",
                first,
            )
        if n == 1:
            for word in (START, END):
                if word.encode() not in indices:
                    raise UserError(
                        f"{lines.path}: must have {word} among its 1-grams, but has not."
                    )
            if UNKNOWN.encode() not in indices and _OTHER_UNKNOWN not in indices:
                section.words.append(len(indices))
                indices[UNKNOWN.encode()] = len(indices)
                section.log_probs.append(_LOG_UNKNOWN)
                section.backoffs.append(0.0)
        tables.append(_table(lines, section, len(indices), tables))
    lines.expect_header("\\end\\")
    # bytes up to here: the n-grams repeat each word many times, and each is decoded once
    words = [word.decode() for word in indices]
    if UNKNOWN not in words:
        words[indices[_OTHER_UNKNOWN]] = UNKNOWN
    return NgramModel(words, tables)


def _read_counts(lines: _Lines) -> list[int]:
    """Read the number of n-grams of each order from the section ``\\data\\`` of an ARPA file.

    ``lines`` reads the file from its beginning. Afterwards, ``lines.header`` is the header of the
    next section.
    """
    while lines.header != b"\\data\\":
        # text before \data\ is a comment
        for _ in lines:
            pass
        if not lines.header:
            raise UserError(f"{lines.path}: must be an ARPA file, but has no line \\data\\.")
    counts: list[int] = []
    for line in lines:
        n = len(counts) + 1
        name, _, count = line.partition(b"=")
        if name.split() != [b"ngram", b"%d" % n] or not count.strip().isdigit():
            raise lines.error(f"must be `ngram {n}=` and a number, but is {_shown(line)} instead.")
        counts.append(int(count))
    if not counts:
        raise lines.error("must be `ngram 1=` and a number, but there is none.")
    return counts


def _read_section(lines: _Lines, n: int, indices: dict[bytes, int]) -> _Section:
    """Read the n-grams of order ``n`` from ``lines`` of an ARPA file, up to the next header."""
    section = _Section()
    for line in lines:
        fields = line.split()
        if len(fields) not in (n + 1, n + 2):
            raise lines.error(
                f"must be a log probability, {n} words and perhaps a backoff, but has "
                f"{len(fields)} fields."
            )
        log_prob = _number(lines, fields[0])
        if log_prob > 0:
            raise lines.error(f"log probability must be at most 0, but is {log_prob:g} instead.")
        section.lines.append(lines.number)
        section.log_probs.append(log_prob)
        section.backoffs.append(_number(lines, fields[-1]) if len(fields) > n + 1 else 0.0)
        if n == 1:
            try:
                fields[1].decode()
            except UnicodeDecodeError:
                word = _shown(fields[1])
                raise lines.error(f"must be UTF-8 text, but {word} is not.") from None
            indices.setdefault(fields[1], len(indices))
        try:
            section.words.extend([indices[word] for word in fields[1 : n + 1]])
        except KeyError as error:
            raise lines.error(f"{_shown(error.args[0])} is not among the 1-grams.") from None
    return section


def _number(lines: _Lines, field: bytes) -> float:
    try:
        number = float(field)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise lines.error(f"must have a finite number, but has {_shown(field)} instead.")
    return number


def _table(
    lines: _Lines, section: _Section, num_words: int, tables: list[NgramTable]
) -> NgramTable:
    """Build a table of the n-grams of one order."""
    n = len(tables) + 1
    words = np.array(section.words).reshape(-1, n)  # [G, n]
    contexts = np.zeros(len(words), dtype=np.int64)  # [G]
    for table, column in zip(tables, words.T):
        contexts = find_ngrams(table.keys, contexts, column, num_words)
    if (contexts < 0).any():
        line = section.lines[int(np.argmax(contexts < 0))]
        raise lines.error(f"its first {n - 1} words must be a {n - 1}-gram, but are not.", line)
    # a file need not be sorted, but the tables are searched by bisection
    keys = contexts * num_words + words[:, -1]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_repeated = keys[1:] == keys[:-1]
    if is_repeated.any():
        line = section.lines[int(order[1:][np.argmax(is_repeated)])]
        raise lines.error("this n-gram is there twice.", line)
    log_probs, backoffs = np.array(section.log_probs), np.array(section.backoffs)
    return NgramTable(keys, log_probs[order], backoffs[order])


class LanguageModel(Protocol):
    """Language model that scores sentences; ``order`` is the length of the longest n-gram."""

    order: int

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the natural log probability of each sentence as float64 ``[sentences]``.

        ``sentences`` are lists of words without ``<s>`` and ``</s>``. The probability of ``</s>``
        after the last word is included; words that the model does not have count as ``<unk>``.
        """


class KenlmModel:
    """Language model from a file in KenLM's binary format.

    Raise UserError if KenLM's Python module ``kenlm`` is not installed or cannot load the file.
    """

    def __init__(self, path: Union[str, os.PathLike]) -> None:
        kenlm = import_extra("kenlm", extra="lm", purpose=f"{path}, a binary file of KenLM,")
        try:
            self._model = kenlm.Model(os.fspath(path))
        except OSError as error:
            raise UserError(f"{path}: cannot be loaded by kenlm ({error}).") from None
        self.order: int = self._model.order

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        # kenlm's logarithms are to base 10
        scores = [self._model.score(" ".join(words), bos=True, eos=True) for words in sentences]
        return np.array(scores, dtype=np.float64) * math.log(10)


def load_language_model(path: Union[str, os.PathLike]) -> LanguageModel:
    """Load an ARPA file, compressed by gzip or not, or a binary file of KenLM. Raise UserError if
    the file cannot be read, or has neither format."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file.")
    with open(path, "rb") as file:
        # by content, since KenLM gives its binary files no fixed ending
        is_binary = file.read(len(_KENLM_MAGIC)) == _KENLM_MAGIC
    return KenlmModel(path) if is_binary else read_arpa(path)
