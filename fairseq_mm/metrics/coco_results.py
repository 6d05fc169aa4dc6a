"""Formats captions for COCO's evaluation server: ``captions_SPLIT_NAME_results.json``.

The file is a JSON list of ``{"image_id": 391895, "caption": "..."}`` with one entry per image. The
references of the test images are not public, so that only the server can score their captions.
Chen, Fang, Lin, Vedantam, Gupta, Dollar, Zitnick. Microsoft COCO Captions: Data Collection and
Evaluation Server. 2015.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from fairseq_mm.errors import UserError

# COCO_val2014_000000391895.jpg, 000000391895.jpg (2017), 391895
_IMAGE = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,12})(?:\.jpg)?", re.ASCII)


def coco_image_ids(names: Iterable[str]) -> dict[str, int]:
    """Return the COCO image number of each name, which is a file name such as
    ``COCO_val2014_000000391895.jpg`` or the number as text."""
    ids: dict[str, int] = {}
    earlier: dict[int, str] = {}
    for name in names:
        match = _IMAGE.fullmatch(PurePath(name).name)
        if match is None:
            raise UserError(
                "--submission: image ids must be COCO's, such as COCO_val2014_000000391895.jpg or "
                f"391895, but one is {json.dumps(name[:80])}."
            )
        number = int(match[1])
        # one image under two names would get two captions, which the server does not expect
        if number in earlier:
            raise UserError(
                "--submission: an image must have one caption, but "
                f"{json.dumps(earlier[number][:80])} and {json.dumps(name[:80])} are both image "
                f"{number}."
            )
        ids[name], earlier[number] = number, name
    return ids


def coco_results(captions: Mapping[str, str]) -> str:
    """Return the JSON text of a results file; ``captions`` are the captions by image name."""
    ids = coco_image_ids(captions)
    entries = [{"image_id": ids[name], "caption": text} for name, text in captions.items()]
    return json.dumps(entries, ensure_ascii=False) + "\n"
