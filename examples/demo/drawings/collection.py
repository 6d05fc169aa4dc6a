"""Data of the demo: images in a folder, texts for ``prepare``, and the content of each image.

    images/train-0001.jpg ...     images; train-0001-1.jpg to train-0001-5.jpg for a story
    shown.jsonl                   content of each image, to check texts
    captions.jsonl                image, captions, split
    stories.jsonl                 images, sentences, split

Captioned training and validation images have no held-out combination of things; every second test
image has one.
"""

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drawings.captions import is_true, write_captions
from drawings.drawn_images import draw
from drawings.drawn_stories import NUM_MOMENTS, Moment, change_between, compose_story
from drawings.scenes import Scene, compose_scene, held_out_combinations
from drawings.story_sentences import describes, write_story
from fairseq_mm.data.input_files import read_objects
from fairseq_mm.errors import UserError

CAPTIONS_PER_IMAGE = 3
QUALITY = 95
_SHOWN = "shown.jsonl"
# kind of content that a sentence must tell -> its description
KINDS = {
    "first": "what is there at first",
    "appear": "a thing comes",
    "leave": "a thing goes",
    "colour": "a thing gets another colour",
    "size": "a thing grows or shrinks",
    "move": "two things move",
    "light": "night falls or day breaks",
}


class CaptionVerdict(NamedTuple):
    """Verdict on one caption.

    Attributes:
        key: Name of the image.
        right: Whether the caption is true of the image.
        unseen: Whether no captioned training image has the image's combination.
    """

    key: str
    right: bool
    unseen: bool


class SentenceVerdict(NamedTuple):
    """Verdict on one sentence of a story.

    Attributes:
        story: Name of the story.
        number: Number of the image, from 1.
        kind: Kind of content that the sentence must tell, one of ``KINDS``.
        right: Whether the sentence tells it.
    """

    story: str
    number: int
    kind: str
    right: bool


def draw_images(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draw images with captions; ``captions.jsonl`` is written last.

    Args:
        folder: Existing folder.
        sizes: Number of images of each split.
        seed: Seed of the images and captions.
    """
    held_out = held_out_combinations(seed)
    images = _new_folder(folder)
    captions, scenes = [], []
    for split, number in _numbered(sizes):
        name = f"{split}-{number:04}.jpg"
        rng = random.Random(f"{seed} {name}")
        unseen = split == "test" and number % 2 == 0
        combinations = {"required" if unseen else "excluded": held_out}
        scene = compose_scene(rng, **combinations)
        draw(scene, rng).save(images / name, quality=QUALITY)
        sentences = write_captions(scene, rng, CAPTIONS_PER_IMAGE)
        captions.append({"image": f"images/{name}", "captions": sentences, "split": split})
        scenes.append({"id": name, "unseen": unseen, "scene": scene.to_json()})
    _write_jsonl(folder / _SHOWN, scenes)
    _write_jsonl(folder / "captions.jsonl", captions)


def draw_stories(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draw stories; ``stories.jsonl`` is written last.

    Args:
        folder: Existing folder.
        sizes: Number of stories of each split.
        seed: Seed of the images and sentences.
    """
    images = _new_folder(folder)
    stories, shown = [], []
    for split, number in _numbered(sizes):
        story = f"{split}-{number:04}"
        rng = random.Random(f"{seed} story {story}")
        moments, names = compose_story(rng), image_names(story)
        for name, moment in zip(names, moments):
            image = draw(moment.scene, rng, night=moment.night)
            image.save(images / name, quality=QUALITY)
        paths = [f"images/{name}" for name in names]
        sentences = write_story(moments, rng)
        stories.append({"id": story, "images": paths, "sentences": sentences, "split": split})
        shown.append({"id": story, "moments": [moment.to_json() for moment in moments]})
    _write_jsonl(folder / _SHOWN, shown)
    _write_jsonl(folder / "stories.jsonl", stories)


def draw_with_fresh_story(folder: Path, sizes: Mapping[str, int], seed: int) -> None:
    """Draw stories, and one more in ``folder/fresh`` that belongs to no split."""
    (folder / "fresh").mkdir(exist_ok=True)
    draw_stories(folder / "fresh", {"fresh": 1}, seed=seed)
    draw_stories(folder, sizes, seed=seed)


def _numbered(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(split, number) for split, size in sizes.items() for number in range(1, size + 1)]


def _new_folder(folder: Path) -> Path:
    images = folder / "images"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir()
    return images


def _write_jsonl(path: Path, records: list[dict]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    os.replace(partial, path)


def image_names(story: str) -> list[str]:
    """Return the file names of a story's images."""
    return [f"{story}-{number}.jpg" for number in range(1, NUM_MOMENTS + 1)]


def get_story_name(names: Sequence[str]) -> str:
    """Return the name of the story with these images, the inverse of :func:`image_names`."""
    return names[0].rpartition("-")[0]


def check_captions(folder: Path, captions: Mapping[str, str]) -> list[CaptionVerdict]:
    """Check whether captions are true of their images.

    Args:
        folder: Folder that :func:`draw_images` filled.
        captions: Generated text by name of the image.

    Raises:
        UserError: If an image was not drawn.
    """
    records = _read_shown(folder, captions, "image")
    scenes = {key: Scene.from_json(records[key]["scene"]) for key in captions}
    return [
        CaptionVerdict(key, is_true(caption, scenes[key]), records[key]["unseen"])
        for key, caption in captions.items()
    ]


def check_stories(folder: Path, stories: Mapping[str, Sequence[str]]) -> list[SentenceVerdict]:
    """Check whether sentences say what happens in their images.

    Args:
        folder: Folder that :func:`draw_stories` filled.
        stories: Sentences by name of the story. Missing ones count as empty; a sixth is ignored.

    Raises:
        UserError: If a story was not drawn.
    """
    records = _read_shown(folder, stories, "story")
    verdicts = []
    for story, sentences in stories.items():
        moments = [Moment.from_json(record) for record in records[story]["moments"]]
        padded = [*sentences[:NUM_MOMENTS], *[""] * (NUM_MOMENTS - len(sentences))]
        for i, (before, after) in enumerate(zip([None, *moments], moments)):
            kind = "first" if before is None else change_between(before, after)
            verdicts.append(
                SentenceVerdict(story, i + 1, kind, describes(padded[i], before, after))
            )
    return verdicts


def _read_shown(folder: Path, wanted: Mapping[str, Any], noun: str) -> dict[str, Any]:
    path = folder / _SHOWN
    records = {record["id"]: record for _, record in read_objects(path)}
    for key in wanted:
        if key not in records:
            raise UserError(f"{path}: has no {noun} {key!r}.")
    return records
