"""VIST (Huang et al. 2016): official JSON of stories, and of its tiers of descriptions.

A file has ``images`` and ``annotations``, a list of lists of one object each. A story is five
annotations of one ``story_id``: ``photo_flickr_id``, ``text`` (tokenised, lower case, names as
``[male]``), ``original_text``, ``album_id`` and ``worker_arranged_photo_order``, which alone says
where in the story it stands: the order of the file is not that of the story everywhere.

Descriptions in sequence were released in an early version alone and have the same fields, or
``photo_order_in_story``; descriptions in isolation have no ``story_id``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_mm.data.input_files import check_id, read_json
from fairseq_mm.data.visual_story_text import NUM_IMAGES
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import CaptionCorpus, CaptionItem
from fairseq_mm.prepare.visual_stories import VisualStory, VisualStoryCorpus

VIST_STORIES = {"train": 40_155, "valid": 4_990, "test": 5_055}
STORIES, IN_SEQUENCE, IN_ISOLATION = (
    "story-in-sequence",
    "description-in-sequence",
    "description-in-isolation",
)
TIERS = (STORIES, IN_SEQUENCE, IN_ISOLATION)
TEXT_FIELDS = ("text", "original_text")

_RELEASE_SPLITS = {"train": "train", "valid": "val", "test": "test"}
_ORDER_FIELDS = ("worker_arranged_photo_order", "photo_order_in_story")


def read_vist_stories(
    folder: Path, *, tier: str = STORIES, text_field: str = "text"
) -> VisualStoryCorpus:
    """
    Args:
        folder: with ``{train,val,test}.<tier>.json``; a split may be missing.
        tier: ``story-in-sequence`` or ``description-in-sequence``.
        text_field: ``text`` or ``original_text``.

    Returns:
        corpus: stories in the order in which they begin in the file. Those that have not five
        sentences at five different positions, or are of two albums, are left out and listed.

    Raises:
        UserError: if there is no split, or a file is malformed.
    """
    corpus = VisualStoryCorpus(
        name="vist",
        split="official",
        stories={},
        files=[],
        published=VIST_STORIES if tier == STORIES else {},
    )
    for split, path in _files(folder, tier).items():
        corpus.files.append(str(path))
        # position, album, image, sentence: 200,000 in the full release
        parts: dict[str, list[tuple[int, str, str, str]]] = {}
        for where, annotation in _annotations(path):
            key = check_id(_text(annotation, "story_id", where), where, what="a story")
            part = (
                _order(annotation, where),
                _text(annotation, "album_id", where),
                check_id(_text(annotation, "photo_flickr_id", where), where),
                _text(annotation, text_field, where),
            )
            parts.setdefault(key, []).append(part)
        corpus.stories[split] = []
        malformed: list[str] = []
        for key, several in parts.items():
            positions, albums, images, sentences = map(list, zip(*sorted(several)))
            if len(several) == len(set(positions)) == NUM_IMAGES and len(set(albums)) == 1:
                story = VisualStory(key, albums[0], images, sentences, where=str(path))
                corpus.stories[split].append(story)
            else:
                malformed.append(key)
        if malformed:
            what = f"{split} stories left out, not five sentences at five positions of one album"
            corpus.exceptions[what] = malformed
    return corpus


def read_vist_descriptions(folder: Path, *, text_field: str = "text") -> CaptionCorpus:
    """Images with their descriptions in isolation.

    Args:
        folder: with ``{train,val,test}.description-in-isolation.json``; a split may be missing.
        text_field: ``text`` or ``original_text``.

    Raises:
        UserError: if there is no split, or a file is malformed.
    """
    name = f"vist, {IN_ISOLATION}, {text_field}"
    corpus = CaptionCorpus(name=name, split="official", items={}, files=[])
    for split, path in _files(folder, IN_ISOLATION).items():
        corpus.files.append(str(path))
        items: dict[str, CaptionItem] = {}
        for where, annotation in _annotations(path):
            key = check_id(_text(annotation, "photo_flickr_id", where), where)
            item = items.setdefault(key, CaptionItem(key, [], where))
            item.captions.append(_text(annotation, text_field, where))
        corpus.items[split] = list(items.values())
    return corpus


def _files(folder: Path, tier: str) -> dict[str, Path]:
    """Split -> file, of those that are there."""
    names = {split: f"{name}.{tier}.json" for split, name in _RELEASE_SPLITS.items()}
    files = {split: folder / name for split, name in names.items() if (folder / name).exists()}
    if not files:
        raise UserError(f"{folder}: none of {', '.join(names.values())} found in this folder.")
    return files


def _annotations(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """``path: annotations[number]`` and the object there."""
    content = read_json(path)
    annotations = content.get("annotations") if isinstance(content, dict) else None
    if not isinstance(annotations, list):
        raise UserError(f"{path}: must be a JSON object with a list `annotations`.")
    for number, several in enumerate(annotations):
        where = f"{path}: annotations[{number}]"
        if not isinstance(several, list) or len(several) != 1 or not isinstance(several[0], dict):
            raise UserError(f"{where}: must be a list of one JSON object.")
        yield where, several[0]


def _text(annotation: dict[str, Any], name: str, where: str) -> str:
    """A field that is text, or a number that stands for an id."""
    value = annotation.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and name not in TEXT_FIELDS:
        value = str(value)
    if not isinstance(value, str):
        found = "is missing" if name not in annotation else f"is {value!r:.60} instead"
        raise UserError(f"{where}: `{name}` must be text, but {found}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: `{name}` holds half a character (a lone surrogate).") from None
    return value


def _order(annotation: dict[str, Any], where: str) -> int:
    name = next((name for name in _ORDER_FIELDS if name in annotation), _ORDER_FIELDS[0])
    value = annotation.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        found = "is missing" if name not in annotation else f"is {value!r:.60} instead"
        raise UserError(f"{where}: `{name}` must be a whole number, but {found}.")
    return value
