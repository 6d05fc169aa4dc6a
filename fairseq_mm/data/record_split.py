"""Defines the records of a split: ``<split>.jsonl`` of a data folder, one JSON object per line.

A record is an image with its captions, a visual story, a pair of a prompt and a story, or a video
with its transcript and summary:

``{"id": key of the image in the feature store, "captions": [...], "tags": [...]}``
    captions. ``tags`` has a text of part-of-speech tags for each caption. Captions without images
    have no ``id``.
``{"id": ..., "album": ..., "images": [5 keys], "sentences": [5 texts], "missing": [keys]}``
    a visual story. ``missing`` are the images without features.
``{"prompt": ..., "story": ...}``
    a prompt and a story
``{"id": key of the video, "transcript": ..., "summary": ..., "unknowns": [words]}``
    a video. ``unknowns`` are the words that ``<unk-0>``, ``<unk-1>``, ... stand for.

Each caption, story, pair or video is a *line* of the split: an example of training, ``H-<line>`` in
the output of ``fairseq-generate``. Records of any kind may have two more fields:

``references``
    list of texts that metrics compare with, in place of the texts of all records of the item;
    ``album_references`` is the same for the stories of an album
``tokens``
    what was binarised, if it is not the folder's tokenization of the texts: one string per caption,
    a string for a visual story, or the strings of source and target

A visual story with ``"reference_only": true`` is no line, but a reference of its images and album.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from fairseq_mm.data.caption_text import TOKENIZERS as CAPTION_TOKENIZERS
from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.indexed_oov import index_with, restore_oov_words
from fairseq_mm.data.input_files import SPLITS, file_digest, read_json, read_objects
from fairseq_mm.data.output_file import write_file
from fairseq_mm.data.story_text import NUM_IMAGES, STORY_TOKENIZERS, join_sentences
from fairseq_mm.data.subwords import SUBWORD_FILES, Subwords
from fairseq_mm.data.transcript_text import TOKENIZERS
from fairseq_mm.errors import UserError, file_errors

Folder = Union[str, os.PathLike]
Record = dict[str, Any]
# fairseq's names for a text are languages; these are the suffixes of the releases
PROMPT_SIDES, VIDEO_SIDES = ("wp_source", "wp_target"), ("tran", "desc")
# subfolders with one side of the pairs, in the form that fairseq's language modelling reads
LANGUAGE_MODELS = {"prompts": "wp_source", "stories": "wp_target"}


class Kind(NamedTuple):
    """Kind of record.

    Attributes:
        name: Name of the kind, as in ``prepare.json``.
        noun: Noun for a record, for messages.
        nouns: Plural of ``noun``.
        groups: Plural noun for the records that stay in one split when splits are sampled.
        text: Field of the text that is generated.
        source: Field of the text that a model reads; None if there is none.
        sides: Suffixes of the binarised texts; empty for a single text.
        visual: Field with the paths of images or of the video in a user's own lines.
        uniform: Optional fields that all of a user's own lines must have, or none.
    """

    name: str
    noun: str
    nouns: str
    groups: str
    text: str
    source: Optional[str] = None
    sides: tuple[str, ...] = ()
    visual: Optional[str] = None
    uniform: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Fields of the texts that are binarised."""
        return (self.text,) if self.source is None else (self.source, self.text)

    @property
    def required(self) -> tuple[str, ...]:
        """Fields that each record must have."""
        return ("images", *self.texts) if self.visual == "images" else self.texts

    @property
    def id_is_key(self) -> bool:
        """True if ``id`` is the key of the image or video in the feature store."""
        return self.visual in ("image", "video")

    @property
    def visual_noun(self) -> str:
        return "video" if self.visual == "video" else "image"


KINDS = (
    Kind("captions", "image", "images", "images", "captions", visual="image"),
    Kind(
        "visual stories",
        "story",
        "stories",
        "albums",
        "sentences",
        visual="images",
        uniform=("id", "album"),
    ),
    Kind("prompts", "pair", "pairs", "prompts", "story", "prompt", PROMPT_SIDES, uniform=("id",)),
    Kind(
        "videos", "video", "videos", "videos", "summary", "transcript", VIDEO_SIDES, visual="video"
    ),
)
CAPTIONS, VISUAL_STORIES, PROMPTS, VIDEOS = KINDS

_TEXT = {"id", "album", "prompt", "story", "transcript", "summary", "tokens"}
# of users' own lines, from which prepare makes records
_TEXT |= {"image", "video", "transcript_file"}
LISTS = {"captions", "tags", "images", "sentences", "missing", "unknowns", "references"}
LISTS |= {"album_references"}


