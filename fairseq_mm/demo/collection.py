"""The demo's data: images in a folder, texts for ``prepare``, and what the images show.

    images/train-0001.jpg ...     of stories train-0001-1.jpg to train-0001-5.jpg
    shown.jsonl                   what each image shows, to check texts
    captions.jsonl                image, captions, split
    stories.jsonl                 images, sentences, split

Training and validation images of captions have no held-out combination; of the test images every
second one has.
"""

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_mm.data.input_files import read_objects
from fairseq_mm.demo.captions import captions_of, is_true
from fairseq_mm.demo.drawn_images import draw
from fairseq_mm.demo.drawn_stories import NUM_MOMENTS, Moment, change_between, compose_story
from fairseq_mm.demo.scenes import Scene, compose_scene, held_out_combinations
from fairseq_mm.demo.story_sentences import describes, write_story
from fairseq_mm.errors import UserError

CAPTIONS_PER_IMAGE = 3
QUALITY = 95
_SHOWN = "shown.jsonl"
# what a sentence has to say -> the same in words
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
    """Of one caption.

    Attributes:
        key: the image.
        right: the caption is true of the image.
        unseen: no captioned training image has the image's combination.
    """

    key: str
    right: bool
    unseen: bool


class SentenceVerdict(NamedTuple):
    """Of one sentence.

    Attributes:
        story: its story.
        number: of its image, from 1.
        kind: of what it should say, one of ``KINDS``.
        right: it says what its image shows.
    """

    story: str
    number: int
    kind: str
    right: bool


def draw_images(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draws images with captions; ``captions.jsonl`` is written last.

    Args:
        folder: must exist.
        sizes: number of images of each split.
        seed: the same seed draws the same images.
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
        sentences = captions_of(scene, rng, CAPTIONS_PER_IMAGE)
        captions.append({"image": f"images/{name}", "captions": sentences, "split": split})
        scenes.append({"id": name, "unseen": unseen, "scene": scene.to_json()})
    _write_jsonl(folder / _SHOWN, scenes)
    _write_jsonl(folder / "captions.jsonl", captions)


def draw_stories(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draws stories; ``stories.jsonl`` is written last.

    Args:
        folder: must exist.
        sizes: number of stories of each split.
        seed: the same seed draws the same stories.
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


def _numbered(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(split, number) for split, size in sizes.items() for number in range(1, size + 1)]


def _new_folder(folder: Path) -> Path:
    images = folder / "images"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir()
    return images


def _write_jsonl(path: Path, records: list[dict]) -> None:
    """One object a line, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    os.replace(partial, path)


def image_names(story: str) -> list[str]:
    """File names of a story's images."""
    return [f"{story}-{number}.jpg" for number in range(1, NUM_MOMENTS + 1)]


def story_of(names: Sequence[str]) -> str:
    """Inverse of :func:`image_names`."""
    return names[0].rpartition("-")[0]


def check_captions(folder: Path, captions: Mapping[str, str]) -> list[CaptionVerdict]:
    """Whether captions are true of their images.

    Args:
        folder: of the collection.
        captions: image -> generated text.

    Raises:
        UserError: if an image is not in the collection.
    """
    records = _shown(folder, captions, "image")
    scenes = {key: Scene.from_json(records[key]["scene"]) for key in captions}
    return [
        CaptionVerdict(key, is_true(caption, scenes[key]), records[key]["unseen"])
        for key, caption in captions.items()
    ]


def check_stories(folder: Path, stories: Mapping[str, Sequence[str]]) -> list[SentenceVerdict]:
    """Whether sentences say what happens in their images.

    Args:
        folder: of the stories.
        stories: story -> its sentences; missing ones count as empty, a sixth does not count.

    Raises:
        UserError: if a story was not drawn.
    """
    records = _shown(folder, stories, "story")
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


def _shown(folder: Path, wanted: Mapping[str, Any], noun: str) -> dict[str, Any]:
    path = folder / _SHOWN
    records = {record["id"]: record for _, record in read_objects(path)}
    for key in wanted:
        if key not in records:
            raise UserError(f"{path}: has no {noun} {key!r}.")
    return records
