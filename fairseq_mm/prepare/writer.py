"""Writes a corpus as a data folder: all files of a task except the features.

``<split>.jsonl`` has a record of each example, in the form of the user's own JSON lines. The text
is tokenized to temporary files and binarised to ``dict*.txt``, ``<split>*.bin`` and
``<split>*.idx``, the files of ``fairseq-preprocess``. ``prepare.json`` has options and counts.
"""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ClassVar, Optional

from tqdm.auto import tqdm

from fairseq_mm import __version__
from fairseq_mm.data.caption_text import reserved_token
from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.data.record_split import LISTS, Kind, Record, write_report
from fairseq_mm.data.transcript_text import NOT_AVAILABLE
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.data_folder import former_files, partial_folder

# field -> end of the message about a text without a word
_REMEDIES = {"transcript": f'; write "{NOT_AVAILABLE}"'}


@dataclass
class Vocabulary:
    """Options of a dictionary, which is made from the training split or read from a file.

    Args:
        text: Noun for the text, such as ``captions``, for messages.
        default: Value of ``threshold`` if it is None.
        threshold: Minimum number of occurrences in the training split.
        max_words: Maximum number of words; None for all.
        prefix: Prefix of the options' names, such as ``source-``.
        symbols: Further entries at the end of the dictionary.
    """

    text: str
    default: int
    threshold: Optional[int] = None
    max_words: Optional[int] = None
    dictionary: Optional[Path] = None
    prefix: str = ""
    symbols: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.words: Optional[set[str]] = None
        if self.dictionary is not None:
            from fairseq_mm.data.binarised_text import load_dictionary

            for name in ("threshold", "max_words"):
                if getattr(self, name) is not None:
                    flag = f"--{self.prefix}{name.replace('_', '-')}"
                    raise UserError(f"{self.dictionary} fixes the words; leave {flag} out with it.")
            dictionary = load_dictionary(str(self.dictionary))
            self.words = set(dictionary.symbols[dictionary.nspecial :])
        # set only now: a default must not count as an option that conflicts with a dictionary
        elif self.threshold is None:
            self.threshold = self.default

    def options(self) -> dict[str, object]:
        prefix = self.prefix.replace("-", "_")
        limit = {} if self.max_words is None else {f"{prefix}max_words": self.max_words}
        return {
            f"{prefix}threshold": self.threshold,
            **limit,
            f"{prefix}dictionary": self.dictionary and str(self.dictionary),
        }

    def build(self, counts: "Counter[str]") -> Any:
        """Load the dictionary, or build it from the number of occurrences of each word."""
        from fairseq.data import Dictionary

        from fairseq_mm.data.binarised_text import load_dictionary

        if self.dictionary is not None:
            dictionary = load_dictionary(str(self.dictionary))
        else:
            dictionary = Dictionary()
            for word in counts.keys() - set(self.symbols):
                dictionary.add_symbol(word, n=counts[word])
            # fairseq counts its control symbols, too; by default it pads a dictionary to a multiple
            # of 8 with words that do not exist, to which a softmax would give probability
            limit = self.max_words + dictionary.nspecial if self.max_words else -1
            dictionary.finalize(threshold=self.threshold, nwords=limit, padding_factor=1)
        for symbol in self.symbols:
            dictionary.add_symbol(symbol, n=0)
        return dictionary


