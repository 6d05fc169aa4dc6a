"""Prompts and their stories, by split: what ``fairseq-mm prepare prompts`` works on.

Readers of the official release (``release_writingprompts.py``) and of one's own JSON lines make a
:class:`StoryCorpus`; ``prepared_prompts.py`` writes it as a data folder. Stories are read one by
one, never all at once: those of WritingPrompts are 200 million words.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from fairseq_mm.data.input_files import SPLITS, check_id, read_lines
from fairseq_mm.errors import UserError


@dataclass
class StoryPair:
    """A prompt and its story, as they were found.

    Args:
        split: train, valid or test.
        prompt: text.
        story: text.
        where: ``path:line`` of the prompt and of the story, for messages.
        id: the user's name for the pair.
    """

    split: str
    prompt: str
    story: str
    where: tuple[str, str]
    id: Optional[str] = None


def _nothing_published(options: dict[str, Any], num_types: dict[str, int]) -> list[str]:
    return []


@dataclass
class StoryCorpus:
    """Pairs, and what was noticed while their files were looked through.

    Args:
        name: of the data set, ``own`` for anybody's own.
        split: which division of the data set this is.
        files: what was read.
        read: gives the pairs, from the files, each time it is called.
        num_pairs: split -> pairs that ``read`` gives.
        has_ids: whether they have ids.
        unpaired: split -> lines left out because the other file has none to them.
        published: split -> pairs that the data set is known to have.
        vocabulary_deviations: options of the preparation and file -> number of types of its
            dictionary -> a line for each that is not as published, with the likely cause.
    """

    name: str
    split: str
    files: list[str]
    read: Callable[[], Iterator[StoryPair]]
    num_pairs: dict[str, int]
    has_ids: bool = False
    unpaired: dict[str, int] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    vocabulary_deviations: Callable[[dict[str, Any], dict[str, int]], list[str]] = (
        _nothing_published
    )

    def deviations(self) -> list[str]:
        """A line for each split that has not the published number of pairs."""
        return [
            f"{split}: {self.num_pairs[split]:,} pairs found, {expected:,} expected ({self.name})"
            for split, expected in self.published.items()
            if split in self.num_pairs and self.num_pairs[split] != expected
        ]


def _parse(line: str, where: str) -> dict[str, Optional[str]]:
    """The fields ``prompt``, ``story``, ``split`` and ``id`` of a line, checked."""
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error}).") from None
    if not isinstance(entry, dict):
        raise UserError(f"{where}: must be a JSON object, but is {type(entry).__name__} instead.")
    fields = {name: entry.get(name) for name in ("prompt", "story", "split", "id")}
    for name in ("prompt", "story"):
        if name not in entry:
            raise UserError(
                f"{where}: field `{name}` is missing; found {', '.join(entry) or 'none'}."
            )
    for name, value in fields.items():
        optional = name in ("split", "id") and value is None
        if not optional and not isinstance(value, str):
            raise UserError(
                f"{where}: `{name}` must be text, but is {json.dumps(value)[:80]} instead."
            )
    if fields["split"] is not None and fields["split"] not in SPLITS:
        raise UserError(
            f"{where}: `split` must be train, valid or test, but is {fields['split']!r} instead."
        )
    try:
        "".join(value for value in fields.values() if value).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: text holds half a character (a lone surrogate).") from None
    return fields


def _entries(paths: dict[Optional[str], list[Path]]) -> Iterator[tuple[str, Optional[str], dict]]:
    """``path:line``, the split that the file is given as, and the fields of each line."""
    for file_split, files in paths.items():
        for path in files:
            for number, line in read_lines(path):
                if line.strip():
                    where = f"{path}:{number}"
                    yield where, file_split, _parse(line, where)


class _Uniformity:
    """Refuses data of which some lines have a field and others do not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first: dict[bool, str] = {}

    def see(self, value: Optional[str], where: str) -> None:
        self.first.setdefault(value is not None, where)
        if len(self.first) == 2:
            raise UserError(
                f"{self.first[False]}: names no {self.name}, but {self.first[True]} does; give "
                "one to every line or to none."
            )


