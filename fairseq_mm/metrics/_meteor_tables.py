"""Tables of METEOR 1.5 for English: function words, abbreviations, synonyms and paraphrases.

The tables are files of the package pycocoevalcap: resources inside METEOR's jar and
``paraphrase-en.gz``, which unpacks to 272 MB of text. At the first use, they are compiled into one
file of arrays in the user's cache folder, ``$XDG_CACHE_HOME/fairseq_mm`` (by default
``~/.cache/fairseq_mm``), which later processes read.
"""

import errno
import gzip
import logging
import os
import sys
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_mm.data.output_file import partial_path
from fairseq_mm.errors import UserError, import_extra

logger = logging.getLogger(__name__)

# Part of a cached file's identity. Raise it whenever the arrays change their meaning.
FORMAT = 1
_FILE_NAME = "meteor-1.5-en.npz"
_RESOURCES = {
    "function_words": "function/english.words",
    "abbreviations": "nonbreaking/english.prefixes",
    "synsets": "synonym/english.synsets",
    "exceptions": "synonym/english.exceptions",
}
_LONGEST_PHRASE = 7
_UNKNOWN = 0xFFFF  # id of a word that the paraphrase table lacks
# stands between phrases; no phrase contains it
_SEPARATOR = b"\x01"
# detachment rules of WordNet: suffix of an inflected form, suffix of its base form
_DETACHMENTS = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
    ("men", "man"), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""),
    ("ing", "e"), ("ing", ""), ("er", ""), ("est", ""), ("er", "e"), ("est", "e"),
)  # fmt: skip


class Phrases(NamedTuple):
    """Phrases of concatenated texts that occur in the paraphrase table."""

    positions: np.ndarray  # ``[N]`` index of each phrase's first word in the texts, ascending
    lengths: np.ndarray  # ``[N]`` number of words; ascending among phrases with the same first word
    states: np.ndarray  # ``[N]`` number of the phrase in the table


