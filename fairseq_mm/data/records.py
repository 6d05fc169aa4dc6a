"""Opens the splits of a data folder, also those of folders without records.

A split is a file of records, see :mod:`.record_split`. Folders of version 0.2 and of
``fairseq-preprocess`` have binarised text, and files beside it that are read in parallel, line by
line: ``<split>.visual_ids`` (keys of each line's images, separated by tabs),
``<split>.references.jsonl`` and ``<split>.album_references.jsonl``
(``{"id": line of visual_ids, "references": [...]}``), ``<split>.stories.jsonl`` (story and album),
``<split>.transcripts.jsonl``, ``<split>.unknowns.jsonl``, ``<split>.tags``, ``<split>.ids``,
``missing_images.txt`` and ``text/<split>.*``, the text before binarisation. All but the binarised
text are optional; without published texts, a record has the decoded tokens.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.data.indexed_oov import restore_oov_words
from fairseq_mm.data.input_files import SPLITS, parse_json, read_lines, read_objects
from fairseq_mm.data.record_split import (
    CAPTIONS,
    LANGUAGE_MODELS,
    PROMPTS,
    VIDEOS,
    VISUAL_STORIES,
    Folder,
    Kind,
    Record,
    Split,
    check_record,
)
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR, split_sentences
from fairseq_mm.errors import UserError, file_errors


def split_names(folder: Folder) -> list[str]:
    """Return the names of the splits of a data folder: train, valid, test, then all others."""
    root = Path(folder)
    files = [*root.glob("*.idx"), *root.glob("*.visual_ids"), *root.glob("text/*.*")]
    names = {path.name.partition(".")[0] for path in files}
    names.update(name for name in SPLITS if (root / f"{name}.jsonl").exists())
    return [x for x in SPLITS if x in names] + sorted(names.difference(SPLITS))


def open_split(folder: Folder, name: str, pair: Optional[tuple[str, ...]] = None) -> Split:
    """Open a split of a data folder.

    Args:
        folder: Data folder; also a subfolder with one side of the pairs, for language models.
        name: Name of the split.
        pair: Suffixes of source and target in a folder without records, or () for a single text; by
            default the suffixes that the folder has.
    """
    root = Path(folder)
    # the folder of a language model has binarised text only; its records are in the folder above
    if root.name in LANGUAGE_MODELS and not (root / f"{name}.jsonl").exists():
        outer = root.parent
        if (outer / f"{name}.jsonl").exists() or (outer / "text").exists():
            root = outer
    if (root / f"{name}.jsonl").exists():
        split = Split(root, name)
        if pair is not None and split.sides != pair:
            raise UserError(f"{split.path}: must not be a split of {split.kind.name} here.")
        return split
    names = split_names(root)
    if name not in names:
        known = f"but {', '.join(names)}" if names else "nor any other"
        raise UserError(f"{root}: has no split {name!r}, {known}.")
    return ImportedSplit(root, name, pair)


class ImportedSplit(Split):
    """Split of a folder without records.

    Args:
        folder: Data folder.
        name: Name of the split.
        pair: Suffixes of source and target, or () for a single text; by default a single text, the
            pair of a release, or the only pair that the folder has.
    """

    def __init__(self, folder: Folder, name: str, pair: Optional[tuple[str, ...]] = None) -> None:
        super().__init__(folder, name)
        self.root = Path(folder)
        self.pair = self._find_pair() if pair is None else pair
        self.path = f"{self.base(self.pair[1] if self.pair else None)}.bin"

    def _find_pair(self) -> tuple[str, ...]:
        if (self.root / f"{self.name}.idx").exists():
            return ()
        pattern = re.compile(rf"{re.escape(self.name)}\.([^.-]+)-([^.-]+)\.\2\.idx")
        matches = (pattern.fullmatch(path.name) for path in self.root.glob("*.idx"))
        pairs = {(match[1], match[2]) for match in matches if match}
        texts = self.root / "text"
        known = {
            x
            for x in (PROMPTS.sides, VIDEOS.sides)
            if x in pairs or (texts / f"{self.name}.{x[1]}").exists()
        }
        # with two unknown pairs it is unclear which text is meant, and the wrong one would be read
        if len(known or pairs) > 1:
            names = ", ".join(sorted("-".join(pair) for pair in known or pairs))
            raise UserError(f"{self.root}: has {self.name!r} in several pairs of texts: {names}.")
        return next(iter(known or pairs), ())

    @property
    def sides(self) -> tuple[str, ...]:
        return self.pair

    @cached_property
    def kind(self) -> Kind:
        if self.pair:
            is_video = self.pair == VIDEOS.sides or self._file("visual_ids").exists()
            return VIDEOS if is_video else PROMPTS
        # captions of several images have no separators
        is_story = self.keys and self.keys[0].count("\t") == NUM_IMAGES - 1
        if is_story and SEPARATOR in next(self.iterate_tokens(), []):
            return VISUAL_STORIES
        return CAPTIONS

    def _file(self, ending: str) -> Path:
        return self.root / f"{self.name}.{ending}"

    def _read(self, ending: str) -> Optional[list[str]]:
        path = self._file(ending)
        return [line for _, line in read_lines(path)] if path.exists() else None

    @cached_property
    def keys(self) -> Optional[list[str]]:
        return self._read("visual_ids")

    @cached_property
    def missing(self) -> frozenset[str]:
        path = self.root / "missing_images.txt"
        return frozenset(line for _, line in read_lines(path)) if path.exists() else frozenset()

    def __len__(self) -> int:
        return sum(1 for _ in self.iterate_tokens()) if self.keys is None else len(self.keys)

    def iterate_tokens(self, side: Optional[str] = None) -> Iterator[list[str]]:
        from fairseq.data import data_utils

        from fairseq_mm.data.binarised_text import load_binarised_text, load_dictionary

        side = side or (self.pair[1] if self.pair else None)
        base, path = str(self.base(side)), self.root / "text" / f"{self.name}.{side or 'txt'}"
        if not path.exists():
            dictionary = load_dictionary(self.dictionary_path(side))
            text = load_binarised_text(base, num_types=len(dictionary), end=dictionary.eos())
            for line in text:
                yield dictionary.string(line).split()
            return
        words = (line.split() for _, line in read_lines(path))
        if not Path(f"{base}.idx").exists():
            yield from words
            return
        text = data_utils.load_indexed_dataset(base)  # its sizes are mapped while it exists
        for number, (tokens, size) in enumerate(zip_longest(words, text.sizes), 1):
            if tokens is None or len(tokens) + 1 != size:
                raise UserError(
                    f"{path}:{number}: must be the text that was binarised to {base}.bin, but has "
                    "another number of words."
                )
            yield tokens

    def iterate(self) -> Iterator[tuple[str, Record]]:
        for number, record in enumerate(self.iterate_records(with_tokens=False), 1):
            yield f"{self.path}: record {number}", record

    def where(self, line: int) -> str:
        return f"{self.path}: line {line + 1}"

    def iterate_records(self, *, with_tokens: bool = True) -> Iterator[Record]:
        """Yield the records of the split; ``with_tokens`` adds the field ``tokens``."""
        read = {
            CAPTIONS: self._captions,
            VISUAL_STORIES: self._visual_stories,
            PROMPTS: self._prompts,
            VIDEOS: self._videos,
        }[self.kind]
        for number, record in enumerate(read(with_tokens), 1):
            if not with_tokens:
                del record["tokens"]
            check_record(record, self.kind, f"{self.path}: record {number}")
            yield record

    @cached_property
    def _references(self) -> Optional[dict[str, list[str]]]:
        references = self._read_references("references.jsonl")
        if references is None:
            self.note = (
                f"{self._file('references.jsonl')}: no such file; the references are the lines of "
                f"{self.path}."
            )
        return references

    def _read_references(self, ending: str) -> Optional[dict[str, list[str]]]:
        path = self._file(ending)
        if not path.exists():
            return None
        return {str(x.get("id")): x.get("references", []) for _, x in read_objects(path)}

    def _published(self) -> Optional[Iterator[str]]:
        """Return the published text of each line: the n-th reference of a key belongs to its n-th
        line. Return None if the numbers of a key's references and lines differ."""
        keys, references = self.keys, self._references
        if references is None:
            return None
        if keys is None:  # of videos without features: the references are in the order of the lines
            return (text for texts in references.values() for text in texts)
        if any(len(references.get(key, ())) != count for key, count in Counter(keys).items()):
            return None
        # lines of an image need not be neighbours
        texts = {key: iter(references[key]) for key in dict.fromkeys(keys)}
        return (next(texts[key]) for key in keys)

    def _explicit(self, seen: set[str], key: Optional[str]) -> Record:
        """Return the field ``references`` at a key's first line, if they differ from its texts."""
        references = self._references or {}
        if key is None or key in seen or key not in references:
            return {}
        seen.add(key)
        return {"references": references[key]}

    def references(self, of: str = "item") -> dict[str, list[str]]:
        ending = "references.jsonl" if of == "item" else "album_references.jsonl"
        known = self._read_references(ending)
        for line, key in enumerate(self.keys or (), 1):
            if known is not None and key not in known:
                path = self._file("visual_ids")
                raise UserError(
                    f"{self._file(ending)}: has no references for {key!r} of {path}:{line}."
                )
        return super().references(of)

    def _readable(self, side: Optional[str] = None) -> Iterator[str]:
        """Yield the decoded text of each line."""
        unknowns = self._unknown_words()
        for line, tokens in enumerate(self.iterate_tokens(side)):
            text = " ".join(tokens)
            if unknowns is not None:
                text = restore_oov_words(text, unknowns[line])
            yield " ".join(x for x in self._subwords.decode(text).split() if x != SEPARATOR)

    def _unknown_words(self) -> Optional[list[list[str]]]:
        lines, path = self._read("unknowns.jsonl"), self._file("unknowns.jsonl")
        if lines is None:
            return None
        return [parse_json(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]

    def _columns(self, **columns: Any) -> Iterator[tuple[Any, ...]]:
        """Yield for each line one value per column, None for a column that is None."""
        given = {name: column for name, column in columns.items() if column is not None}
        with file_errors(
            f"{self.path}: its {', '.join(given)}", "must agree line by line", ValueError
        ):
            for values in zip(*given.values(), strict=True):
                yield tuple(map(dict(zip(given, values)).get, columns))

    def _token_lines(self, side: Optional[str] = None) -> Iterator[str]:
        return map(" ".join, self.iterate_tokens(side))

    def _captions(self, with_tokens: bool) -> Iterator[Record]:
        published = self._published()
        seen: set[str] = set()
        lines = self._columns(
            text=published or self._readable(),
            key=self.keys,
            tags=self._read("tags"),
            tokens=self._token_lines() if with_tokens else None,
        )
        # without keys, each line is a record
        for _, group in groupby(enumerate(lines), lambda x: x[0] if x[1][1] is None else x[1][1]):
            texts, keys, tags, tokens = map(list, zip(*(line for _, line in group)))
            record: Record = {} if keys[0] is None else {"id": keys[0]}
            record["captions"] = texts
            if tags[0] is not None:
                record["tags"] = tags
            record["tokens"] = tokens
            yield {**record, **({} if published else self._explicit(seen, keys[0]))}

    def _visual_stories(self, _: bool) -> Iterator[Record]:
        path = self._file("stories.jsonl")
        stories = [entry for _, entry in read_objects(path)] if path.exists() else None
        album_references = self._read_references("album_references.jsonl") or {}
        seen: set[str] = set()
        for tokens, key, story in self._columns(
            tokens=self._token_lines(), key=self.keys, story=stories
        ):
            record: Record = {}
            for name, old in (("id", "story_id"), ("album", "album_id")):
                if story is not None and old in story:
                    record[name] = str(story[old])
            record.update(images=key.split("\t"), sentences=split_sentences(tokens))
            missing = [image for image in record["images"] if image in self.missing]
            if missing:
                record["missing"] = missing
            record["tokens"] = tokens
            if key not in seen and key in album_references:
                record["album_references"] = album_references[key]
            yield {**record, **self._explicit(seen, key)}

    def _prompts(self, _: bool) -> Iterator[Record]:
        prompts, stories = map(self._token_lines, self.pair)
        lines = self._columns(prompt=prompts, story=stories, id=self._read("ids"))
        for prompt, story, key in lines:
            record = {} if key is None else {"id": key}
            yield {**record, "prompt": prompt, "story": story, "tokens": [prompt, story]}

    def _videos(self, with_tokens: bool) -> Iterator[Record]:
        published = self._published()
        transcripts = None
        path = self._file("transcripts.jsonl")
        if path.exists():
            by_id = {str(x.get("id")): x.get("transcript") for _, x in read_objects(path)}
            transcripts = [by_id.get(key) for key in self.keys or ()]
        seen: set[str] = set()
        for summary, key, transcript, unknowns, source, target in self._columns(
            summary=published or self._readable(),
            key=self.keys,
            transcript=transcripts or self._readable(self.pair[0]),
            unknowns=self._unknown_words(),
            source=self._token_lines(self.pair[0]) if with_tokens else None,
            target=self._token_lines() if with_tokens else None,
        ):
            record: Record = {} if key is None else {"id": key}
            record.update(transcript=transcript, summary=summary)
            if unknowns is not None:
                record["unknowns"] = unknowns
            record["tokens"] = [source, target]
            yield {**record, **({} if published else self._explicit(seen, key))}
