"""Stories of five images, by split: what ``fairseq-mm prepare stories`` works on.

Readers of the official release (``release_vist.py``) and of one's own JSON lines make a
:class:`VisualStoryCorpus`; ``prepared_visual_stories.py`` writes it as a data folder.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from fairseq_mm.data.input_files import SPLITS, check_id, parse_object, read_lines
from fairseq_mm.data.visual_story_text import NUM_IMAGES
from fairseq_mm.errors import UserError


@dataclass
class VisualStory:
    """Five images and what is told of each.

    Args:
        id: of the story.
        album: which other stories tell of the same event.
        images: five keys in the feature store, in the story's order.
        sentences: five, as they were found, not tokenised.
        where: ``path:line`` (or the nearest to it), for messages.
    """

    id: str
    album: str
    images: list[str]
    sentences: list[str]
    where: str


@dataclass
class VisualStoryCorpus:
    """Stories by split, and what was noticed while reading them.

    Args:
        name: of the data set, ``own`` for anybody's own.
        split: which division of the data set this is.
        stories: split -> stories to train and to be judged on, in the order of the files.
        files: what was read.
        published: split -> stories that the data set is known to have.
        references_only: split -> stories that are left out, but were told of their album all the
            same, and so are references for others.
        missing: image -> why it cannot be used.
        exceptions: what departs from the rule -> ids concerned.
        notes: one-line remarks for whoever runs the preparation.
    """

    name: str
    split: str
    stories: dict[str, list[VisualStory]]
    files: list[str]
    published: dict[str, int] = field(default_factory=dict)
    references_only: dict[str, list[VisualStory]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def deviations(self) -> list[str]:
        """A line for each split that has not the published number of stories."""
        found = {
            split: len(stories) + len(self.references_only.get(split, []))
            for split, stories in self.stories.items()
        }
        return [
            f"{split}: {found[split]:,} stories found, {expected:,} expected ({self.name})"
            for split, expected in self.published.items()
            if split in found and found[split] != expected
        ]

    def images(self) -> list[str]:
        """Every image once, in the order of the stories."""
        return list(
            dict.fromkeys(
                image
                for stories in self.stories.values()
                for story in stories
                for image in story.images
            )
        )

    def rename_images(self, keys: dict[str, str]) -> None:
        """Gives images other keys; those that ``keys`` lacks stay as they are."""
        for several in (self.stories, self.references_only):
            for split, stories in several.items():
                several[split] = [
                    replace(story, images=[keys.get(image, image) for image in story.images])
                    for story in stories
                ]


def read_visual_stories_jsonl(
    paths: dict[Optional[str], list[Path]], *, keys: str = "name"
) -> VisualStoryCorpus:
    """Reads one's own data: ``{"images": [five], "sentences": [five]}``, one story a line.

    Optional fields are ``id``, ``album`` (stories of one album are references for each other, and
    are drawn into a split together; by default stories of the same images) and ``split`` (train,
    valid or test); a field that one line has must be in every line.

    Args:
        paths: split -> files that hold it alone; None -> files whose lines may name a split and
            belong to train otherwise.
        keys: what images are called in the feature store: ``name``, the file's name, or
            ``path``, as they stand in ``images``.

    Raises:
        UserError: ``path:line`` and what is wrong there.
    """
    stories: dict[str, list[VisualStory]] = {}
    first_with: dict[tuple[str, bool], str] = {}
    ids: dict[str, str] = {}
    where_keys: dict[str, tuple[str, str]] = {}
    for file_split, files in paths.items():
        for path in files:
            for number, line in read_lines(path):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                entry = _parse(line, where)
                optional = ["id", "album"] + (["split"] if file_split is None else [])
                _check_uniform(entry, optional, where, first_with)
                split = entry["split"]
                if file_split is not None and split not in (None, file_split):
                    raise UserError(
                        f"{where}: says split {split}, but the file is given as {file_split}."
                    )
                images = [
                    _image_key(image, where, keys=keys, seen=where_keys)
                    for image in entry["images"]
                ]
                key = entry["id"]
                if key is None:
                    key = str(len(ids) + 1)
                first = ids.setdefault(check_id(key, where, what="a story"), where)
                if first != where:
                    raise UserError(f"{where}: id {key} was given before, at {first}.")
                album = "\t".join(images) if entry["album"] is None else entry["album"]
                stories.setdefault(split or file_split or "train", []).append(
                    VisualStory(key, album, images, entry["sentences"], where)
                )
    named = [str(path) for files in paths.values() for path in files]
    if not stories:
        raise UserError(f"{', '.join(named)}: no stories.")
    return VisualStoryCorpus(
        name="own",
        split="as given",
        stories={split: stories[split] for split in SPLITS if split in stories},
        files=named,
    )


def _parse(line: str, where: str) -> dict[str, Any]:
    """The fields ``images``, ``sentences``, ``id``, ``album`` and ``split`` of a line, checked."""
    entry = parse_object(line, where)
    texts = []
    for name in ("images", "sentences"):
        if name not in entry:
            raise UserError(
                f"{where}: field `{name}` is missing; found {', '.join(entry) or 'none'}."
            )
        values = entry[name]
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise UserError(
                f"{where}: `{name}` must be a list of {NUM_IMAGES} texts, but is "
                f"{json.dumps(values)[:80]} instead."
            )
        if len(values) != NUM_IMAGES:
            raise UserError(
                f"{where}: a story has {NUM_IMAGES} {name}, but this one has {len(values)}."
            )
        texts += values
    for name in ("id", "album", "split"):
        value = entry.setdefault(name, None)
        if value is not None and not isinstance(value, str):
            raise UserError(
                f"{where}: `{name}` must be text, but is {json.dumps(value)[:80]} instead."
            )
        texts += [value or ""]
    if entry["split"] not in (None, *SPLITS):
        raise UserError(
            f"{where}: `split` must be train, valid or test, but is {entry['split']!r} instead."
        )
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: text holds half a character (a lone surrogate).") from None
    return entry


def _check_uniform(
    entry: dict[str, Any], names: list[str], where: str, first_with: dict[tuple[str, bool], str]
) -> None:
    for name in names:
        given = entry[name] is not None
        first_with.setdefault((name, given), where)
        if (name, not given) in first_with:
            without, having = (first_with[name, found] for found in (False, True))
            raise UserError(
                f"{without}: names no {name}, but {having} does; give one to every line or to none."
            )


def _image_key(image: str, where: str, *, keys: str, seen: dict[str, tuple[str, str]]) -> str:
    """The image's key.

    Args:
        image: as it stands in ``images``.
        where: of it.
        keys: ``name`` or ``path``.
        seen: key -> image that has it, and where; two images of one key would be told apart
            neither in the store nor in the text.
    """
    key = check_id(image if keys == "path" else PurePosixPath(image).name, where)
    other, elsewhere = seen.setdefault(key, (image, where))
    if other != image:
        raise UserError(
            f"{where}: {image} and {other} ({elsewhere}) would both be called {key} in the feature "
            "store; --keys path tells them apart."
        )
    return key


def draw_albums(corpus: VisualStoryCorpus, split: str, size: int, *, seed: int) -> None:
    """Moves ``size`` albums of the training stories, with all their stories, to ``split``.

    Albums are ordered by a hash of seed and album, so the draw depends neither on the order of the
    file nor on the version of Python, and most of it stays when albums are added.

    Raises:
        UserError: if the split has stories already, or too few would be left for training.
    """
    if size == 0:
        return
    if corpus.stories.get(split):
        raise UserError(
            f"--{split}-size {size}: the data has {len(corpus.stories[split])} {split} stories "
            "already."
        )
    train = corpus.stories.get("train", [])
    albums = {story.album for story in train}
    if not 0 < size < len(albums):
        raise UserError(
            f"--{split}-size must be between 1 and {max(1, len(albums) - 1)} (of {len(albums)} "
            f"albums of training stories one must be left), but is {size} instead."
        )

    def draw_order(album: str) -> str:
        return hashlib.sha256(f"{seed}\0{album}".encode()).hexdigest()

    drawn = set(sorted(albums, key=draw_order)[:size])
    corpus.stories[split] = [story for story in train if story.album in drawn]
    corpus.stories["train"] = [story for story in train if story.album not in drawn]
    corpus.stories = {name: corpus.stories[name] for name in SPLITS if name in corpus.stories}
    corpus.split += f", {size} {split} albums drawn with seed {seed}"
