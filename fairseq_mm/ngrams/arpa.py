"""Reads and writes n-gram language models as ARPA files, the text format of SRILM and KenLM.

Loads KenLM's binary files through ``kenlm``, too.

The format is described in http://www.speech.sri.com/projects/srilm/manpages/ngram-format.5.html
"""

import gzip
import math
import os
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol, Union

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
    KenLM. ``<UNK>`` is read as ``<unk>``.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            # by content: files are called .arpa as well as .arpa.gz whether compressed or not
            is_compressed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            return _read(gzip.open(file) if is_compressed else file)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        # gzip raises EOFError for a file that was cut short, zlib.error for damaged content
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read as an ARPA file ({reason}).") from None


def write_arpa(model: NgramModel, path: Union[str, os.PathLike]) -> None:
    """Write a model as an ARPA file, with log probabilities and backoffs of eight digits."""
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


class _Section:
    """The n-grams of one order that have been read from an ARPA file so far, G in number.

    ``words`` [G * order] has the word indices of the n-grams, one n-gram after the other.
    ``log_probs`` [G] and ``backoffs`` [G] are the numbers in their lines; a missing backoff is 0.
    """

    def __init__(self, order: int, indices: dict[bytes, int]) -> None:
        self.order = order
        self.indices = indices
        # arrays, since lists of millions of Python numbers take several times the memory
        self.words = array("q")
        self.log_probs = array("d")
        self.backoffs = array("d")

    def add(self, fields: list[bytes]) -> None:
        """Add the n-gram of a line. Raise ValueError or KeyError if it is not valid."""
        n = self.order
        log_prob, backoff = float(fields[0]), float(fields[n + 1]) if len(fields) > n + 1 else 0.0
        is_number = -math.inf < log_prob <= 0 and math.isfinite(backoff)
        if len(fields) not in (n + 1, n + 2) or not is_number:
            raise ValueError
        if n == 1:
            fields[1].decode()
            self.indices.setdefault(fields[1], len(self.indices))
        self.words.extend([self.indices[word] for word in fields[1 : n + 1]])
        self.log_probs.append(log_prob)
        self.backoffs.append(backoff)


def _read(file: Iterable[bytes]) -> NgramModel:
    counts: list[int] = []
    sections: list[_Section] = []
    indices: dict[bytes, int] = {}
    header = b""  # lines before \data\ are comments
    for number, line in enumerate(file, 1):
        line = line.strip()
        try:
            if line == b"\\data\\" or (header and line.startswith(b"\\")):
                header = line
                if header == b"\\end\\":
                    break
                if header != b"\\data\\":
                    sections.append(_Section(len(sections) + 1, indices))
                    if header != b"\\%d-grams:" % len(sections):
                        raise ValueError
            elif header == b"\\data\\" and line:
                counts.append(int(line.removeprefix(b"ngram %d=" % (len(counts) + 1))))
            elif header and line:
                sections[-1].add(line.split())
        except (ValueError, KeyError, IndexError):
            shown = line[:60].decode(errors="replace")
            raise ValueError(f"line {number} is {shown!r}") from None
    found = [len(section.log_probs) for section in sections]
    if header != b"\\end\\" or not counts or found != counts:
        raise ValueError(
            f"it must end with \\end\\ and have the {counts} n-grams of each order that \\data\\ "
            f"says, but has {found}"
        )
    if not {START.encode(), END.encode()} <= indices.keys():
        raise ValueError(f"{START} and {END} must be among its 1-grams")
    if not {UNKNOWN.encode(), _OTHER_UNKNOWN} & indices.keys():
        sections[0].add([b"%g" % _LOG_UNKNOWN, UNKNOWN.encode()])
    tables: list[NgramTable] = []
    for section in sections:
        tables.append(_build_table(section, tables))
    # bytes up to here: the n-grams repeat each word many times, and each is decoded once
    words = [UNKNOWN if word == _OTHER_UNKNOWN else word.decode() for word in indices]
    return NgramModel(words, tables)


def _build_table(section: _Section, tables: list[NgramTable]) -> NgramTable:
    """Build the table of the n-grams of one order; ``tables`` has the tables of lower orders."""
    n, num_words = section.order, len(section.indices)
    words = np.array(section.words).reshape(-1, n)  # [G, n]
    contexts = np.zeros(len(words), dtype=np.int64)  # [G]
    for table, column in zip(tables, words.T):
        contexts = find_ngrams(table.keys, contexts, column, num_words)
    # a file need not be sorted, but the tables are searched by bisection
    keys = contexts * num_words + words[:, -1]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_wrong = (contexts[order] < 0) | (np.diff(keys, append=-1) == 0)
    if is_wrong.any():
        names = list(section.indices)
        ngram = b" ".join(names[i] for i in words[order[int(is_wrong.argmax())]]).decode()
        raise ValueError(
            f"{ngram!r} is there twice, or its first {n - 1} words are no {n - 1}-gram"
        )
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
    """Language model from a file in KenLM's binary format, read by its Python module ``kenlm``."""

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
    """Load an ARPA file, compressed by gzip or not, or a binary file of KenLM."""
    # by content, since KenLM gives its binary files no fixed ending; read_arpa reports other files
    if os.path.isfile(path):
        with open(path, "rb") as file:
            if file.read(len(_KENLM_MAGIC)) == _KENLM_MAGIC:
                return KenlmModel(path)
    return read_arpa(path)
