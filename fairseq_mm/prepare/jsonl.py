"""Reads a user's own JSON lines, one example per line with the fields of a task.

A transcript may be a file: text, or subtitles (``.srt``, ``.vtt``) without times and marks. In
automatic captions of YouTube, each line is shown again as the upper line of the next cue (the text
that is shown at one time). The file therefore has every word two or three times. If at least half
of the cues begin with the end of the previous cue, these repetitions are removed. In other files, a
line that occurs twice was spoken twice, and stays.
"""

import html
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from fairseq_mm.data.input_files import (
    check_id,
    parse_object,
    read_bytes,
    read_id,
    read_lines,
    unreadable,
)
from fairseq_mm.data.record_split import CAPTIONS, LISTS, PROMPTS, Kind, check_record
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example, Streamed, check_once

KEYS = ("name", "stem", "path")
# one word with a suffix that has a letter, such as talk.ass or talk.mp3; "3.5" and "Yes." are texts
_FILE_NAME = re.compile(r"\S+\.(?=\d*[A-Za-z])[A-Za-z0-9]{1,5}")
Paths = dict[Optional[str], list[Path]]

SUBTITLE_SUFFIXES = (".srt", ".vtt")
TRANSCRIPT_SUFFIXES = (*SUBTITLE_SUFFIXES, ".txt")

_TIME = r"(?:\d+:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?"
_TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s|$)")
# <i>, </font>, <c.colorE5E5E5>, <v Ann>, <00:00:01.320>; but not 3 < 4 or <3
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<\d+:\d[\d:.]*>")
_OVERRIDE = re.compile(r"\{\\[^{}]*\}")  # {\an8}
_ESCAPED_BREAK = re.compile(r"\\[Nnh]")
# byte order marks and direction marks inside a text would become parts of its words
_INVISIBLE = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_BLOCKS = ("NOTE", "STYLE", "REGION")  # blocks of WebVTT whose lines are not spoken
# two neighbouring cues may share up to two words by chance: "and then", "you know"
_CHANCE = 2

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def read_jsonl(kind: Kind, paths: Paths, *, keys: str = "name") -> Corpus:
    """Read a user's own examples.

    Args:
        paths: Dict from split to files that have only examples of this split. In files under the
            key None, each line has the field ``split``; without it, all lines belong to train.
        keys: Part of the path of an image or video that is its key in the feature store: ``name``
            (file name), ``stem`` (file name without suffix) or ``path`` (the path as in the line).
    """
    files = [path for split_files in paths.values() for path in split_files]
    splits: dict[str, Any] = {}
    if kind is PROMPTS:
        for path in files:
            # a pipe can be read only once
            if path.exists() and not path.is_file():
                raise UserError(f"{path}: must be a file, as it is read twice, but is none.")
        # a pass of its own: it checks every line before anything is written, and gives the lengths
        sizes = Counter(split for split, _ in _Reader(kind, keys).examples(paths))

        def read(split: str) -> Iterator[Example]:
            # a new reader, since every id would be a repeated one for the first
            pairs = _Reader(kind, keys).examples(paths)
            return (example for other, example in pairs if other == split)

        splits = {s: Streamed(partial(read, s), size) for s, size in sizes.items()}
    else:
        for split, example in _Reader(kind, keys).examples(paths):
            splits.setdefault(split, []).append(example)
    for file_split, split_files in paths.items():
        if split_files and not (splits if file_split is None else file_split in splits):
            raise UserError(f"{', '.join(map(str, split_files))}: no {kind.nouns}.")
    return Corpus(kind, "own", "as given", splits, list(map(str, files)))