def read_prompts_jsonl(
    paths: dict[Optional[str], list[Path]],
    *,
    draw: Optional[dict[str, int]] = None,
    seed: int = 1,
) -> StoryCorpus:
    """Looks through one's own data: ``{"prompt": "...", "story": "..."}``, one pair a line.

    Optional fields are ``split`` (train, valid or test) and ``id``.

    Args:
        paths: split -> files that hold it alone; None -> files whose lines may name a split and
            belong to train otherwise.
        draw: split -> training prompts to move there, with all their stories: a story whose prompt
            was trained on says little. Prompts are ordered by a hash of seed and prompt, so the
            draw does not depend on the order of the file, and most of it stays when pairs are
            added.
        seed: of the draw.

    Raises:
        UserError: ``path:line`` and what is wrong there, if nothing is for training, or if
            ``draw`` cannot be done.
    """
    draw = {split: size for split, size in (draw or {}).items() if size}
    files = [path for several in paths.values() for path in several]
    for path in files:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: must be a file, as it is read twice, but is none.")

    def draw_key(prompt: str) -> str:
        return hashlib.sha256(f"{seed}\0{' '.join(prompt.split())}".encode()).hexdigest()

    num_pairs: Counter[str] = Counter()
    stories_of: Counter[str] = Counter()  # draw key of a training prompt -> stories
    ids: dict[str, str] = {}
    splits_named, ids_given = _Uniformity("split"), _Uniformity("id")
    for where, file_split, fields in _entries(paths):
        if file_split is None:
            splits_named.see(fields["split"], where)
        elif fields["split"] not in (None, file_split):
            raise UserError(
                f"{where}: says split {fields['split']}, but the file is given as {file_split}."
            )
        ids_given.see(fields["id"], where)
        if fields["id"] is not None:
            first = ids.setdefault(check_id(fields["id"], where, what="a pair"), where)
            if first != where:
                raise UserError(f"{where}: id {fields['id']} was given before, at {first}.")
        split = file_split or fields["split"] or "train"
        num_pairs[split] += 1
        if draw and split == "train":
            stories_of[draw_key(fields["prompt"])] += 1
    if not num_pairs["train"]:
        raise UserError(f"{', '.join(map(str, files))}: no pairs for training.")
    drawn = _drawn_splits(draw, sorted(stories_of), num_pairs)
    for key, split in drawn.items():
        num_pairs["train"] -= stories_of[key]
        num_pairs[split] += stories_of[key]

    def read() -> Iterator[StoryPair]:
        for where, file_split, fields in _entries(paths):
            split = file_split or fields["split"] or "train"
            if drawn and split == "train":
                split = drawn.get(draw_key(fields["prompt"]), split)
            yield StoryPair(split, fields["prompt"], fields["story"], (where, where), fields["id"])

    what = "".join(f", {n} {split} prompts drawn with seed {seed}" for split, n in draw.items())
    return StoryCorpus(
        name="own",
        split="as given" + what,
        files=[str(path) for path in files],
        read=read,
        num_pairs={split: num_pairs[split] for split in SPLITS if num_pairs[split]},
        has_ids=bool(ids),
    )


def _drawn_splits(
    draw: dict[str, int], keys: list[str], num_pairs: "Counter[str]"
) -> dict[str, str]:
    """Key of a training prompt -> the split that it is moved to."""
    drawn: dict[str, str] = {}
    for split, size in draw.items():
        if num_pairs[split]:
            raise UserError(
                f"--{split}-size {size}: the data has {num_pairs[split]} {split} pairs already."
            )
        left = len(keys) - len(drawn)
        if not 0 < size < left:
            raise UserError(
                f"--{split}-size must be between 1 and {left - 1} (of {left} training prompts one "
                f"must be left), but is {size} instead."
            )
        drawn.update((key, split) for key in keys[len(drawn) : len(drawn) + size])
    return drawn
