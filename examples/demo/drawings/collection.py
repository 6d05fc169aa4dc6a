"""Drawn images with captions, images to search, and stories of five images.

    images/train-0001.jpg ...     images; train-0001-1.jpg to train-0001-5.jpg for a story
    shown.jsonl                   content of each image, to check texts
    captions.jsonl                image, captions, split
    stories.jsonl                 images, sentences, split
    queries.txt                   for images to search: a sentence a line

Captioned training and validation images have no held-out combination of things; every second test
image, and every second image to search, has one.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from drawings.captions import is_true, write_captions
from drawings.drawn_images import draw
from drawings.drawn_stories import NUM_MOMENTS, Moment, change_between, compose_story
from drawings.records import (
    SHOWN,
    Verdict,
    new_image_folder,
    numbered,
    read_shown,
    read_split,
    write_jsonl,
)
from drawings.scenes import Scene, compose_scene, held_out_combinations
from drawings.story_sentences import describes, write_story
from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.output_file import write_file

CAPTIONS_PER_IMAGE = 3
QUALITY = 95
# kind of image -> its description
IMAGE_KINDS = {
    "seen": "in combinations that training showed",
    "unseen": "in combinations that it did not show",
}
# kind of content that a sentence must tell -> its description
SENTENCE_KINDS = {
    "first": "what is there at first",
    "appear": "a thing comes",
    "leave": "a thing goes",
    "colour": "a thing gets another colour",
    "size": "a thing grows or shrinks",
    "move": "two things move",
    "light": "night falls or day breaks",
}


def draw_images(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draw images with captions; ``captions.jsonl`` is written last.

    Args:
        folder: Existing folder.
        sizes: Number of images of each split.
        seed: Seed of the images and captions.
    """
    held_out = held_out_combinations(seed)
    images = new_image_folder(folder)
    captions, scenes = [], []
    for split, number in numbered(sizes):
        name = f"{split}-{number:04}.jpg"
        rng = random.Random(f"{seed} {name}")
        unseen = split in ("test", "photo") and number % 2 == 0
        combinations = {"required" if unseen else "excluded": held_out}
        scene = compose_scene(rng, **combinations)
        draw(scene, rng).save(images / name, quality=QUALITY)
        sentences = write_captions(scene, rng, CAPTIONS_PER_IMAGE)
        captions.append({"image": f"images/{name}", "captions": sentences, "split": split})
        scenes.append({"id": name, "unseen": unseen, "scene": scene.to_json()})
    write_jsonl(folder / SHOWN, scenes)
    write_jsonl(folder / "captions.jsonl", captions)


def draw_photos(folder: Path, *, images: int, queries: int, seed: int) -> None:
    """Draw images to search, and write ``queries.txt``: sentences about the first ones."""
    folder.mkdir(exist_ok=True)
    draw_images(folder, {"photo": images}, seed=seed)
    records = [record for _, record in read_objects(folder / "captions.jsonl")][:queries]
    write_file(folder / "queries.txt", "".join(f"{record['captions'][0]}\n" for record in records))


def draw_stories(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draw stories; ``stories.jsonl`` is written last.

    Args:
        folder: Existing folder.
        sizes: Number of stories of each split.
        seed: Seed of the images and sentences.
    """
    images = new_image_folder(folder)
    stories, shown = [], []
    for split, number in numbered(sizes):
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
    write_jsonl(folder / SHOWN, shown)
    write_jsonl(folder / "stories.jsonl", stories)


def draw_with_fresh_story(folder: Path, sizes: Mapping[str, int], seed: int) -> None:
    """Draw stories, and one more in ``folder/fresh`` that belongs to no split."""
    (folder / "fresh").mkdir(exist_ok=True)
    draw_stories(folder / "fresh", {"fresh": 1}, seed=seed)
    draw_stories(folder, sizes, seed=seed)


def image_names(story: str) -> list[str]:
    """Return the file names of a story's images."""
    return [f"{story}-{number}.jpg" for number in range(1, NUM_MOMENTS + 1)]


def get_story_name(names: Sequence[str]) -> str:
    """Return the name of the story with these images, the inverse of :func:`image_names`."""
    return names[0].rpartition("-")[0]


def check_captions(folder: Path, captions: Mapping[str, str]) -> list[Verdict]:
    """Check whether captions are true of their images.

    Args:
        folder: Folder that :func:`draw_images` filled.
        captions: Generated text by name of the image.

    Raises:
        UserError: If an image was not drawn.
    """
    records = read_shown(folder, captions, "image")
    return [
        Verdict(
            key,
            is_true(caption, Scene.from_json(records[key]["scene"])),
            "unseen" if records[key]["unseen"] else "seen",
        )
        for key, caption in captions.items()
    ]


def most_common_caption(folder: Path) -> str:
    """Return the most common caption of the training images, of several the first."""
    records = read_split(folder / "captions.jsonl", "train")
    return Counter(text for record in records for text in record["captions"]).most_common(1)[0][0]


def check_found(folder: Path, found: Sequence[tuple[str, str]]) -> list[Verdict]:
    """Check whether queries are true of the images that were found first.

    Args:
        folder: Folder that :func:`draw_photos` filled.
        found: Pairs of query and name of an image.

    Raises:
        UserError: If an image was not drawn.
    """
    records = read_shown(folder, [key for _, key in found], "image")
    scenes = [Scene.from_json(records[key]["scene"]) for _, key in found]
    return [Verdict(query, is_true(query, scene)) for (query, _), scene in zip(found, scenes)]


def check_stories(folder: Path, stories: Mapping[str, Sequence[str]]) -> list[Verdict]:
    """Check whether sentences say what happens in their images.

    Args:
        folder: Folder that :func:`draw_stories` filled.
        stories: Sentences by name of the story. Missing ones count as empty; a sixth is ignored.

    Returns:
        A verdict for each image, by its name.

    Raises:
        UserError: If a story was not drawn.
    """
    records = read_shown(folder, stories, "story")
    verdicts = []
    for story, sentences in stories.items():
        moments = [Moment.from_json(record) for record in records[story]["moments"]]
        padded = [*sentences, *[""] * (NUM_MOMENTS - len(sentences))]
        names = image_names(story)
        for name, text, before, after in zip(names, padded, [None, *moments], moments):
            kind = "first" if before is None else change_between(before, after)
            verdicts.append(Verdict(name, describes(text, before, after), kind))
    return verdicts


def most_common_sentences(folder: Path) -> list[str]:
    """Return the most common first to fifth sentence of the training stories."""
    stories = [record["sentences"] for record in read_split(folder / "stories.jsonl", "train")]
    return [Counter(sentences).most_common(1)[0][0] for sentences in zip(*stories)]
