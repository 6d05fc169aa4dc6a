"""Flickr8k (Hodosh et al. 2013) as its authors released it.

RELEASE has Flickr8k.token.txt (lines `name.jpg#0<TAB>caption`), Flickr_8k.trainImages.txt,
Flickr_8k.devImages.txt and Flickr_8k.testImages.txt. Only the list of training images is required;
validation or test images without their list are skipped. RELEASE may also be Karpathy's
dataset_flickr8k.json, or Kaggle's captions.txt (lines `image,caption`), whose images are all
training images unless --valid-size and --test-size draw others.
"""

import argparse
import csv
import re
from collections import Counter
from pathlib import Path
from typing import Callable, Optional

from fairseq_mm.data.input_files import check_id, read_lines
from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.split_lists import read_id_list, read_karpathy, select_splits

FLICKR8K_LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "valid": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
FLICKR8K_IMAGES = {"train": 6000, "valid": 1000, "test": 1000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "release", metavar="RELEASE", type=Path, help="Folder of the release's text files, or file."
    )


def read(args: argparse.Namespace) -> Corpus:
    if args.release.suffix == ".json":
        return read_karpathy(args.release, name="flickr8k", published=FLICKR8K_IMAGES)
    if args.release.is_file():
        return read_captions_csv(args.release, name="flickr8k")
    return read_flickr8k(args.release)


def read_flickr8k(folder: Path) -> Corpus:
    """Read Flickr8k's text release from a folder; only the list of training images is required.

    The release has captions of 92 images that are in no list, and a caption of
    ``2258277193_586949ec62.jpg.1``, which is no image name. ``exceptions`` lists these ids.
    """
    token_file = folder / "Flickr8k.token.txt"
    corpus = Corpus(
        CAPTIONS, "flickr8k", "official", {}, [str(token_file)], published=FLICKR8K_IMAGES
    )
    captions = read_token_file(token_file)
    lists = {}
    for split, name in FLICKR8K_LISTS.items():
        # train is required, since the dictionary is made from it
        if split != "train" and not (folder / name).exists():
            corpus.notes.append(f"{split}: skipped, {folder / name} is not there")
            continue
        lists[split] = read_id_list(folder / name)
        corpus.files.append(str(folder / name))
    select_splits(corpus, captions, lists)
    return corpus


def read_token_file(path: Path) -> dict[str, Example]:
    """Read lines ``name.jpg#0<TAB>caption``; return a dict from image name to its captions."""

    def parse(line: str) -> Optional[tuple[str, int, str]]:
        # greedy, so that the last # is the separator: a name may contain another one
        match = re.fullmatch(r"([^\t]+)#(\d+)\t(.*)", line)
        return match and (match[1], int(match[2]), match[3])

    return read_numbered_captions(path, parse, "image#number<TAB>caption")


def read_captions_csv(path: Path, *, name: str) -> Corpus:
    """Read Kaggle's ``captions.txt``: a heading, and lines ``image,caption``. All images are
    training images of the corpus ``name``."""
    numbers: Counter[str] = Counter()

    def parse(line: str) -> Optional[tuple[str, int, str]]:
        # a caption with commas may stand without quotes
        image, *parts = next(csv.reader([line]))
        numbers[image] += 1
        return (image, numbers[image], ",".join(parts)) if parts else None

    images = read_numbered_captions(path, parse, "image,caption", heading="image,caption")
    return Corpus(CAPTIONS, name, "all images", {"train": list(images.values())}, [str(path)])


def read_numbered_captions(
    path: Path,
    parse: Callable[[str], Optional[tuple[str, int, str]]],
    form: str,
    *,
    heading: str = "",
) -> dict[str, Example]:
    """Read a file with one numbered caption per line; return a dict from image name to captions.

    The captions of an image are sorted by number.

    ``parse`` turns a line into image name, number and caption; None if the line is not of the form
    ``form``. The first line must begin with ``heading``.
    """
    numbered: dict[str, dict[int, str]] = {}
    places: dict[str, str] = {}
    for line_number, line in read_lines(path):
        is_heading = line_number == 1 and heading != ""
        if not line.strip() or (is_heading and line.startswith(heading)):
            continue
        where = f"{path}:{line_number}"
        fields = None if is_heading else parse(line)
        if fields is None or fields[1] in numbered.get(fields[0], ()):
            raise UserError(
                f"{where}: must be `{form}`, each number once for an image, but is {line[:60]!r}."
            )
        image, number, caption = fields
        numbered.setdefault(check_id(image, where), {})[number] = caption.strip()
        places.setdefault(image, where)
    return {
        # by number, so that the order of the lines does not matter
        image: captioned_image(image, [captions[n] for n in sorted(captions)], places[image])
        for image, captions in numbered.items()
    }