class Split:
    """Records of a split, which are parsed when they are first needed.

    Args:
        folder: Data folder.
        name: Name of the split.

    Attributes:
        path: Path of the records, for messages.
        note: Sentence for the user about the texts; None if there is nothing to say.
    """

    note: Optional[str] = None

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder = os.fspath(folder)
        self.name = name
        self.path = os.path.join(self.folder, f"{name}.jsonl")

    def __len__(self) -> int:
        return sum(1 for _ in self.lines()) if self.keys is None else len(self.keys)

    @cached_property
    def kind(self) -> Kind:
        for _, record in read_objects(self.path):
            for kind in KINDS:
                if kind.text in record:
                    return kind
            break
        names = ", ".join(kind.text for kind in KINDS)
        raise UserError(f"{self.path}: its first record must have one of the fields {names}.")

    def iterate(self) -> Iterator[tuple[str, Record]]:
        """Yield ``path:line`` and the checked record of each line of the file."""
        kind = self.kind
        for where, record in read_objects(self.path):
            check_record(record, kind, where)
            yield where, record

    @cached_property
    def records(self) -> list[Record]:
        return [record for _, record in self.iterate()]

    def _stream(self) -> Iterable[Record]:
        """Return the records without keeping them in memory, where the stories of WritingPrompts
        would take a gigabyte; records that are in memory already are used."""
        return vars(self).get("records") or (record for _, record in self.iterate())

    def lines(self) -> Iterator[tuple[Record, int]]:
        """Yield each line's record and the index of the line's text among the record's texts."""
        kind = self.kind
        for record in self.records:
            for number in range(_count_lines(record, kind)):
                yield record, number

    def where(self, line: int) -> str:
        """Return ``path:number`` of the record of a line (counted from 0), for messages."""
        for where, record in self.iterate():
            line -= _count_lines(record, self.kind)
            if line < 0:
                return where
        return self.path

    @cached_property
    def keys(self) -> Optional[list[str]]:
        """Key of each line's image or video in the feature store; the five keys of a visual story
        are joined by tabs. None if there are no images or videos."""
        kind = self.kind
        keys: list[Any] = []
        for record in self._stream():
            keys += [_get_key(record, kind)] * _count_lines(record, kind)
        if None not in keys:
            return keys
        if any(key is not None for key in keys):
            line = keys.index(None) + 1
            raise UserError(f"{self.path}: all records must have an `id`, but that of line {line}.")
        return None

    @property
    def items(self) -> list[str]:
        """Key of each line, or its number (counted from 0) if there are no keys."""
        return self.keys or list(map(str, range(len(self))))

    @cached_property
    def first(self) -> np.ndarray:
        """``[lines]`` bool array, True at the first line of each key."""
        return np.ones(len(self), dtype=bool) if self.keys is None else first_lines(self.keys)

    @cached_property
    def texts(self) -> list[str]:
        """Published text of each line; the sentences of a visual story are joined by spaces."""
        return [_get_text(record, number, self.kind) for record, number in self.lines()]

    @cached_property
    def missing(self) -> frozenset[str]:
        """Keys of images without features."""
        return frozenset(key for record in self.records for key in record.get("missing", ()))

    def field(self, name: str) -> list[Any]:
        """Return the value of a record's field for each line; None for a line without it."""
        if name == "tags":
            return [
                record[name][number] if name in record else None for record, number in self.lines()
            ]
        return [record.get(name) for record, _ in self.lines()]

    def references(self, of: str = "item") -> dict[str, list[str]]:
        """Return the references of each item, in the order of the items' first lines.

        ``of`` is "item" for the texts of the same image, image sequence or video, or "album" for
        the texts of the same album.
        """
        explicit_field = "references" if of == "item" else "album_references"
        explicit: dict[str, list[str]] = {}
        texts: dict[Any, list[str]] = {}
        groups: dict[str, Any] = {}
        line = 0
        for record in self.records:
            is_line = not record.get("reference_only")
            count = len(record["captions"]) if self.kind is CAPTIONS else 1
            for number in range(count):
                key = _get_key(record, self.kind)
                key = str(line) if key is None else key
                group = key if of == "item" else record.get("album", key)
                line += is_line
                text = _get_text(record, number, self.kind)
                if text or is_line:
                    texts.setdefault(group, []).append(text)
                if is_line:
                    groups.setdefault(key, group)
                if explicit_field in record:
                    explicit.setdefault(key, record[explicit_field])
        return {key: explicit.get(key, texts[group]) for key, group in groups.items()}

    def tokens(self, side: Optional[str] = None) -> list[list[str]]:
        """Return the tokens of each line's text, before words outside the dictionary are replaced.

        ``side`` is one of the suffixes of pairs, such as ``wp_source``; by default the text that is
        generated.
        """
        return list(self.iterate_tokens(side))

    def iterate_tokens(self, side: Optional[str] = None) -> Iterator[list[str]]:
        sides = self.sides
        place = len(sides) - 1 if side is None else sides.index(side)
        line = 0
        for record in self._stream():
            for number in range(_count_lines(record, self.kind)):
                words = self.tokenize(record, number, place)
                if not words:
                    raise UserError(f"{self.where(line)}: has no word in its text.")
                yield words
                line += 1

    @property
    def sides(self) -> tuple[str, ...]:
        """Suffixes of the binarised source and target; empty for a single text."""
        return self.kind.sides

    def tokenize(self, record: Record, number: int, place: int) -> list[str]:
        kind, tokens = self.kind, record.get("tokens")
        if tokens is not None:
            if self.sides:
                return tokens[place].split()
            return (tokens[number] if kind is CAPTIONS else tokens).split()
        if kind is VISUAL_STORIES:
            sentences = [" ".join(self._tokenizer(text)) for text in record["sentences"]]
            return join_sentences(sentences).split()
        if kind is CAPTIONS:
            return self._tokenizer(record["captions"][number])
        name = kind.text if place else kind.source or kind.text
        words = self._tokenizer(record[name])
        if kind is PROMPTS and name == kind.text and self._story_words:
            return words[: self._story_words]
        if "unknowns" in record:
            return index_with(words, self._known, record["unknowns"])
        return words

    @cached_property
    def _tokenizer(self) -> Callable[[str], list[str]]:
        return load_tokenizer(self.folder, self.kind)

    @cached_property
    def _story_words(self) -> int:
        return read_options(self.folder).get("story_words") or 0

    @cached_property
    def _known(self) -> frozenset[str]:
        from fairseq_mm.data.binarised_text import load_dictionary

        return frozenset(load_dictionary(self.dictionary_path()).symbols)

    def base(self, side: Optional[str] = None) -> Path:
        """Return the path of a binarised text without ``.bin`` and ``.idx``, see :meth:`tokens`."""
        pair = "-".join(self.sides)
        return Path(self.folder) / (f"{self.name}.{pair}.{side}" if side else self.name)

    def dictionary_path(self, side: Optional[str] = None) -> str:
        """Return the path of the dictionary of a text, see :meth:`tokens`."""
        name = f"dict.{side or self.sides[-1]}.txt" if self.sides else "dict.txt"
        return os.path.join(self.folder, name)

    @cached_property
    def _subwords(self) -> Subwords:
        return Subwords.load(self.folder)

    @cached_property
    def _unknowns(self) -> list[Any]:
        return self.field("unknowns") if self._subwords.indexed_oov else []

    def decode(self, tokens: str, line: int) -> str:
        """Return the readable text of tokens that are separated by spaces.

        ``line`` is the line, counted from 0, whose unknown words replace ``<unk-0>`` and so on.
        """
        if self._unknowns and self._unknowns[line] is not None:
            tokens = restore_oov_words(tokens, self._unknowns[line])
        return self._subwords.decode(tokens)


