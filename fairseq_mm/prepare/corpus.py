"""Examples of a task by split: what releases and one's own JSON lines are read into.

A task declares a :class:`FieldTable`: its text fields, its visual keys, and what messages call its
examples. Everything else about reading, drawing splits and missing features is the same for all.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Union

from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.errors import UserError

POLICIES = ("refuse", "drop", "keep")  # about examples of missing images or videos


class Field(NamedTuple):
    """A required field of an example.

    Attributes:
        name: in JSON lines.
        many: a list of texts, not one text.
        length: of the list; None for any.
        may_be_file: the text may stand in a file of subtitles, which it names.
        remedy: what else to do about an empty text.
    """

    name: str
    many: bool = False
    length: Optional[int] = None
    may_be_file: bool = False
    remedy: str = ""


class FieldTable(NamedTuple):
    """What the examples of a task have, and what they are called.

    Attributes:
        kind: of data, as ``prepare.json`` says it.
        noun, nouns: an example, several.
        groups: what is drawn into a split as a whole.
        texts: text fields.
        visual: field of the images or of the video; None where there are none.
        uniform: optional fields that every line has, or none.
        id_is_key: The ``id`` of an example is the key of its image or video in the feature store.
        repeated: what to do about two examples of one id.
        streamed: examples are read anew at each iteration, since the text of a large data set
            does not fit into memory.
        may_be_plain: files that end with .txt have a text a line.
    """

    kind: str
    noun: str
    nouns: str
    groups: str
    texts: tuple[Field, ...]
    visual: Optional[Field] = None
    uniform: tuple[str, ...] = ()
    id_is_key: bool = False
    repeated: str = ""
    streamed: bool = False
    may_be_plain: bool = False

    @property
    def visual_noun(self) -> str:
        return "video" if self.noun == "video" else "image"


@dataclass
class Example:
    """One example, as it was found.

    Args:
        texts: text field -> its texts: the captions of an image, the sentences of a visual story,
            one prompt. Not tokenised.
        where: ``path:line`` (or the nearest to it), for messages.
        id: the image, video or story; None for a pair without a name.
        visual: keys of its images or of its video in the feature store, in order.
        group: examples of one group stay in one split: an album, a prompt; ``id`` by default.
        places: text field -> where it stands, if elsewhere.
    """

    texts: dict[str, list[str]]
    where: str
    id: Optional[str] = None
    visual: list[str] = field(default_factory=list)
    group: Optional[str] = None
    places: dict[str, str] = field(default_factory=dict)

    def draw_key(self, seed: int) -> str:
        """Orders draws: by seed and group alone, so that a draw depends neither on the order of
        the file nor on the version of Python, and most of it stays when examples are added."""
        group = self.id if self.group is None else self.group
        return hashlib.sha256(f"{seed}\0{group}".encode()).hexdigest()


class Streamed:
    """Examples that are read anew at each iteration.

    Args:
        read: gives them all.
        length: how many.
    """

    def __init__(self, read: Callable[[], Iterable[Example]], length: int) -> None:
        self._read = read
        self._length = length

    def __iter__(self) -> Iterator[Example]:
        return iter(self._read())

    def __len__(self) -> int:
        return self._length


Examples = Union[list[Example], Streamed]


def _nothing_published(options: dict[str, Any], num_types: dict[str, int]) -> list[str]:
    return []


@dataclass
class Corpus:
    """Examples by split, and what was noticed while reading them.

    Args:
        table: of the task.
        name: of the data set, ``own`` for anybody's own.
        division: which division of the data set this is; scores on two do not compare.
        splits: split -> examples, in the order of the files.
        files: that were read.
        options: how they were read, for ``prepare.json``.
        published: split -> examples that the division is known to have.
        further_references: split -> visual stories that are left out, but were written of their
            album all the same, and so are references for others.
        missing: image or video -> why it cannot be used.
        counts: split -> counts of what was left out while reading.
        exceptions: what departs from the rule -> ids concerned.
        notes: one-line remarks for whoever runs the preparation.
        vocabulary_deviations: options of the preparation and dictionary -> number of types -> a
            line for each dictionary that has not the published size.
        write_features: writes the release's own features into the data folder, or into the folder
            whose files move there when all are complete, which is given second; returns a line that
            says so.
        features_written: that line.
    """

    table: FieldTable
    name: str
    division: str
    splits: dict[str, Examples]
    files: list[str]
    options: dict[str, object] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    further_references: dict[str, list[Example]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    vocabulary_deviations: Callable[[dict[str, Any], dict[str, int]], list[str]] = (
        _nothing_published
    )
    write_features: Optional[Callable[[Path, Path], str]] = None
    features_written: str = ""

    def deviations(self) -> list[str]:
        """A line for each split that has not the published number of examples."""
        found = {
            split: len(examples) + len(self.further_references.get(split, []))
            for split, examples in self.splits.items()
        }
        return [
            f"{split}: {found[split]:,} {self.table.nouns} found, {expected:,} expected "
            f"({self.name}, split {self.division})"
            for split, expected in self.published.items()
            if split in found and found[split] != expected
        ]

    def check_ids(self, remedy: str = "") -> None:
        """
        Args:
            remedy: what to do about two examples of one id.

        Raises:
            UserError: if an id stands twice, in one split or in two.
        """
        seen: dict[str, str] = {}
        for examples in self.splits.values():
            for example in examples:
                check_once(example, seen, self.table, remedy)

    def draw(self, split: str, size: int, *, seed: int) -> None:
        """Moves groups of training examples to a split: images with all their captions, prompts
        and albums with all their stories.

        Args:
            split: valid or test.
            size: number of groups; 0 does nothing.
            seed: of the draw.

        Raises:
            UserError: if the split has examples already, or no group would be left for training.
        """
        if size == 0:
            return
        if self.splits.get(split):
            raise UserError(
                f"--{split}-size {size}: the data has {len(self.splits[split])} {split} "
                f"{self.table.nouns} already."
            )
        train = self.splits.get("train", [])
        sizes = Counter(example.draw_key(seed) for example in train)
        if not 0 < size < len(sizes):
            raise UserError(
                f"--{split}-size must be between 1 and {max(0, len(sizes) - 1)} (of {len(sizes)} "
                f"training {self.table.groups} one must be left), but is {size} instead."
            )
        drawn = set(sorted(sizes)[:size])
        moved = sum(sizes[key] for key in drawn)

        def part(inside: bool, length: int) -> Examples:
            def read() -> Iterator[Example]:
                return (one for one in train if (one.draw_key(seed) in drawn) == inside)

            return Streamed(read, length) if isinstance(train, Streamed) else list(read())

        left = part(False, len(train) - moved)
        self.splits = in_order({**self.splits, split: part(True, moved), "train": left})
        if "train" in self.published:
            self.published = {**self.published, "train": self.published["train"] - moved}
        self.division += f", {size} {split} {self.table.groups} drawn with seed {seed}"

    def visual_keys(self) -> list[str]:
        """Every image or video once, in the order of the examples."""
        examples = (example for several in self.splits.values() for example in several)
        return list(dict.fromkeys(key for example in examples for key in example.visual))

    def rename_visual(self, keys: Mapping[str, str]) -> None:
        """Gives images or videos other keys; those that ``keys`` lacks stay as they are."""
        for examples in self.splits.values():
            for example in examples:
                example.visual = [keys.get(key, key) for key in example.visual]
                if self.table.id_is_key:
                    example.id = example.visual[0]

    def leave_out_missing(self, missing: Mapping[str, str], *, policy: str) -> None:
        """Applies a policy to the examples whose images or videos are missing.

        Args:
            missing: image or video -> why it cannot be used.
            policy: ``drop`` leaves those examples out; stories stay references of their album.
                ``keep`` keeps visual stories, without those images, if any image is left.
                ``refuse`` refuses them.

        Raises:
            UserError: if the policy is to refuse, or nothing of a split would be left.
        """
        table = self.table
        if policy == "keep" and table.id_is_key:
            raise UserError(
                f"--missing keep: without its {table.visual_noun} nothing is left of an example; "
                "give drop or refuse."
            )
        needed = any if policy == "keep" else all

        def present(example: Example) -> list[bool]:
            return [key not in missing for key in example.visual]

        for split, examples in self.splits.items():
            incomplete = [one for one in examples if not all(present(one))]
            if not incomplete:
                continue
            absent = [key for one in incomplete for key in one.visual if key in missing]
            of = "" if table.id_is_key else f" of {table.noun} {incomplete[0].id}"
            first = (
                f"{incomplete[0].where}: {table.visual_noun} {absent[0]}{of} is missing "
                f"({missing[absent[0]]})"
            )
            kept = [one for one in examples if needed(present(one))]
            if not kept:
                raise UserError(
                    f"{first}, and so it is with all {split} {table.nouns}; do features or files "
                    "have other names?"
                )
            if policy == "refuse":
                keep = "" if table.id_is_key else ", --missing keep keeps them without the image"
                raise UserError(
                    f"{first}; of {len(examples):,} {split} {table.nouns} {len(incomplete):,} lack "
                    f"features. --missing drop leaves them out{keep}."
                )
            left_out = [one for one in incomplete if not needed(present(one))]
            masked = [one for one in incomplete if needed(present(one))]
            self.splits[split] = kept
            self.missing.update((key, missing[key]) for key in absent)
            found = {f"{split} {table.visual_noun}s missing": list(dict.fromkeys(absent))}
            if not table.id_is_key:
                self.further_references.setdefault(split, []).extend(left_out)
                for what, those in (
                    ("left out, images missing", left_out),
                    ("kept with images masked", masked),
                ):
                    found[f"{split} {table.nouns} {what}"] = [str(one.id) for one in those]
            self.exceptions.update((what, ids) for what, ids in found.items() if ids)


def check_once(example: Example, seen: dict[str, str], table: FieldTable, remedy: str = "") -> None:
    """
    Args:
        example: added to ``seen``.
        seen: id -> where it stands.
        table: of the task.
        remedy: what to do about two examples of one id.

    Raises:
        UserError: if an example of the same id was seen before.
    """
    if example.id is not None and example.id in seen:
        raise UserError(
            f"{example.where}: {table.noun} {example.id} was given before, at "
            f"{seen[example.id]}{remedy or table.repeated}."
        )
    if example.id is not None:
        seen[example.id] = example.where


def in_order(splits: Mapping[str, Examples]) -> dict[str, Examples]:
    """Splits that there are: train, valid, test."""
    return {split: splits[split] for split in SPLITS if split in splits}
