"""The demo's data: images in a folder, captions for ``prepare``, and what they show.

    images/train-0001.jpg ...
    scenes.jsonl        what stands in each image, to check captions
    captions.jsonl      image, captions, split

Training and validation images have no held-out combination; of the test images every second
one has.
"""

import json
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fairseq_mm.demo.captions import captions_of, is_true
from fairseq_mm.demo.drawn_images import draw
from fairseq_mm.demo.scenes import Scene, compose_scene, held_out_combinations
from fairseq_mm.errors import UserError

CAPTIONS_PER_IMAGE = 3
QUALITY = 95


def draw_collection(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draws a collection; ``captions.jsonl`` is written last.

    Args:
        folder: must exist.
        sizes: number of images of each split.
        seed: the same seed draws the same images.
    """
    held_out = held_out_combinations(seed)
    images = folder / "images"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir()
    captions, scenes = [], []
    for split, size in sizes.items():
        for number in range(1, size + 1):
            name = f"{split}-{number:04}.jpg"
            rng = random.Random(f"{seed} {name}")
            unseen = split == "test" and number % 2 == 0
            if unseen:
                scene = compose_scene(rng, required=held_out)
            else:
                scene = compose_scene(rng, excluded=held_out)
            draw(scene, rng).save(images / name, quality=QUALITY)
            sentences = captions_of(scene, rng, CAPTIONS_PER_IMAGE)
            captions.append({"image": f"images/{name}", "captions": sentences, "split": split})
            scenes.append({"id": name, "unseen": unseen, "scene": scene.to_json()})
    write_jsonl(folder / "scenes.jsonl", scenes)
    write_jsonl(folder / "captions.jsonl", captions)


def write_jsonl(path: Path, records: list[dict]) -> None:
    """One object a line, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    os.replace(partial, path)


class Verdict(NamedTuple):
    """Of one caption.

    Attributes:
        key: the image.
        right: the caption is true of the image.
        unseen: no captioned training image has the image's combination.
    """

    key: str
    right: bool
    unseen: bool


def check_captions(folder: Path, captions: Mapping[str, str]) -> list[Verdict]:
    """Reads each caption and decides whether it is true of its image.

    Args:
        folder: of the collection.
        captions: image -> generated text.

    Raises:
        UserError: if an image is not in the collection.
    """
    path = folder / "scenes.jsonl"
    with open(path, encoding="utf-8") as file:
        records = {record["id"]: record for record in map(json.loads, file)}
    verdicts = []
    for key, caption in captions.items():
        if key not in records:
            raise UserError(f"{path}: has no image {key!r}.")
        scene = Scene.from_json(records[key]["scene"])
        verdicts.append(Verdict(key, is_true(caption, scene), records[key]["unseen"]))
    return verdicts