class Tables:
    """METEOR's tables for English.

    Args:
        arrays: Arrays of the compiled file by name, see :func:`_compile`.
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.function_words = frozenset(_words(arrays["function_words"]))
        # word without its full stop -> True if the full stop stays only before a number
        self.abbreviations = dict(
            zip(_words(arrays["abbreviations"]), arrays["abbreviations_numeric"].tolist())
        )
        self._synset_of = {word: i for i, word in enumerate(_words(arrays["synset_words"]))}
        self._synset_offsets = arrays["synset_offsets"]
        self._synsets = arrays["synsets"]
        self._bases: dict[str, list[str]] = {}
        for word, base in zip(_words(arrays["inflected"]), _words(arrays["bases"])):
            self._bases.setdefault(word, []).append(base)
        self._word_ids = {word: i for i, word in enumerate(_words(arrays["phrase_words"]))}
        self._edges = arrays["edges"]
        self._offsets = arrays["paraphrase_offsets"]
        self._targets = arrays["paraphrases"]

    def phrase_word_id(self, word: str) -> int:
        """Return the id of a word in the paraphrase table."""
        return self._word_ids.get(word, _UNKNOWN)

    def synsets(self, word: str) -> frozenset[int]:
        """Return the numbers of the synsets of a word and of its base forms."""
        bases = self._bases.get(word)
        if bases is None:
            bases = [self._base_form(word)]
        synsets: set[int] = set()
        for index in map(self._synset_of.get, (word, *bases)):
            if index is not None:
                start, end = self._synset_offsets[index : index + 2]
                synsets.update(self._synsets[start:end].tolist())
        return frozenset(synsets)

    def _base_form(self, word: str) -> str:
        if word.endswith("ss") or len(word) <= 2:
            return word
        for suffix, ending in _DETACHMENTS:
            if word.endswith(suffix):
                base = word[: -len(suffix)] + ending
                if base in self._synset_of:
                    return base
        return ""

    def find_phrases(self, words: np.ndarray, ends: np.ndarray) -> Phrases:
        """Find all phrases of the paraphrase table in texts.

        Args:
            words: ``[N]`` ids of the words of all texts, see :meth:`phrase_word_id`.
            ends: ``[N]`` index in ``words`` at which the text of each word ends.
        """
        starts = np.arange(len(words), dtype=np.int64)
        states = np.zeros(len(words), np.int64)
        found = []
        for length in range(1, _LONGEST_PHRASE + 1):
            fits = starts + (length - 1) < ends[starts]
            starts, states = starts[fits], states[fits]
            if not len(starts):
                break
            keys = (states << 16 | words[starts + (length - 1)]).astype(np.uint64)
            # sorted keys are found several times faster, and texts repeat phrases
            distinct, inverse = np.unique(keys, return_inverse=True)
            edges = np.searchsorted(self._edges, distinct)
            exists = self._edges[np.minimum(edges, len(self._edges) - 1)] == distinct
            kept = exists[inverse]
            starts, states = starts[kept], edges[inverse[kept]] + 1
            found.append((starts, np.full(len(starts), length), states))
        positions, lengths, numbers = (
            np.concatenate(parts) if parts else np.zeros(0, np.int64)
            for parts in (zip(*found) if found else ((), (), ()))
        )
        order = np.lexsort((lengths, positions))
        return Phrases(positions[order], lengths[order], numbers[order])

    def paraphrases(self, states: np.ndarray) -> dict[int, dict[int, int]]:
        """Return which phrases are paraphrases of each other.

        ``states`` are the numbers of phrases, see :meth:`find_phrases`. The result maps the number
        of a phrase to a dict of its paraphrases among ``states``: from the paraphrase's number to
        its line in the table.
        """
        states = np.unique(states)
        starts = self._offsets[states].astype(np.int64)
        counts = self._offsets[states + 1].astype(np.int64) - starts
        total = int(counts.sum())
        # rows of the table that belong to the phrases
        rows = np.arange(total) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        sources, targets = np.repeat(states, counts), self._targets[rows].astype(np.int64)
        nearest = states[np.minimum(np.searchsorted(states, targets), max(0, len(states) - 1))]
        kept = nearest == targets
        result: dict[int, dict[int, int]] = {}
        columns = (sources[kept].tolist(), targets[kept].tolist(), rows[kept].tolist())
        for source, target, row in zip(*columns):
            result.setdefault(source, {})[target] = row
        return result


def _words(array: np.ndarray) -> list[str]:
    text = array.tobytes().decode()
    return text.split("\n") if text else []


def _text(words: Iterable[str]) -> np.ndarray:
    return np.frombuffer("\n".join(words).encode(), np.uint8)


def _phrase_rows(phrases: Sequence[bytes], ids: defaultdict[bytes, int]) -> np.ndarray:
    """Return the word ids ``[N, 7]`` of phrases of up to seven words, padded with ``_UNKNOWN``.

    ``ids`` gives each new word the next number when the word is first looked up.
    """
    words = (b" %b " % _SEPARATOR).join(phrases).split()
    numbers = np.fromiter(map(ids.__getitem__, words), np.int64, len(words))
    breaks = np.flatnonzero(numbers == ids[_SEPARATOR])
    bounds = np.concatenate([[-1], breaks, [len(numbers)]])
    lengths = np.diff(bounds) - 1
    rows = np.full((len(phrases), _LONGEST_PHRASE), _UNKNOWN, np.uint16)
    row = np.repeat(np.arange(len(phrases)), lengths)
    is_word = np.ones(len(numbers), bool)
    is_word[breaks] = False
    column = np.flatnonzero(is_word) - np.repeat(bounds[:-1] + 1, lengths)
    rows[row, column] = numbers[is_word]
    return rows


def _read_entries(path: Path) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield phrases and their paraphrases in blocks, since lists of all would take 2 GB.

    The file has three lines for each pair: a probability, a phrase, and the phrase's paraphrase.
    """
    lines: list[bytes] = []
    with gzip.open(path) as file:
        # not line by line, which takes three times as long
        while part := file.read(1 << 25):
            first, *others = part.split(b"\n")
            # the last line of the part before goes on
            lines[-1:] = [b"".join([*lines[-1:], first])]
            lines += others
            whole = (len(lines) - 1) // 3 * 3
            yield lines[1:whole:3], lines[2:whole:3]
            lines = lines[whole:]


def _read_paraphrases(path: Path) -> tuple[list[bytes], np.ndarray, np.ndarray, np.ndarray]:
    """Read METEOR's table of P paraphrases of S phrases, each of up to seven words.

    Returns:
        The words by id; the word ids of the phrases, ``[S, 7]``, and of the paraphrases,
        ``[P, 7]``; and for each paraphrase the index of its phrase, ``[P]``.
    """
    ids: defaultdict[bytes, int] = defaultdict(count(1).__next__, {_SEPARATOR: 0})
    sources, targets, source_rows = [], [], []
    num_sources = 0
    for phrases, paraphrases in _read_entries(path):
        if phrases:
            is_new = np.ones(len(phrases), bool)
            is_new[1:] = [a != b for a, b in zip(phrases, phrases[1:])]
            source_rows.append(np.cumsum(is_new) - 1 + num_sources)
            num_sources += int(is_new.sum())
            starts = np.flatnonzero(is_new).tolist()
            sources.append(_phrase_rows([phrases[i] for i in starts], ids))
            targets.append(_phrase_rows(paraphrases, ids))
    return (
        list(ids),
        np.concatenate(sources),
        np.concatenate(targets),
        np.concatenate(source_rows),
    )


