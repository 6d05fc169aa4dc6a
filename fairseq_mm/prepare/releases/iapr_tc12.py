"""IAPR TC-12 (Grubinger et al. 2006): free-text descriptions of 20,000 images.

A description is a file such as ``annotations_complete_eng/00/25.eng``, similar to XML (with
unescaped ``&``), in ISO-8859-1; its sentences end with semicolons. Two lists of Guillaumin et al.
divide the images into 17,665 training and 1,962 test images.

The m-RNN paper (Mao et al. 2015, section 7.1) counts 1.7 sentence annotations per image.
Each sentence is therefore a caption.
"""

import argparse
import re
from pathlib import Path

from fairseq_mm.data.input_files import check_id, read_lines
from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example, check_once
from fairseq_mm.prepare.split_lists import read_id_list, select_splits, split_files

IAPR_TC12_IMAGES = {"train": 17665, "test": 1962}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("annotations", type=Path, help="The folder annotations_complete_eng.")
    parser.add_argument(
        "--split-ids",
        nargs="+",
        required=True,
        metavar="SPLIT=FILE",
        help="The division's lists, train=iaprtc12_train_list.txt test=iaprtc12_test_list.txt.",
    )


def read(args: argparse.Namespace) -> Corpus:
    return read_iapr_tc12(args.annotations, split_files(args.split_ids))


def read_description(path: Path) -> tuple[str, str]:
    """Read an annotation file; return the path of its image in the release and the description."""
    # no XML parser, which would refuse an unescaped &
    text = "\n".join(line for _, line in read_lines(path, encoding="iso-8859-1"))
    fields = []
    for name in ("IMAGE", "DESCRIPTION"):
        match = re.search(rf"<{name}>(.*?)</{name}>", text, re.DOTALL | re.IGNORECASE)
        if match is None:
            raise UserError(f"{path}: field <{name}> is missing.")
        fields.append(" ".join(match.group(1).split()))
    image, description = fields
    return image, description


def _image_name(name: str) -> str:
    """Return the file name, such as ``25.jpg``, for ``images/00/25.jpg``, ``00/25`` or ``25.jpg``.
    The name identifies the image, since images in different folders have different numbers."""
    stem = name.replace("\\", "/").rpartition("/")[2]
    return re.sub(r"(?i)\.(?:jpg|eng)$", "", stem) + ".jpg"


def read_iapr_tc12(annotations: Path, lists: dict[str, Path]) -> Corpus:
    """Read IAPR TC-12 from the annotation files in a folder, at any depth; ``lists`` are files with
    one image per line (``00/25``, with or without ``.jpg``)."""
    items: dict[str, Example] = {}
    seen: dict[str, str] = {}
    for path in sorted(annotations.rglob("*.eng")):
        image, description = read_description(path)
        key = check_id(_image_name(image), str(path))
        check_once(f"image {key}", str(path), seen)
        # the last sentence ends with a semicolon too, after which nothing follows
        sentences = [part.strip() for part in description.split(";") if part.strip()]
        # an image without captions is no example; select_splits reports it if it is in a list
        if sentences:
            items[key] = captioned_image(key, sentences, str(path))
    files = [str(annotations), *map(str, lists.values())]
    corpus = Corpus(CAPTIONS, "iapr_tc12", "guillaumin", {}, files, published=IAPR_TC12_IMAGES)
    ids = {split: read_id_list(path, parse_id=_image_name) for split, path in lists.items()}
    select_splits(corpus, items, ids)
    return corpus
