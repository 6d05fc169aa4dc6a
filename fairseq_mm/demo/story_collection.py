"""The demo's stories: five images each in a folder, sentences for ``prepare``, what they show.

images/train-0001-1.jpg ...
moments.jsonl       what each image shows, to check sentences
stories.jsonl       images, sentences, split
"""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_mm.demo.collection import QUALITY, write_jsonl
from fairseq_mm.demo.drawn_images import draw
from fairseq_mm.demo.drawn_stories import (
    NUM_MOMENTS,
    Moment,
    change_between,
    compose_story,
)
from fairseq_mm.demo.story_sentences import tell_story, tells
from fairseq_mm.errors import UserError

# what a sentence has to tell -> the same in words
KINDS = {
    "first": "what is there at first",
    "appear": "a thing comes",
    "leave": "a thing goes",
    "colour": "a thing gets another colour",
    "size": "a thing grows or shrinks",
    "move": "two things move",
    "light": "night falls or day breaks",
}


def draw_stories(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draws stories; ``stories.jsonl`` is written last.

    Args:
        folder: must exist.
        sizes: number of stories of each split.
        seed: the same seed draws the same stories.
    """
    images = folder / "images"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir()
    stories, truths = [], []
    for split, size in sizes.items():
        for number in range(1, size + 1):
            story = f"{split}-{number:04}"
            rng = random.Random(f"{seed} story {story}")
            moments = compose_story(rng)
            names = image_names(story)
            for name, moment in zip(names, moments):
                image = draw(moment.scene, rng, night=moment.night)
                image.save(images / name, quality=QUALITY)
            shown = [f"images/{name}" for name in names]
            sentences = tell_story(moments, rng)
            stories.append({"id": story, "images": shown, "sentences": sentences, "split": split})
            truths.append({"id": story, "moments": [moment.to_json() for moment in moments]})
    write_jsonl(folder / "moments.jsonl", truths)
    write_jsonl(folder / "stories.jsonl", stories)


def image_names(story: str) -> list[str]:
    """File names of a story's images."""
    return [f"{story}-{number}.jpg" for number in range(1, NUM_MOMENTS + 1)]


def story_of(names: Sequence[str]) -> str:
    """Inverse of :func:`image_names`."""
    return names[0].rpartition("-")[0]


class SentenceVerdict(NamedTuple):
    """Of one sentence.

    Attributes:
        story: its story.
        number: of its image, from 1.
        kind: of what it should tell, one of ``KINDS``.
        right: it tells the image.
    """

    story: str
    number: int
    kind: str
    right: bool


def check_stories(folder: Path, stories: Mapping[str, Sequence[str]]) -> list[SentenceVerdict]:
    """Decides of each sentence whether it tells its image.

    Args:
        folder: of the stories.
        stories: story -> its sentences; missing ones count as empty, a sixth is not looked at.

    Raises:
        UserError: if a story was not drawn.
    """
    path = folder / "moments.jsonl"
    with open(path, encoding="utf-8") as file:
        records = {record["id"]: record["moments"] for record in map(json.loads, file)}
    verdicts = []
    for story, sentences in stories.items():
        if story not in records:
            raise UserError(f"{path}: has no story {story!r}.")
        moments = [Moment.from_json(record) for record in records[story]]
        told = [*sentences[:NUM_MOMENTS], *[""] * (NUM_MOMENTS - len(sentences))]
        for i, (before, after) in enumerate(zip([None, *moments], moments)):
            kind = "first" if before is None else change_between(before, after)
            verdicts.append(SentenceVerdict(story, i + 1, kind, tells(told[i], before, after)))
    return verdicts