class _Reader:
    """Reader of examples that compares each line with all earlier lines."""

    def __init__(self, kind: Kind, keys: str) -> None:
        self.kind = kind
        self.keys = keys
        self.first_with: dict[str, dict[bool, str]] = {}  # field -> is it there -> place
        self.path_by_key: dict[str, tuple[str, str]] = {}  # key -> path, and place of its line
        self.seen: dict[str, str] = {}
        self.number = 0

    def examples(self, paths: Paths) -> Iterator[tuple[str, Example]]:
        """Yield the split and the example of each line, file by file."""
        split_paths = [(split, path) for split, files in paths.items() for path in files]
        for file_split, path in split_paths:
            for number, line in read_lines(path):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                if self.kind.visual is None and self.kind is not PROMPTS and path.suffix == ".txt":
                    entry: dict[str, Any] = {self.kind.text: [line.strip()]}
                else:
                    entry = _parse(self.kind, line, where)
                # a line without id would get a number, a line without split would go to train
                for name in (*self.kind.uniform, *(["split"] if file_split is None else [])):
                    is_present = entry.get(name) is not None
                    first_places = self.first_with.setdefault(name, {})
                    first_places.setdefault(is_present, where)
                    if len(first_places) == 2:
                        raise UserError(
                            f"{first_places[False]}: names no {name}, but {first_places[True]} "
                            "does; give one to every line or to none."
                        )
                split = entry.get("split")
                if file_split is not None and split not in (None, file_split):
                    raise UserError(
                        f"{where}: says split {split}, but the file is given as {file_split}."
                    )
                example = self._example(entry, path.parent, where)
                if example.id is not None:  # of pairs, of which equal ones are no mistake
                    what = f"{self.kind.noun} {example.id}"
                    remedy = "; put all captions of an image into one entry"
                    check_once(what, where, self.seen, remedy if self.kind is CAPTIONS else "")
                yield split or file_split or "train", example

    def _example(self, entry: dict[str, Any], folder: Path, where: str) -> Example:
        kind = self.kind
        self.number += 1
        texts: dict[str, list[str]] = {}
        for name in kind.texts:
            is_file = name == "transcript"
            value = text_or_file(entry, name, folder, where) if is_file else entry[name]
            texts[name] = list(value) if name in LISTS else [value]
        key, album = read_id(entry, where, what=_article(kind.noun)), entry.get("album")
        if kind.visual is None:
            # stories of the same prompt are one group, so that no prompt is in two splits
            first = " ".join(texts[kind.texts[0]])
            return Example(texts, where, key, group=" ".join(first.split()))
        visual = entry[kind.visual]
        if kind.id_is_key:
            key = self._visual_key(visual, where) if key is None else key
            return Example(texts, where, key, [key])
        visual = [self._visual_key(path, where) for path in visual]
        # the number over all files, since line numbers repeat from file to file
        key = str(self.number) if key is None else key
        # without an album, stories of the same images are a group: images must be in one split only
        return Example(texts, where, key, visual, "\t".join(visual) if album is None else album)

    def _visual_key(self, path: str, where: str) -> str:
        file = PurePosixPath(path)
        key = {"name": file.name, "stem": file.stem, "path": path}[self.keys]
        check_id(key, where, what=_article(self.kind.visual_noun))
        # two files of one name in two folders would silently share the features of one file
        other, elsewhere = self.path_by_key.setdefault(key, (path, where))
        if other != path:
            raise UserError(
                f"{where}: {path} and {other} ({elsewhere}) would both be called {key} in the "
                "feature store; --keys path tells them apart."
            )
        return key


def _parse(kind: Kind, line: str, where: str) -> dict[str, Any]:
    """Parse a JSON line, and return all of its fields as a dict."""
    entry = parse_object(line, where)
    required = [] if kind.visual is None else [kind.visual]
    for name in kind.texts:
        is_file = name == "transcript" and "transcript_file" in entry
        required.append("transcript_file" if is_file else name)
    # a field with the value null counts as missing; the id is checked where it is read
    given = {name: x for name, x in entry.items() if x is not None and name != "id"}
    check_record(given, kind, where, required)
    return entry


def text_or_file(entry: dict[str, Any], name: str, folder: Path, where: str = "") -> str:
    """Return the text of a field, or the text of the file that the field names.

    The field is a file name if it ends in ``.srt``, ``.vtt`` or ``.txt``, is one word with a
    suffix, or names an existing file in ``folder``. In its place, the field ``NAME_file`` may
    name a file.
    """
    value = entry.get(name)
    if value is not None and not (
        value.lower().endswith(TRANSCRIPT_SUFFIXES)
        or _FILE_NAME.fullmatch(value.strip())
        or os.path.isfile(folder / value)
    ):
        return value
    try:
        return read_transcript(folder / (entry[f"{name}_file"] if value is None else value))
    except (UserError, ValueError) as error:  # ValueError: a file name with a zero byte
        remedy = "" if value is None else " A text that ends like a file's name needs a full stop."
        raise UserError(f"{where}: {error}{remedy}" if where else f"{error}{remedy}") from None