def first_lines(keys: Iterable[str]) -> np.ndarray:
    """Return a ``[lines]`` bool array, True for a key that no earlier line has."""
    lines: dict[str, int] = {}
    return np.array([lines.setdefault(key, n) == n for n, key in enumerate(keys)], dtype=bool)


def read_report(folder: Folder) -> dict[str, Any]:
    """Read ``prepare.json`` of a data folder; an empty dict without the file."""
    path = Path(folder) / "prepare.json"
    with file_errors(path):
        report = dict(read_json(path) if path.exists() else {})
        return {**report, **{x: dict(report.get(x, {})) for x in ("options", "digests", "stamps")}}


def read_options(folder: Folder) -> dict[str, Any]:
    """Return the options of the preparation, from ``prepare.json`` of a data folder."""
    return read_report(folder)["options"]


def load_tokenizer(folder: Folder, kind: Kind) -> Callable[[str], list[str]]:
    """Return the function with which ``prepare`` tokenized the texts of a data folder."""
    options = read_options(folder)
    name: Any = options.get("tokenizer")
    tables: dict[Kind, Any] = {PROMPTS: STORY_TOKENIZERS, VIDEOS: TOKENIZERS}
    known = tuple(tables.get(kind, CAPTION_TOKENIZERS))
    # without ptb, the rules of scoring, which this folder of the package cannot import
    if name not in known:
        raise UserError(
            f"{os.path.join(folder, 'prepare.json')}: `tokenizer` must be {' or '.join(known)}, "
            f"but is {name}; or each record must have the field `tokens`, what prepare binarised."
        )
    if kind is PROMPTS:
        return STORY_TOKENIZERS[name]
    if kind is VIDEOS:
        subwords, normalise = Subwords.load(folder), TOKENIZERS[name]
        return lambda text: subwords.encode(normalise(text))
    options = {x: options.get(x, False) for x in ("keep_case", "keep_punctuation")}
    return CaptionTokenizer(name, **options)


