"""Formats generated texts for the evaluation programs of challenges.

COCO's evaluation server reads ``captions_SPLIT_NAME_results.json``, a JSON list of ``{"image_id":
391895, "caption": "..."}`` with one entry per image (Chen et al. 2015, Microsoft COCO Captions:
Data Collection and Evaluation Server). The references of the test images are not public, so that
only the server can score their captions. The Visual Storytelling Challenge's program EvalVIST reads
stories as its ``-testFile``.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from fairseq_mm.data.records import Split
from fairseq_mm.errors import UserError

# COCO_val2014_000000391895.jpg, 000000391895.jpg (2017), 391895
_IMAGE = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,12})(?:\.jpg)?", re.ASCII)


def coco_image_ids(names: Iterable[str]) -> dict[str, int]:
    """Return the COCO image number of each name, which is a file name such as
    ``COCO_val2014_000000391895.jpg`` or the number as text; no image may occur twice."""
    ids: dict[int, str] = {}
    for name in names:
        match = _IMAGE.fullmatch(PurePath(name).name)
        # one image under two names would get two captions, which the server does not expect
        if match is None or int(match[1]) in ids:
            raise UserError(
                "--submission: each image must have one caption, and an id of COCO such as "
                f"COCO_val2014_000000391895.jpg or 391895, but {json.dumps(name[:80])} has not."
            )
        ids[int(match[1])] = name
    return {name: number for number, name in ids.items()}


def coco_results(captions: Mapping[str, str], repeated: Iterable[str] = ()) -> str:
    """Return the content of COCO's results file; ``captions`` maps image names to captions, and
    ``repeated`` has the images with several captions."""
    ids = coco_image_ids([*captions, *repeated])
    entries = [{"image_id": ids[name], "caption": text} for name, text in captions.items()]
    return json.dumps(entries, ensure_ascii=False) + "\n"


def vist_results(stories: Mapping[str, str], split: Split) -> str:
    """Return the content of EvalVIST's file of the stories of image sequences of a split."""
    albums: dict[str, str] = {}
    for key, album in zip(split.items, split.field("album")):
        albums.setdefault(key, album)
    entries = [
        {
            "album_id": album,
            "photo_sequence": key.split("\t"),
            "story_text_normalized": stories[key],
        }
        for key, album in albums.items()
        if key in stories
    ]
    description = f"{split.name}, {len(entries)} sequences"
    content = {
        "team_name": "fairseq_mm",
        "evaluation_info": {"additional_description": description},
        "output_stories": entries,
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