class FolderWriter:
    """Writer of a corpus as a data folder; subclasses turn an example into lines of tokens.

    A side is one of the texts of an example, named by the suffix of its binarised files: none
    (``txt``), or for pairs of texts two suffixes such as ``tran`` (transcript) and ``desc``
    (summary).

    Args:
        tokenize: Function from a text to its tokens.
        vocabularies: Dict from the file name of a dictionary to its options; both sides of a pair
            share a single one.
        settings: Settings of the tokenizer, for ``prepare.json``.
        skip_empty: Leave out texts without a word, or the examples with them, instead of refusing
            the data.

    Attributes:
        sides: Dict from side to the names of two counts: its words and its unknown words.
        extra_files: Paths in the data folder of all files besides records, dictionaries and
            binarised text.
        counts: Names of the counts of each split, the number of examples first.
        left_out: Name in ``prepare.json`` of the examples that ``skip_empty`` leaves out; None if
            they are not listed.
        required: Words that a dictionary must have, and that texts must not have.
    """

    kind: ClassVar[Kind]
    sides: ClassVar[dict[str, tuple[str, str]]] = {"txt": ("words", "unknown")}
    extra_files: ClassVar[frozenset[str]] = frozenset()
    counts: ClassVar[tuple[str, ...]]
    left_out: ClassVar[Optional[str]] = None
    required: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        tokenize: Callable[[str], list[str]],
        vocabularies: dict[str, Vocabulary],
        *,
        settings: Optional[dict[str, object]] = None,
        skip_empty: bool = False,
    ) -> None:
        for vocabulary in vocabularies.values():
            if vocabulary.words is not None and not self.required <= vocabulary.words:
                raise UserError(
                    f"--dictionary {vocabulary.dictionary}: lacks {' '.join(self.required)}, which "
                    "stands between sentences."
                )
        self.tokenize = tokenize
        self.vocabularies = vocabularies
        self.settings = settings or {}
        self.skip_empty = skip_empty

    def begin_split(self, split: str) -> None:
        """Reset the counts that the writer keeps for one split."""

    def encode(
        self, example: Example, counts: dict[str, int]
    ) -> Optional[tuple[Record, dict[str, list[str]]]]:
        """Return the record of an example, and for each side its lines, tokens joined by spaces.

        The result is None if the example is left out. ``counts`` are the counts of the split.
        """
        raise NotImplementedError

    def record(self, example: Example) -> Record:
        """Return the fields of an example in the form of the user's JSON lines."""
        record: Record = {} if example.id is None else {"id": example.id}
        if self.kind.visual == "images":
            record.update(album=example.group, images=example.visual)
        for name in self.kind.texts:
            texts = example.texts[name]
            record[name] = texts if name in LISTS else texts[0]
        return record

    def finish_split(self, counts: dict[str, int]) -> None:
        """Add counts that are known only after all examples of the split."""

    def finish_text(self, folder: Path, known: set[str], counts: dict[str, dict[str, int]]) -> None:
        """Change the text of all splits in ``folder`` before it is binarised; ``known`` are the
        words of the dictionary."""

    def finish_folder(self, folder: Path, splits: list[str]) -> None:
        """Add files to ``folder`` that are made from the binarised text."""

    def options(self) -> dict[str, object]:
        """Return the options that determine the written files, for ``prepare.json``."""
        options: dict[str, object] = {}
        for vocabulary in self.vocabularies.values():
            options.update(vocabulary.options())
        return options

    def describe(self, counts: dict[str, int]) -> str:
        """Return the counts of a split as one line of text, without counts that are 0."""
        unknown_name = dict(self.sides.values())
        parts = []
        for name, number in counts.items():
            if number == 0 or name in unknown_name.values():
                continue
            part = f"{number:,} {name.replace('_', ' ')}"
            if unknown_name.get(name) in counts:
                part += f" ({counts[unknown_name[name]] / number:.2%} unknown)"
            parts.append(part)
        return ", ".join(parts)

    @classmethod
    def dictionary_files(cls) -> list[str]:
        return ["dict.txt"] if len(cls.sides) == 1 else [f"dict.{side}.txt" for side in cls.sides]

    @classmethod
    def files(cls) -> frozenset[str]:
        """Return the paths of all files that this version or version 0.2 may write."""
        # fairseq-preprocess names the files of a pair train.src-tgt.src.bin, with --only-source
        # train.bin
        pair = "-".join(cls.sides)
        binarised = [""] if len(cls.sides) == 1 else [f".{pair}.{side}" for side in cls.sides]
        made = cls.dictionary_files()
        for split in SPLITS:
            made += [f"{split}{name}.{end}" for name in binarised for end in ("bin", "idx")]
            made += [f"{split}.jsonl", *former_files(split, cls.sides)]
        return frozenset(made) | cls.extra_files

    def write(
        self,
        corpus: Corpus,
        output: Path,
        *,
        strict: bool = False,
        overwrite: bool = False,
    ) -> dict[str, Any]:
        """Write a corpus, and its features if the release has some, to a data folder.

        Returns the content of ``prepare.json``. If the run is interrupted, ``output`` gets no files
        except features.

        Args:
            output: Data folder. Other files in it, such as ``features.h5``, stay.
            strict: Refuse splits and dictionaries whose sizes differ from the published sizes.
            overwrite: Replace prepared data of the same kind.
        """
        _refuse(corpus.deviations() if strict else [])
        # fairseq-preprocess can make a dictionary only from training text
        vocabularies = self.vocabularies.values()
        if "train" not in corpus.splits and any(v.dictionary is None for v in vocabularies):
            options = " and ".join(f"--{v.prefix}dictionary" for v in vocabularies)
            raise UserError(
                f"{', '.join(corpus.files)}: no training {self.kind.nouns}; without them "
                f"{options} must give the words."
            )
        files, read = self.files(), {Path(path).resolve() for path in corpus.files}
        for name in sorted(files):
            if (output / name).resolve() in read:
                raise UserError(f"--output {output}: would replace {name}, which is read.")
        kind = self.kind.name
        with partial_folder(output, files, kind=kind, overwrite=overwrite) as partial:
            (partial / "text").mkdir()
            exceptions = dict(corpus.exceptions)
            self._frequencies: dict[str, Counter[str]] = {x: Counter() for x in self.vocabularies}
            counts = {
                split: self._write_split(partial, split, corpus, exceptions)
                for split in corpus.splits
            }
            dictionaries = self._write_dictionaries(partial, counts)
            report: dict[str, Any] = {
                "kind": kind,
                "package_version": __version__,
                "data_set": corpus.name,
                "split": corpus.division,
                "files": corpus.files,
                "options": {**self.settings, **corpus.options, **self.options()},
                "counts": counts,
                "deviations": corpus.deviations(),
                "exceptions": exceptions,
                "notes": corpus.notes,
                "missing": corpus.missing,
            }
            self._check_sizes(corpus, dictionaries, report, strict)
            for split in counts:
                for side in self.sides:
                    self._binarise(partial, split, side, dictionaries[side], report)
            self.finish_folder(partial, list(counts))
            shutil.rmtree(partial / "text")
            if corpus.write_features is not None:
                corpus.features_written = corpus.write_features(output, partial)
            # last, and at once: a run that was killed after it had written the report is completed
            write_report(partial, report, counts)
            return report

    def _write_split(
        self, folder: Path, split: str, corpus: Corpus, exceptions: dict[str, list[str]]
    ) -> dict[str, int]:
        """Write records and text of a split to ``folder``, and return the counts of the split. The
        ids of examples that are left out are added to ``exceptions``."""
        counts = {**dict.fromkeys(self.counts, 0), **corpus.counts.get(split, {})}
        left_out: list[str] = []
        self.begin_split(split)
        with ExitStack() as stack:
            names = [f"{split}.jsonl", *(f"text/{split}.{side}" for side in self.sides)]
            records, *texts = (
                stack.enter_context(open(folder / name, "w", encoding="utf-8", newline="\n"))
                for name in names
            )
            # disable=None: progress is shown only on a terminal
            progress = tqdm(corpus.splits[split], split, unit=f" {self.kind.nouns}", disable=None)
            for example in progress:
                encoded = self.encode(example, counts)
                if encoded is None:
                    left_out.append(str(example.id))
                    if self.kind.visual != "images":
                        continue
                    encoded = {**self.record(example), "reference_only": True}, {}
                record, lines = encoded
                missing = [key for key in dict.fromkeys(example.visual) if key in corpus.missing]
                if lines and missing:
                    record["missing"] = missing
                records.write(json_line(record) + "\n")
                for side, file in zip(self.sides, texts):
                    for line in lines.get(side, ()):
                        file.write(f"{line}\n")
                        if split == "train":
                            self._frequencies[self._vocabulary_name(side)].update(line.split())
            # people wrote these texts about an album, although their images are missing
            for example in corpus.further_references.get(split, ()):
                records.write(json_line({**self.record(example), "reference_only": True}) + "\n")
        if not counts[self.counts[0]]:
            raise UserError(
                f"{', '.join(corpus.files)}: no {self.kind.nouns} are left for {split}."
            )
        if left_out and self.left_out is not None:
            exceptions[f"{split} {self.left_out}"] = left_out
        self.finish_split(counts)
        return counts

    def tokenize_field(self, example: Example, name: str) -> list[list[str]]:
        """Tokenize each text of the field ``name``; return a list of tokens for each text."""
        token_lists = []
        for number, text in enumerate(example.texts[name], 1):
            tokens = self.tokenize(text)
            # fairseq would read the word </s> in a text as the end of the line, <pad> as padding
            symbol = reserved_token(tokens) or next(
                filter(self.required.__contains__, tokens), None
            )
            if (tokens or self.skip_empty) and symbol is None:
                token_lists.append(tokens)
                continue
            what = f"{name[:-1]} {number}" if name in LISTS else f"the {name}"
            if example.id is not None:
                noun = "" if self.kind.id_is_key else f"{self.kind.noun} "
                what += f" of {noun}{example.id}"
            where = example.places.get(name, example.where)
            problem = f"has no word: {text[:60]!r}{_REMEDIES.get(name, '')}"
            if symbol is not None:
                is_separator = symbol in self.required
                mark = "the separator of sentences" if is_separator else "fairseq's control symbol"
                problem = f"holds {mark} {symbol}, which would be read as such"
            raise UserError(f"{where}: {what} {problem}.")
        return token_lists

    def _vocabulary_name(self, side: str) -> str:
        """Return the file name of a side's dictionary; both sides may have the same one."""
        names = list(self.vocabularies)
        return names[list(self.sides).index(side)] if len(names) == len(self.sides) else names[0]

    def _write_dictionaries(
        self, folder: Path, counts: dict[str, dict[str, int]]
    ) -> dict[str, Any]:
        """Write the dictionaries to ``folder``, and return them by side."""
        dictionaries = {}
        for name, vocabulary in self.vocabularies.items():
            dictionaries[name] = dictionary = vocabulary.build(self._frequencies[name])
            known = set(dictionary.symbols[dictionary.nspecial :])
            if vocabulary.dictionary is None and not self.required < known:
                even = "".join(f" or not even {word}" for word in self.required)
                raise UserError(
                    f"no word{even} occurs {vocabulary.threshold} times or more in the training "
                    f"{vocabulary.text}; give a smaller --{vocabulary.prefix}threshold."
                )
            self.finish_text(folder, known, counts)
        by_side = {side: dictionaries[self._vocabulary_name(side)] for side in self.sides}
        for name, dictionary in zip(self.dictionary_files(), by_side.values()):
            dictionary.save(str(folder / name))
        return by_side

    def _check_sizes(
        self, corpus: Corpus, dictionaries: dict[str, Any], report: dict[str, Any], strict: bool
    ) -> None:
        """Add the dictionary sizes to ``report``, and deviations from published sizes."""
        # published sizes include fairseq's four control symbols
        types = {self._vocabulary_name(side): len(x) for side, x in dictionaries.items()}
        sizes = {name: size - 4 for name, size in types.items()}
        report["dictionary_words"] = sizes if len(sizes) > 1 else sum(sizes.values())
        deviations = [
            f"{name}: {types[name]:,} types, {size:,} published (see fairseq-mm prepare "
            f"{corpus.name} --help)"
            for name, size in corpus.published_types.items()
            if types[name] != size
        ]
        _refuse(deviations if strict else [])
        report["deviations"] += deviations

    def _binarise(
        self, folder: Path, split: str, side: str, dictionary: Any, report: dict[str, Any]
    ) -> None:
        """Binarise a text in ``folder``, and add the number of its unknown words to ``report``."""
        from fairseq_mm.data.binarised_text import binarise

        pair = f".{'-'.join(self.sides)}.{side}" if len(self.sides) == 2 else ""
        with open(folder / "text" / f"{split}.{side}", encoding="utf-8", newline="\n") as file:
            lines = tqdm(file, f"{split}, binarised", unit=" lines", disable=None)
            words = (line.split() for line in lines)
            counts = report["counts"][split]
            unknown = self.sides[side][1]
            counts[unknown] = binarise(words, dictionary, str(folder / f"{split}{pair}"))
        self.check_unknown(side, split, counts)

    def check_unknown(self, side: str, split: str, counts: dict[str, int]) -> None:
        """Raise UserError if so many words are unknown that the dictionary must be wrong."""


def _refuse(deviations: list[str]) -> None:
    if deviations:
        raise UserError(f"--strict: {'; '.join(deviations)}.")


def json_line(entry: object) -> str:
    return json.dumps(entry, ensure_ascii=False)
