"""Defines the corpus: the examples of a task by split, from releases or a user's own JSON lines.

The code that samples splits and leaves out examples without features is common to all kinds of
records.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional, Union

from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.data.record_split import Kind
from fairseq_mm.errors import UserError

POLICIES = ("refuse", "drop", "keep")  # for examples whose images or videos are missing


@dataclass
class Example:
    """One example before tokenization.

    Args:
        texts: Dict from the name of a text field to its texts.
        where: ``path:line`` in the input, or the path alone, for messages.
        visual: Keys of the example's images or video in the feature store, in order.
        group: Name of the examples that must be in one split, such as an album or a prompt; None
            if the example is a group of its own.
        places: ``where`` of a text field, if it differs.
    """

    texts: dict[str, list[str]]
    where: str
    id: Optional[str] = None
    visual: list[str] = field(default_factory=list)
    group: Optional[str] = None
    places: dict[str, str] = field(default_factory=dict)

    def draw_key(self, seed: int) -> str:
        """Return a hash of seed and group; :meth:`Corpus.draw` selects the smallest hashes."""
        # A digest of seed and group, since hash() differs between processes: the sample then
        # depends neither on the order of the file nor on the version of Python.
        group = self.id if self.group is None else self.group
        return hashlib.sha256(f"{seed}\0{group}".encode()).hexdigest()


class Streamed:
    """Examples that are too many for memory: each iteration calls ``read`` again."""

    def __init__(self, read: Callable[[], Iterable[Example]], length: int) -> None:
        self._read = read
        self._length = length

    def __iter__(self) -> Iterator[Example]:
        return iter(self._read())

    def __len__(self) -> int:
        return self._length


Examples = Union[list[Example], Streamed]


@dataclass
class Corpus:
    """Examples of a data set by split, with notes and counts of the function that read them.

    Args:
        name: Name of the data set; ``own`` for a user's own data.
        division: Name of the division into splits; scores on different divisions are not
            comparable.
        splits: Dict from split to examples, in the order of the files.
        files: Paths of the files that were read.
        options: Options with which the data was read, for ``prepare.json``.
        published: Dict from split to the number of examples that the authors of the data set state.
        further_references: Dict from split to visual stories that are no examples, but references
            of their album.
        missing: Dict from the key of an image or video to the reason why it cannot be used.
        counts: Dict from split to the counts that were made when it was read.
        exceptions: Dict from the description of a kind of irregular examples to their ids.
        published_types: Dict from the file name of a dictionary to its published size, fairseq's
            control symbols included.
        write_features: Function that writes the release's features, and returns a line for the
            user. Its arguments are the data folder, and a temporary folder whose files are moved
            there at the end.
        features_written: Line that ``write_features`` returned.
    """

    kind: Kind
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
    published_types: dict[str, int] = field(default_factory=dict)
    write_features: Optional[Callable[[Path, Path], str]] = None
    features_written: str = ""

    def __post_init__(self) -> None:
        # a file may name its splits in any order, prepare.json and messages have one
        self.splits = _in_order(self.splits)

    def deviations(self) -> list[str]:
        """Return a message for each split whose number of examples differs from the published
        number."""
        # stories without images are no examples here, but the published number counts them
        counts = {
            split: len(examples) + len(self.further_references.get(split, []))
            for split, examples in self.splits.items()
        }
        return [
            f"{split}: {counts[split]:,} {self.kind.nouns} found, {expected:,} expected "
            f"({self.name}, split {self.division})"
            for split, expected in self.published.items()
            if split in counts and counts[split] != expected
        ]

    def add_exception(self, what: str, ids: list[str]) -> None:
        """Add ids to ``exceptions``, unless the list is empty."""
        if ids:
            self.exceptions[what] = ids

    def check_ids(self, remedy: str = "") -> None:
        """Raise UserError if an id occurs twice; the message ends with ``remedy``."""
        seen: dict[str, str] = {}
        for examples in self.splits.values():
            for example in examples:
                check_once(f"{self.kind.noun} {example.id}", example.where, seen, remedy)

    def draw(self, split: str, size: int, *, seed: int = 1) -> None:
        """Move a random sample of the training examples to ``split``.

        Groups of examples, such as albums with all their stories, are moved as a whole; ``size`` is
        the number of groups. With size 0 nothing changes.
        """
        if size == 0:
            return
        train = self.splits.get("train", [])
        sizes = Counter(example.draw_key(seed) for example in train)
        if self.splits.get(split) or size >= len(sizes):
            present = len(self.splits.get(split, ()))
            raise UserError(
                f"--{split}-size must be below {len(sizes)}, the number of training "
                f"{self.kind.groups}, and the data must have no {split} split of its own, but it "
                f"is {size}, and the data has {present:,} {split} {self.kind.nouns}."
            )
        # the first keys in order, so that a larger sample with the same seed contains a smaller one
        drawn = set(sorted(sizes)[:size])
        moved = sum(sizes[key] for key in drawn)

        def part(inside: bool, length: int) -> Examples:
            def read() -> Iterator[Example]:
                return (example for example in train if (example.draw_key(seed) in drawn) == inside)

            # a streamed split is filtered at each iteration, since it does not fit into memory
            return Streamed(read, length) if isinstance(train, Streamed) else list(read())

        left = part(False, len(train) - moved)
        self.splits = _in_order({**self.splits, split: part(True, moved), "train": left})
        # otherwise deviations() would report the moved examples as missing from train
        if "train" in self.published:
            self.published = {**self.published, "train": self.published["train"] - moved}
        self.division += f", {size} {split} {self.kind.groups} drawn with seed {seed}"

    def visual_keys(self) -> list[str]:
        """Return the key of every image or video once, in the order of the examples."""
        examples = (example for split in self.splits.values() for example in split)
        # not a set: the order decides which missing file a message names
        return list(dict.fromkeys(key for example in examples for key in example.visual))

    def leave_out_missing(self, missing: Mapping[str, str], *, policy: str) -> None:
        """Apply a policy to the examples whose images or videos are missing.

        Args:
            missing: Dict from the key of a missing image or video to the reason.
            policy: ``drop`` leaves out every example that lacks one; visual stories stay as
                references of their album. ``keep`` leaves out visual stories that lack all images.
                ``refuse`` raises UserError.
        """
        kind = self.kind
        needed = any if policy == "keep" else all

        def present(example: Example) -> list[bool]:
            return [key not in missing for key in example.visual]

        for split, examples in self.splits.items():
            incomplete = [example for example in examples if not all(present(example))]
            if not incomplete:
                continue
            absent = [key for example in incomplete for key in example.visual if key in missing]
            owner = "" if kind.id_is_key else f" of {kind.noun} {incomplete[0].id}"
            first = (
                f"{incomplete[0].where}: {kind.visual_noun} {absent[0]}{owner} is missing "
                f"({missing[absent[0]]})"
            )
            usable = [example for example in examples if needed(present(example))]
            # A split that lacks all its images is no loss of single files, but a mismatch of names,
            # which even --missing drop must not hide.
            if not usable:
                raise UserError(
                    f"{first}, and so it is with all {split} {kind.nouns}; do features or files "
                    "have other names?"
                )
            if policy == "refuse":
                keep = "" if kind.id_is_key else ", --missing keep keeps them without the image"
                raise UserError(
                    f"{first}; of {len(examples):,} {split} {kind.nouns} {len(incomplete):,} lack "
                    f"features. --missing drop leaves them out{keep}."
                )
            left_out = [example for example in incomplete if not needed(present(example))]
            masked = [example for example in incomplete if needed(present(example))]
            self.splits[split] = usable
            self.missing.update((key, missing[key]) for key in absent)
            exceptions = {f"{split} {kind.visual_noun}s missing": list(dict.fromkeys(absent))}
            if not kind.id_is_key:
                # people wrote these stories about the album: they still serve as its references
                self.further_references.setdefault(split, []).extend(left_out)
                names = f"{split} {kind.nouns}"
                exceptions[f"{names} left out, images missing"] = [str(e.id) for e in left_out]
                exceptions[f"{names} kept with images masked"] = [str(e.id) for e in masked]
            for what, ids in exceptions.items():
                self.add_exception(what, ids)


def check_once(what: str, where: str, seen: dict[str, str], remedy: str = "") -> None:
    """Record in ``seen`` that ``what``, such as ``image 1.jpg``, occurs at ``where``; raise
    UserError if it occurred before."""
    if what in seen:
        raise UserError(f"{where}: {what} was given before, at {seen[what]}{remedy}.")
    seen[what] = where


def _in_order(splits: Mapping[str, Examples]) -> dict[str, Examples]:
    return {split: splits[split] for split in SPLITS if split in splits}
