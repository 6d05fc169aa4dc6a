"""Writes a corpus as a data folder: everything that a task reads beside its features.

By line of a split: ``text/<split>.SIDE`` (tokens), ``<split>.visual_ids`` (keys of the images or
the video in the feature store), by example ``<split>.references.jsonl`` (texts as they were). A
task's writer declares what else it writes. ``dict*.txt``, ``<split>*.bin`` and ``<split>*.idx``
are made by ``fairseq-preprocess``; ``prepare.json`` says what was read, and how, and has digests
of all these files.
"""

import json
import logging
import os
import shlex
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ClassVar, Optional

from tqdm import tqdm

from fairseq_mm.data.caption_text import reserved_token
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_checksum import check_metadata
from fairseq_mm.data.input_files import SPLITS, read_json
from fairseq_mm.data.prepared_files import STORE, STORE_LIST
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example, FieldTable
from fairseq_mm.prepare.data_folder import (
    count_unknown,
    finish_killed_run,
    partial_folder,
    read_dictionary_words,
    run_preprocess,
    write_report,
)

logger = logging.getLogger(__name__)

# fairseq-preprocess, which says nothing meanwhile, counts and binarises about as many in a minute
_WORDS_A_MINUTE = 20_000_000


@dataclass
class Vocabulary:
    """How the dictionary of a text is made from the training split, or which one is taken.

    Args:
        text: of which it is, for messages.
        default: ``threshold``, where none is given.
        threshold: words that occur less often in the training split become unknown.
        max_words: number of words, the most frequent ones; None for all.
        dictionary: a ``dict.txt`` that is taken instead.
        prefix: of the options' names, in messages and ``prepare.json``.

    Raises:
        UserError: if a number is below 1 or given beside a dictionary, or fairseq would stumble
            over the dictionary.
    """

    text: str
    default: int
    threshold: Optional[int] = None
    max_words: Optional[int] = None
    dictionary: Optional[Path] = None
    prefix: str = ""

    def __post_init__(self) -> None:
        for name in ("threshold", "max_words"):
            value, flag = getattr(self, name), f"--{self.prefix}{name.replace('_', '-')}"
            if value is not None and self.dictionary is not None:
                raise UserError(f"{self.dictionary} fixes the words; leave {flag} out with it.")
            if value is not None and value < 1:
                raise UserError(f"{flag} must be at least 1, but is {value} instead.")
        if self.threshold is None:
            self.threshold = self.default
        self.words = None if self.dictionary is None else read_dictionary_words(self.dictionary)

    def options(self) -> dict[str, object]:
        """For ``prepare.json``."""
        given = self.dictionary is not None
        prefix = self.prefix.replace("-", "_")
        limit = {} if self.max_words is None else {f"{prefix}max_words": self.max_words}
        return {
            f"{prefix}threshold": None if given else self.threshold,
            **limit,
            f"{prefix}dictionary": str(self.dictionary) if given else None,
        }

    def arguments(self, side: str, dictionary: Optional[Path]) -> list[str]:
        """Arguments of fairseq-preprocess for ``src`` or ``tgt``."""
        if dictionary is not None:
            return [f"--{side}dict", str(dictionary)]
        arguments = [f"--threshold{side}", str(self.threshold)]
        if self.max_words:  # fairseq counts its four control symbols too
            arguments += [f"--nwords{side}", str(self.max_words + 4)]
        return arguments


