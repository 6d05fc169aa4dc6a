"""Captions in the layout of COCO's evaluation server: ``captions_SPLIT_NAME_results.json``.

A list of ``{"image_id": 391895, "caption": "..."}``, one for each image, whether its references are
public or, as those of the test images, the server's alone. Chen, Fang, Lin, Vedantam, Gupta,
Dollar, Zitnick. Microsoft COCO Captions: Data Collection and Evaluation Server. 2015.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from fairseq_mm.errors import UserError

# COCO_val2014_000000391895.jpg, 000000391895.jpg (2017), 391895
_IMAGE = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,12})(?:\.jpg)?", re.ASCII)


def coco_image_ids(names: Iterable[str]) -> dict[str, int]:
    """
    Args:
        names: of images: their files, in folders or not, or their numbers.

    Returns:
        name -> number, in the order of the names.

    Raises:
        UserError: if a name is none of COCO's, or an image has two names.
    """
    ids: dict[str, int] = {}
    names_of: dict[int, str] = {}
    for name in names:
        match = _IMAGE.fullmatch(PurePath(name).name)
        if match is None:
            raise UserError(
                "--submission: image ids must be COCO's, such as COCO_val2014_000000391895.jpg or "
                f"391895, but one is {json.dumps(name[:80])}."
            )
        number = int(match[1])
        if number in names_of:
            raise UserError(
                "--submission: an image must have one caption, but "
                f"{json.dumps(names_of[number][:80])} and {json.dumps(name[:80])} are both image "
                f"{number}."
            )
        ids[name], names_of[number] = number, name
    return ids


def coco_results(captions: Mapping[str, str]) -> str:
    """The content of a results file.

    Args:
        captions: name of the image -> caption.

    Raises:
        UserError: see :func:`coco_image_ids`.
    """
    ids = coco_image_ids(captions)
    entries = [{"image_id": ids[name], "caption": text} for name, text in captions.items()]
    return json.dumps(entries, ensure_ascii=False) + "\n"