def _count_lines(record: Record, kind: Kind) -> int:
    if record.get("reference_only"):
        return 0
    return len(record["captions"]) if kind is CAPTIONS else 1


def check_record(
    record: Record, kind: Kind, where: str, required: Optional[Iterable[str]] = None
) -> None:
    """Check that a record, or a user's own line, has the fields ``required`` (default: those of
    ``kind``), and that known fields have the right types and lengths. ``where`` (``path:line``) is
    for messages."""
    missing = [x for x in (kind.required if required is None else required) if x not in record]
    problem = f"must have the field `{missing[0]}`, but has not" if missing else ""
    for name, value in () if missing else record.items():
        expected = ""
        if name in LISTS or (name == "tokens" and kind is not VISUAL_STORIES):
            length = NUM_IMAGES if name in ("images", "sentences") else None
            if name in ("tags", "tokens"):
                length = len(record["captions"]) if kind is CAPTIONS else 2
            is_list = type(value) is list and set(map(type, value)) <= {str}
            # an item without a reference cannot be scored
            is_list = is_list and bool(value or "references" not in name)
            if not is_list or length not in (None, len(value)):
                expected = "a list of texts" if length is None else f"a list of {length} texts"
        elif name == "reference_only" and type(value) is not bool:
            expected = "true or false"
        elif name == "split" and value not in SPLITS:
            expected = "train, valid or test"
        elif name in _TEXT and type(value) is not str:
            expected = "text"
        if expected:
            problem = f"`{name}` must be {expected}, but is {str(value)[:80]!r}"
    if problem:
        raise UserError(f"{where}: {problem}.")


def _get_key(record: Record, kind: Kind) -> Optional[str]:
    if kind is VISUAL_STORIES:
        return "\t".join(record["images"])
    return None if kind is PROMPTS else record.get("id")


def _get_text(record: Record, number: int, kind: Kind) -> str:
    if kind is CAPTIONS:
        return record["captions"][number]
    if kind is VISUAL_STORIES:
        return " ".join(filter(None, map(str.strip, record["sentences"])))
    text = record[kind.text]
    return text if kind is PROMPTS else " ".join(text.split())


def _size_and_time(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


# field of prepare.json -> what it compares of a file
_DESCRIBE: dict[str, Callable[[Path], Any]] = {"digests": file_digest, "stamps": _size_and_time}


def is_cache_current(folder: Folder, name: str) -> bool:
    """Return True if the binarised text of a split was made from its records."""
    report = read_report(folder)
    # stamps first: to read the records of WritingPrompts would be most of the start of a training
    return any(
        report[field].get(name) == _digest_files(folder, name, report["options"], field)
        for field in ("stamps", "digests")
    )


def _digest_files(folder: Folder, name: str, options: Record, field: str) -> str:
    """Compute one SHA-256 of a split's files and of the options of the preparation. ``field``
    selects what represents a file: its digest, or its size and time."""
    split, root, describe = Split(folder, name), Path(folder), _DESCRIBE[field]
    files = [root / f"{name}.jsonl", *sorted(root.glob("dict*.txt"))]
    files += [root / file for file in sorted(SUBWORD_FILES)]
    for side in split.sides or (None,):
        files += [Path(f"{split.base(side)}.{end}") for end in ("bin", "idx")]
    described = {file.name: describe(file) for file in files if file.exists()}
    content = json.dumps([described, options], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def write_report(folder: Folder, report: Record, names: Iterable[str]) -> None:
    """Write ``prepare.json``, with digests, sizes and times of the files of splits added."""
    for field in _DESCRIBE:
        digests = {x: _digest_files(folder, x, report["options"], field) for x in names}
        report[field] = {**report.get(field, {}), **digests}
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    write_file(Path(folder) / "prepare.json", text)


def record_digests(folder: Folder, names: Iterable[str]) -> None:
    """Write the digests, sizes and times of the files of splits to ``prepare.json``."""
    write_report(folder, read_report(folder), names)