class FolderWriter:
    """Writes a corpus as a data folder. A task's writer says how an example becomes lines.

    Args:
        tokenize: text -> tokens.
        vocabularies: name of the dictionary's file -> how it is made; one for both sides if there
            is but one.
        settings: of the tokeniser, for ``prepare.json``.
        skip_empty: leave out examples of which a text has no word, instead of refusing them.
        workers: processes of fairseq-preprocess; the result does not depend on it.

    Attributes:
        table: field table of the task.
        sides: side of the text -> names of its counts of words and of unknown words.
        endings: of further files of a split, which are written with it.
        extra_files: further files that the folder may have.
        counts: what is counted in each split, examples first.
        left_out: what ``prepare.json`` calls examples left out with ``skip_empty``.
        required: words that a dictionary must have.
    """

    table: ClassVar[FieldTable]
    sides: ClassVar[dict[str, tuple[str, str]]] = {"txt": ("words", "unknown")}
    endings: ClassVar[tuple[str, ...]] = ("visual_ids", "references.jsonl")
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
        workers: int = 1,
    ) -> None:
        if workers < 1:
            raise UserError(f"--workers must be at least 1, but is {workers} instead.")
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
        self.workers = workers

    def begin(self) -> None:
        """Forgets what was collected of another corpus."""

    def lines(self, example: Example, counts: dict[str, int]) -> Optional[dict[str, list[str]]]:
        """Side or ending -> lines of the example, which ``counts`` counts; None to leave it out."""
        raise NotImplementedError

    def finish_split(
        self, folder: Path, split: str, corpus: Corpus, counts: dict[str, int]
    ) -> None:
        """Writes what takes all examples of a split, before the next one begins."""

    def finish_text(self, folder: Path, corpus: Corpus, counts: dict[str, dict[str, int]]) -> None:
        """Writes what takes the text of all splits, before it is binarised."""

    def finish_folder(self, folder: Path, splits: list[str]) -> None:
        """Writes what takes the binarised text."""

    def options(self) -> dict[str, object]:
        """How text becomes lines, for ``prepare.json``."""
        vocabularies = self.vocabularies.values()
        return {name: value for one in vocabularies for name, value in one.options().items()}

    def remarks(self, corpus: Corpus) -> dict[str, object]:
        """Further content of ``prepare.json``."""
        return {}

    def describe(self, counts: dict[str, int]) -> str:
        """Counts of a split that are not 0, as people read them."""
        unknown = dict(self.sides.values())
        parts = []
        for name, number in counts.items():
            if number == 0 or name in unknown.values():
                continue
            share = (
                f" ({counts[unknown[name]] / number:.2%} unknown)"
                if unknown.get(name) in counts
                else ""
            )
            parts.append(f"{number:,} {name.replace('_', ' ')}{share}")
        return ", ".join(parts)

    @classmethod
    def dictionary_files(cls) -> list[str]:
        """That fairseq-preprocess writes."""
        return ["dict.txt"] if len(cls.sides) == 1 else [f"dict.{side}.txt" for side in cls.sides]

    @classmethod
    def files(cls) -> frozenset[str]:
        """All files that the writer may make, by their paths inside the data folder."""
        pair, sides = "-".join(cls.sides), tuple(cls.sides)
        binarised = [""] if len(sides) == 1 else [f".{pair}.{side}" for side in sides]
        made = [
            *cls.dictionary_files(),
            *(f"{s}{name}.{end}" for s in SPLITS for name in binarised for end in ("bin", "idx")),
        ]
        made += [f"text/{split}.{side}" for split in SPLITS for side in sides]
        made += [f"{split}.{ending}" for split in SPLITS for ending in cls.endings]
        return frozenset(made) | cls.extra_files

    def write(
        self,
        corpus: Corpus,
        output: Path,
        *,
        strict: bool = False,
        binarize: bool = True,
        overwrite: bool = False,
        arguments: Optional[dict[str, Any]] = None,
    ) -> dict[str, Any]:
        """Writes ``corpus`` and its own features; an interrupted run leaves nothing but features.

        Args:
            corpus: examples by split. Without training examples dictionaries must be given.
            output: the data folder. Other files in it, such as ``features.h5``, stay.
            strict: refuse splits and dictionaries of other sizes than published ones.
            binarize: run fairseq-preprocess.
            overwrite: replace prepared data of this kind that stands there.
            arguments: how the run was called, as JSON: what a killed run that was called so had
                prepared is moved into place, and is enough.

        Returns:
            The content of ``prepare.json``.

        Raises:
            UserError: if the folder has prepared data, a text has no word or holds a control
                symbol, or a dictionary has no word.
        """
        self._check(corpus, strict)
        kind, files = self.table.kind, self.files()
        report = finish_killed_run(output, files, kind=kind, arguments=arguments)
        if report is not None and not overwrite:
            return report
        with partial_folder(
            output, files, kind=kind, overwrite=overwrite, arguments=arguments
        ) as partial:
            (partial / "text").mkdir()
            self.begin()
            exceptions = dict(corpus.exceptions)
            counts = {
                split: self._write_split(partial, split, corpus, exceptions)
                for split in corpus.splits
            }
            self.finish_text(partial, corpus, counts)
            commands = [
                shlex.join(["fairseq-preprocess", *arguments])
                for arguments in self.preprocess_arguments(output, list(counts))
            ]
            report = {
                "data_set": corpus.name,
                "split": corpus.division,
                "files": corpus.files,
                "options": {
                    **self.settings,
                    **corpus.options,
                    **self.options(),
                    "skip_empty": self.skip_empty,
                },
                "counts": counts,
                "deviations": corpus.deviations(),
                "exceptions": exceptions,
                "notes": corpus.notes,
                **self.remarks(corpus),
                **({"commands": commands} if len(commands) > 1 else {"command": commands[0]}),
            }
            if binarize:
                self._binarize(partial, corpus, report, strict)
                self.finish_folder(partial, list(counts))
            self._count_unknown(partial, counts)
            if corpus.write_features is not None:
                corpus.features_written = corpus.write_features(output, partial)
            return write_report(partial, kind, {**report, **_store_record(output, partial)}, files)

    def _check(self, corpus: Corpus, strict: bool) -> None:
        deviations = corpus.deviations()
        if deviations and strict:
            raise UserError(f"--strict: {'; '.join(deviations)}.")
        vocabularies = self.vocabularies.values()
        if "train" not in corpus.splits and any(one.dictionary is None for one in vocabularies):
            options = " and ".join(f"--{one.prefix}dictionary" for one in vocabularies)
            raise UserError(
                f"{', '.join(corpus.files)}: no training {self.table.nouns}; without them "
                f"{options} must give the words."
            )

    def _write_split(
        self, folder: Path, split: str, corpus: Corpus, exceptions: dict[str, list[str]]
    ) -> dict[str, int]:
        """Writes a split's text and what belongs to its lines; returns its counts."""
        counts = {**dict.fromkeys(self.counts, 0), **corpus.counts.get(split, {})}
        left_out: list[str] = []
        with ExitStack() as stack:

            def create(name: str) -> Any:
                path = folder / name
                return stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))

            files: dict[str, Any] = {side: create(f"text/{split}.{side}") for side in self.sides}
            examples = corpus.splits[split]
            # on a terminal only
            for example in tqdm(examples, split, unit=f" {self.table.nouns}", disable=None):
                lines = self.lines(example, counts)
                if lines is None:
                    left_out.append(str(example.id))
                    continue
                for ending, several in lines.items():
                    if ending not in files:
                        files[ending] = create(f"{split}.{ending}")
                    files[ending].writelines(line + "\n" for line in several)
        if not counts[self.counts[0]]:
            raise UserError(
                f"{', '.join(corpus.files)}: no {self.table.nouns} are left for {split}."
            )
        if left_out and self.left_out is not None:
            exceptions[f"{split} {self.left_out}"] = left_out
        self.finish_split(folder, split, corpus, counts)
        return counts

    def tokens_of(self, example: Example, name: str) -> list[list[str]]:
        """Tokens of each text of a field; none where it has no word and may be skipped.

        Raises:
            UserError: if a text has no word and may not be skipped, or holds a control symbol.
        """
        several = []
        for number, text in enumerate(example.texts[name], 1):
            tokens = self.tokenize(text)
            symbol = reserved_token(tokens) or next(
                filter(self.required.__contains__, tokens), None
            )
            if (tokens or self.skip_empty) and symbol is None:
                several.append(tokens)
                continue
            field = next(field for field in self.table.texts if field.name == name)
            what = f"{name[:-1]} {number}" if field.many else f"the {name}"
            if example.id is not None:
                noun = "" if self.table.id_is_key else f"{self.table.noun} "
                what += f" of {noun}{example.id}"
            where = example.places.get(name, example.where)
            if symbol is None:
                raise UserError(
                    f"{where}: {what} has no word: {text[:60]!r}; --skip-empty leaves such "
                    f"{name if field.many and self.table.id_is_key else self.table.nouns} out"
                    f"{field.remedy}."
                )
            mark = "the separator of sentences" if symbol in self.required else (
                "fairseq's control symbol"
            )  # fmt: skip
            raise UserError(
                f"{where}: {what} holds {mark} {symbol}, which would be read as such"
                f"{self.symbol_remedy(symbol)}."
            )
        return several

    def symbol_remedy(self, symbol: str) -> str:
        """What to do about a control symbol in the text, behind a semicolon."""
        return ""

    def dictionary_of(self, side: str) -> str:
        """The file of a side's dictionary."""
        return "dict.txt" if len(self.sides) == 1 else f"dict.{side}.txt"

    def dictionary_in(self, folder: Path, name: str) -> Optional[Path]:
        """The dictionary that fairseq-preprocess takes, None if it makes one."""
        return self.vocabularies[name].dictionary

    def preprocess_arguments(self, folder: Path, splits: list[str]) -> list[list[str]]:
        """Arguments of ``fairseq-preprocess``, for each time that it is called.

        ``--padding-factor 1``: fairseq would fill a dictionary up to a multiple of 8 with words
        that do not exist. A softmax gives them probability, which perplexity then pays for, and
        pretrained embeddings would not fit.

        Args:
            folder: the data folder, with ``text``.
            splits: that it has.
        """
        sides = list(self.sides)
        ending = f".{sides[0]}" if len(sides) == 1 else ""
        arguments = ["--only-source"]
        if len(sides) == 2:
            arguments = ["--source-lang", sides[0], "--target-lang", sides[1]]
            arguments += ["--joined-dictionary"] if len(self.vocabularies) == 1 else []
        for split in splits:
            arguments += [f"--{split}pref", str(folder / "text" / f"{split}{ending}")]
        arguments += ["--destdir", str(folder)]
        for short, (name, vocabulary) in zip(("src", "tgt"), self.vocabularies.items()):
            arguments += vocabulary.arguments(short, self.dictionary_in(folder, name))
        return [[*arguments, "--padding-factor", "1", "--workers", str(self.workers)]]

    def _binarize(self, folder: Path, corpus: Corpus, report: dict[str, Any], strict: bool) -> None:
        """Calls fairseq-preprocess, and reports the sizes of the dictionaries.

        Raises:
            UserError: if a dictionary that was made has no word, or, if ``strict``, not the
                published size.
        """
        counts = report["counts"]
        words = sum(one[name] for one in counts.values() for name, _ in self.sides.values())
        if words > _WORDS_A_MINUTE:
            minutes = round(words / _WORDS_A_MINUTE)
            logger.info(f"binarising {words:,} words, about {minutes} minutes of one core's time")
        run_preprocess(self.preprocess_arguments(folder, list(counts))[0])
        sizes: dict[str, int] = {}
        for name, vocabulary in self.vocabularies.items():
            found = read_dictionary_words(folder / name)
            sizes[name] = len(found)
            if vocabulary.dictionary is None and not self.required < found:
                even = "".join(f" or not even {word}" for word in self.required)
                raise UserError(
                    f"no word{even} occurs {vocabulary.threshold} times or more in the training "
                    f"{vocabulary.text}; give a smaller --{vocabulary.prefix}threshold."
                )
        report["dictionary_words"] = sizes if len(sizes) > 1 else sum(sizes.values())
        types = {name: size + 4 for name, size in sizes.items()}
        deviations = corpus.vocabulary_deviations(report["options"], types)
        if deviations and strict:
            raise UserError(f"--strict: {'; '.join(deviations)}.")
        report["deviations"] += deviations

    def _count_unknown(self, folder: Path, counts: dict[str, dict[str, int]]) -> None:
        for side, (_, unknown) in self.sides.items():
            name = self.dictionary_of(side)
            made = (folder / name).exists()
            words = read_dictionary_words(folder / name) if made else self.vocabularies[name].words
            for split in counts if words is not None else ():
                text = folder / "text" / f"{split}.{side}"
                counts[split][unknown] = count_unknown(text, words or set())
                self.check_unknown(side, split, counts[split])

    def check_unknown(self, side: str, split: str, counts: dict[str, int]) -> None:
        """Refuses a dictionary that is not of the text."""


def _store_record(output: Path, partial: Path) -> dict[str, object]:
    """Entry of ``prepare.json`` on the stores that are listed, or on a whole ``features.h5``."""
    path, listed = output / STORE, partial / STORE_LIST
    if listed.exists():
        found = {}
        for entry in read_json(listed):
            store = FeatureStore(os.path.normpath(output / entry["store"]))
            checksum = store.content_checksum or store.check_content()
            found[entry["store"]] = {"items": len(store), "checksum": checksum}
        return {"stores": found}
    with suppress(UserError):
        if path.is_file() and check_metadata(str(path)):
            store = FeatureStore(path)
            if store.content_checksum:
                return {"store": {"items": len(store), "checksum": store.content_checksum}}
    return {}


def json_line(entry: object) -> str:
    return json.dumps(entry, ensure_ascii=False)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
