"""One's own JSON lines, one example a line -> a corpus, by the field table of a task."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from fairseq_mm.data.input_files import SPLITS, check_id, parse_object, read_id, read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import (
    Corpus,
    Example,
    Field,
    FieldTable,
    Streamed,
    check_once,
    in_order,
)
from fairseq_mm.prepare.subtitles import TRANSCRIPT_SUFFIXES, read_transcript

KEYS = ("name", "stem", "path")
Paths = dict[Optional[str], list[Path]]


def read_jsonl(table: FieldTable, paths: Paths, *, keys: str = "name") -> Corpus:
    """Reads one's own data.

    Args:
        table: of the task. A line has its required fields, and may have the optional ones and
            ``split`` (train, valid or test), which every line has or none.
        paths: split -> files that hold it alone; None -> files whose lines may name a split and
            belong to train otherwise.
        keys: what images and videos are called in the feature store: by their file's ``name``, its
            ``stem``, or their ``path`` as it stands in the line.

    Raises:
        UserError: ``path:line`` and what is wrong there, or if there is no example.
    """
    files = [path for several in paths.values() for path in several]
    splits: dict[str, Any] = {}
    if table.streamed:
        for path in files:
            if path.exists() and not path.is_file():
                raise UserError(f"{path}: must be a file, as it is read twice, but is none.")
        sizes = Counter(split for split, _ in _Reader(table, keys).examples(paths))

        def read(split: str) -> Iterator[Example]:
            return (one for found, one in _Reader(table, keys).examples(paths) if found == split)

        splits = {s: Streamed(partial(read, s), size) for s, size in sizes.items()}
    else:
        for split, example in _Reader(table, keys).examples(paths):
            splits.setdefault(split, []).append(example)
    named = [str(path) for path in files]
    if not splits:
        raise UserError(f"{', '.join(named)}: no {table.nouns}.")
    for own, given in paths.items():
        if given and own is not None and own not in splits:
            raise UserError(f"{', '.join(map(str, given))}: no {table.nouns} of the {own} split.")
    return Corpus(table, "own", "as given", in_order(splits), named)


def key_of(path: str, keys: str) -> str:
    """What an image or a video is called in a feature store; ``keys`` is one of ``KEYS``."""
    found = PurePosixPath(path)
    return {"name": found.name, "stem": found.stem, "path": path}[keys]


class _Reader:
    """Reads examples line by line, and remembers what earlier lines had."""

    def __init__(self, table: FieldTable, keys: str) -> None:
        self.table = table
        self.keys = keys
        self.first_with: dict[tuple[str, bool], str] = {}
        self.path_of: dict[str, tuple[str, str]] = {}  # key -> path, and where it stands
        self.seen: dict[str, str] = {}
        self.number = 0

    def examples(self, paths: Paths) -> Iterator[tuple[str, Example]]:
        """Split and example of each line, in the order of the files."""
        several = [(split, path) for split, files in paths.items() for path in files]
        for file_split, path in several:
            for number, line in read_lines(path):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                plain = self.table.may_be_plain and path.suffix == ".txt"
                entry: dict[str, Any] = (
                    {self.table.texts[0].name: [line.strip()]}
                    if plain
                    else _parse(self.table, line, where)
                )
                for name in (*self.table.uniform, *(["split"] if file_split is None else [])):
                    self._check_uniform(name, entry.get(name) is not None, where)
                split = entry.get("split")
                if file_split is not None and split not in (None, file_split):
                    raise UserError(
                        f"{where}: says split {split}, but the file is given as {file_split}."
                    )
                example = self._example(entry, path.parent, where)
                check_once(example, self.seen, self.table)
                yield split or file_split or "train", example

    def _example(self, entry: dict[str, Any], folder: Path, where: str) -> Example:
        table = self.table
        self.number += 1
        texts: dict[str, list[str]] = {}
        for name, many, _, may_be_file, _ in table.texts:
            found = text_or_file(entry, name, folder, where) if may_be_file else entry[name]
            texts[name] = list(found) if many else [found]
        key, album = read_id(entry, where, what=_article(table.noun)), entry.get("album")
        if table.visual is None:
            # the text of the first field is what several examples may share
            first = " ".join(texts[table.texts[0].name])
            return Example(texts, where, key, group=" ".join(first.split()))
        given = entry[table.visual.name]
        if table.id_is_key:
            key = self._visual_key(given, where) if key is None else key
            return Example(texts, where, key, [key])
        visual = [self._visual_key(path, where) for path in given]
        key = str(self.number) if key is None else key
        return Example(texts, where, key, visual, "\t".join(visual) if album is None else album)

    def _check_uniform(self, name: str, given: bool, where: str) -> None:
        self.first_with.setdefault((name, given), where)
        if (name, not given) in self.first_with:
            without, having = (self.first_with[name, found] for found in (False, True))
            raise UserError(
                f"{without}: names no {name}, but {having} does; give one to every line or to none."
            )

    def _visual_key(self, path: str, where: str) -> str:
        """The key of an image or a video; nothing could tell two paths of one key apart."""
        key = check_id(key_of(path, self.keys), where, what=_article(self.table.visual_noun))
        other, elsewhere = self.path_of.setdefault(key, (path, where))
        if other != path:
            raise UserError(
                f"{where}: {path} and {other} ({elsewhere}) would both be called {key} in the "
                "feature store; --keys path tells them apart."
            )
        return key


def _parse(table: FieldTable, line: str, where: str) -> dict[str, Any]:
    """The fields of a line, of which the known ones are checked."""
    entry = parse_object(line, where)
    required = [*([table.visual] if table.visual else []), *table.texts]
    for field in required:
        name = field.name
        if field.may_be_file and f"{name}_file" in entry:
            if name in entry:
                raise UserError(f"{where}: has both `{name}` and `{name}_file`; give one of them.")
            name = f"{name}_file"
        if name not in entry:
            raise UserError(
                f"{where}: field `{name}` is missing; found {', '.join(entry) or 'none'}."
            )
        _check_type(table, field._replace(name=name), entry[name], where)
    for name in sorted({*table.uniform, "split"} - {"id"}):
        if entry.get(name) is not None:
            _check_type(table, Field(name), entry[name], where)
    if entry.get("split") not in (None, *SPLITS):
        raise UserError(
            f"{where}: `split` must be train, valid or test, but is "
            f"{json.dumps(entry['split'])[:80]} instead."
        )
    return entry


def _check_type(table: FieldTable, field: Field, value: object, where: str) -> None:
    if not field.many:
        if not isinstance(value, str):
            raise UserError(
                f"{where}: `{field.name}` must be text, but is {json.dumps(value)[:80]} instead."
            )
        return
    of = "" if field.length is None else f"{field.length} "
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UserError(
            f"{where}: `{field.name}` must be a list of {of}texts, but is "
            f"{json.dumps(value)[:80]} instead."
        )
    if field.length is not None and len(value) != field.length:
        raise UserError(
            f"{where}: {_article(table.noun)} has {field.length} {field.name}, but this one has "
            f"{len(value)}."
        )


def text_or_file(entry: dict[str, Any], name: str, folder: Path, where: str = "") -> str:
    """The text of a field, or of the file of subtitles or text that it or ``NAME_file`` names.

    Args:
        entry: with one of the two fields.
        name: of the field.
        folder: of relative paths.
        where: the line, for messages; none where it is named already.

    Raises:
        UserError: if the file cannot be read.
    """
    given = entry.get(name)
    if given is not None and not given.lower().endswith(TRANSCRIPT_SUFFIXES):
        return given
    try:
        return read_transcript(folder / (entry[f"{name}_file"] if given is None else given))
    except (UserError, ValueError) as error:  # a name with a zero byte
        remedy = "" if given is None else " A text that ends like a file's name needs a full stop."
        raise UserError(f"{where}: {error}{remedy}" if where else f"{error}{remedy}") from None


def _article(noun: str) -> str:
    return f"an {noun}" if noun == "image" else f"a {noun}"