def _article(noun: str) -> str:
    return f"an {noun}" if noun == "image" else f"a {noun}"


def read_transcript(path: Path) -> str:
    """Read the spoken text from a file.

    A file ``.srt`` or ``.vtt`` is read as subtitles; the text of a file ``.txt`` or without suffix
    is not changed.
    """
    if path.suffix.lower() not in (*TRANSCRIPT_SUFFIXES, ""):
        endings = ", ".join(TRANSCRIPT_SUFFIXES)
        raise UserError(f"{path}: a transcript must be a file {endings}; convert it first.")
    content = read_bytes(path)
    marks = [mark for mark in _BYTE_ORDER_MARKS if content.startswith(mark)]
    try:
        text = content.decode(_BYTE_ORDER_MARKS[marks[0]] if marks else "utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(path, error) from None
    if path.suffix.lower() not in SUBTITLE_SUFFIXES:
        return text
    transcript = subtitles_to_text(text)
    if transcript is None:
        raise UserError(
            f"{path}: has no subtitle; a line such as 00:00:01,000 --> 00:00:02,500 goes before "
            "the text of each."
        )
    return transcript


def subtitles_to_text(text: str) -> Optional[str]:
    """Return the words of ``.srt`` or ``.vtt`` subtitles on one line; None without subtitles."""
    cues = [
        [words for words in map(_split_words, lines) if words]
        for lines in _parse_cues(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    ]
    if not cues:
        return None
    cues = [cue for cue in cues if cue]
    repeated = [_repeated_words(before, cue) for before, cue in zip(cues, cues[1:])]
    # a file in which people sometimes repeat themselves has few such cues
    num_repeating = sum(count > 0 for count in repeated)
    if num_repeating < 2 or 2 * num_repeating < len(repeated):
        repeated = [0] * len(repeated)
    words = []
    for cue, count in zip(cues, [0, *repeated]):
        words += [word for line in cue for word in line][count:]
    return " ".join(words)


def _parse_cues(lines: list[str]) -> list[list[str]]:
    """Return the text lines of each cue (a text with its time); skip lines before the first cue."""
    is_webvtt = lines[0].lstrip("\ufeff").startswith("WEBVTT")
    cues: list[list[str]] = []
    in_block = False
    for i, line in enumerate(lines):
        after_blank = i == 0 or not lines[i - 1]
        if _TIMING.match(line):
            # the number or name of a cue stands above its time, after the text of the cue before
            before = cues[-1] if cues else []
            name = before[-1].strip() if before else ""
            is_apart = is_webvtt and len(before) > 1 and not before[-2]
            if name and (name.isdecimal() or is_apart):
                before.pop()
            cues.append([])
            in_block = False
        elif in_block or (
            is_webvtt and after_blank and line.split(" ")[0].split("\t")[0] in _BLOCKS
        ):
            in_block = bool(line)
        elif cues:
            cues[-1].append(line)
    return cues


def _split_words(line: str) -> list[str]:
    line = _TAG.sub("", _OVERRIDE.sub("", line))
    line = html.unescape(_ESCAPED_BREAK.sub(" ", line))
    return _INVISIBLE.sub("", line).split()


def _repeated_words(before: list[list[str]], cue: list[list[str]]) -> int:
    """Count the words at the beginning of a cue that repeat the end of the previous cue: whole
    lines of one of the two cues, or more words than two cues share by chance."""
    tail, head = ([word for line in lines for word in line] for lines in (before, cue))
    whole = {sum(map(len, before[i:])) for i in range(len(before))}
    whole |= {sum(map(len, cue[: i + 1])) for i in range(len(cue))}
    for count in range(min(len(tail), len(head)), 0, -1):
        if (count in whole or count > _CHANCE) and tail[-count:] == head[:count]:
            return count
    return 0