def _number_phrases(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Build a prefix tree of phrases, in which each edge is a word.

    Args:
        rows: ``[N, 7]`` word ids of the phrases, padded with ``_UNKNOWN``.

    Returns:
        The sorted edges of the tree, ``parent << 16 | word``, where edge i leads to node i + 1 and
        node 0 is the root; and the node of each phrase, ``[N]``.
    """
    nodes = np.zeros(len(rows), np.uint32)
    edges = []
    num_nodes = 1
    longer = np.arange(len(rows))
    for column in range(rows.shape[1]):
        longer = longer[rows[longer, column] != _UNKNOWN]
        keys = nodes[longer].astype(np.uint64) << np.uint64(16) | rows[longer, column]
        level, inverse = np.unique(keys, return_inverse=True)
        nodes[longer] = inverse + num_nodes
        num_nodes += len(level)
        edges.append(level)
    # parents are numbered level by level, so the levels one after the other are sorted
    return np.concatenate(edges), nodes


def _compile_paraphrases(path: Path) -> dict[str, np.ndarray]:
    words, sources, targets, source_rows = _read_paraphrases(path)
    edges, nodes = _number_phrases(np.concatenate([sources, targets]))
    source_nodes, target_nodes = nodes[: len(sources)][source_rows], nodes[len(sources) :]
    # stable: the order of a phrase's paraphrases decides between equal alignments
    order = np.argsort(source_nodes, kind="stable")
    counts = np.bincount(source_nodes, minlength=len(edges) + 1)
    return {
        "phrase_words": _text(word.decode() for word in words),
        "edges": edges,
        "paraphrase_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32),
        "paraphrases": target_nodes[order],
    }


def _compile(jar: Path, paraphrases: Path) -> dict[str, np.ndarray]:
    """Compile METEOR's files into arrays; a list of words becomes bytes, one word per line."""
    with zipfile.ZipFile(jar) as archive:
        texts = {name: archive.read(path).decode() for name, path in _RESOURCES.items()}
    abbreviations: dict[str, bool] = {}
    for line in texts["abbreviations"].splitlines():
        parts = line.split()
        if parts and not parts[0].startswith("#"):
            abbreviations[parts[0]] = parts[1:2] == ["#NUMERIC_ONLY#"]
    lines = texts["synsets"].splitlines()
    synsets = dict(zip(lines[::2], (line.split() for line in lines[1::2])))
    lines = texts["exceptions"].splitlines()
    pairs = [(word, base) for base, words in zip(lines[::2], lines[1::2]) for word in words.split()]
    sizes = [len(numbers) for numbers in synsets.values()]
    return {
        "function_words": _text(texts["function_words"].splitlines()),
        "abbreviations": _text(abbreviations),
        "abbreviations_numeric": np.array(list(abbreviations.values()), bool),
        "synset_words": _text(synsets),
        "synset_offsets": np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32),
        "synsets": np.array(list(chain.from_iterable(synsets.values()))).astype(np.uint32),
        "inflected": _text(word for word, _ in pairs),
        "bases": _text(base for _, base in pairs),
        **_compile_paraphrases(paraphrases),
    }


def cache_path() -> Path:
    """Return the path of the compiled tables in the user's cache folder.

    Raise OSError if the user has no home folder.
    """
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # to be ignored, says the XDG Base Directory Specification
        try:
            folder = str(Path.home() / ".cache")
        except RuntimeError:
            raise FileNotFoundError(errno.ENOENT, "there is no home folder", "~/.cache") from None
    return Path(folder, "fairseq_mm", _FILE_NAME)


@lru_cache(maxsize=1)
def load_tables() -> Tables:
    """Load METEOR's tables from the cached file. If it is missing, outdated or damaged, compile the
    tables; if it cannot be written, the next process compiles them again."""
    package = import_extra("pycocoevalcap", extra="eval", purpose="METEOR")
    folder = Path(package.__path__[0], "meteor")
    jar, paraphrases = folder / "meteor-1.5.jar", folder / "data" / "paraphrase-en.gz"
    try:
        # changes with the files of the tables and with their format
        with zipfile.ZipFile(jar) as archive:
            checksums = [f"{archive.getinfo(path).CRC:08x}" for path in _RESOURCES.values()]
        with open(paraphrases, "rb") as file:
            # the last 8 bytes of a gzip file are the checksum and the size of its content
            file.seek(-8, os.SEEK_END)
            identity = "-".join([f"{FORMAT}", sys.byteorder, file.read().hex(), *checksums])
        try:
            with np.load(cache_path()) as archive:
                if archive["identity"].item() == identity:
                    return Tables(dict(archive))  # the archive has checksums
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
            pass  # missing, outdated or damaged: compiled again
        arrays: dict[str, Any] = _compile(jar, paraphrases)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise UserError(
            f"METEOR's tables in {folder} cannot be read ({error}). Reinstall them with: "
            "pip install --force-reinstall pycocoevalcap"
        ) from None
    try:
        path = cache_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial_path(str(path)) as partial:
            with open(partial, "wb") as file:
                np.savez(file, identity=np.array(identity), **arrays)
            os.replace(partial, path)
    except OSError as error:
        logger.warning(
            "%s: METEOR's compiled tables cannot be kept here (%s), so the next process compiles "
            "them again. Set XDG_CACHE_HOME to a folder that can be written.",
            error.filename,
            error.strerror,
        )
    return Tables(arrays)
