"""Flickr30k (Young et al. 2014) in Karpathy's division, which m-RNN's paper has too.

Karpathy's dataset_flickr30k.json has the captions; the release has the same ones in the layout of
Flickr8k (results_20130124.token) or as a table (results.csv, lines `name.jpg| 0| caption`).
"""

import argparse
import re
from pathlib import Path
from typing import Optional

from fairseq_mm.data.input_files import read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.releases.flickr8k import add_caption, images_of, read_token_file
from fairseq_mm.prepare.releases.karpathy import read_karpathy
from fairseq_mm.prepare.split_lists import select_splits

FLICKR30K_IMAGES = {"train": 29000, "valid": 1014, "test": 1000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("division", type=Path, help="Karpathy's dataset_flickr30k.json.")
    parser.add_argument(
        "--captions",
        type=Path,
        metavar="FILE",
        help="The release's results_20130124.token or results.csv, for its captions (default: "
        "those of the division).",
    )


def read(args: argparse.Namespace) -> Corpus:
    return read_flickr30k(args.division, args.captions)


def read_flickr30k(karpathy_file: Path, captions_file: Optional[Path] = None) -> Corpus:
    """Reads Flickr30k in Karpathy's division.

    Args:
        karpathy_file: ``dataset_flickr30k.json``.
        captions_file: ``results_20130124.token`` or ``results.csv``, for their captions; without
            it they come from ``karpathy_file``, which has the same ones.

    Raises:
        UserError: if a file is malformed.
    """
    corpus = read_karpathy(
        karpathy_file, name="flickr30k", key="filename", published=FLICKR30K_IMAGES
    )
    if captions_file is None:
        return corpus
    repaired: list[str] = []
    if captions_file.suffix == ".csv":
        captions, repaired = read_results_csv(captions_file)
    else:
        captions = read_token_file(captions_file)
    lists = {split: [str(image.id) for image in images] for split, images in corpus.splits.items()}
    corpus.files.append(str(captions_file))
    if repaired:
        corpus.exceptions["line without its second bar"] = repaired
    select_splits(corpus, captions, lists)
    return corpus


def read_results_csv(path: Path) -> tuple[dict[str, Example], list[str]]:
    """Reads ``name.jpg| 0| caption`` lines under a heading.

    The released table has a line without its second bar (``2199200615.jpg| 4   A dog ...``): the
    number is split off there.

    Returns:
        items: image name -> example.
        repaired: images with such a line.

    Raises:
        UserError: ``path:line``, if a line has another form or a caption's number stands twice.
    """
    numbered: dict[str, dict[int, str]] = {}
    first_line: dict[str, int] = {}
    repaired = []
    for line_number, line in read_lines(path):
        if not line.strip() or (line_number == 1 and line.startswith("image_name")):
            continue
        match = re.fullmatch(r"([^|]+)\|\s*(\d+)\s*(\||\s)\s*(.*)", line)
        if match is None:
            raise UserError(
                f"{path}:{line_number}: must be `image| number| caption`, but is "
                f"{line[:60]!r} instead."
            )
        image, number, bar, caption = match.groups()
        image = image.strip()
        if bar != "|":
            repaired.append(image)
        add_caption(numbered, image, int(number), caption, f"{path}:{line_number}")
        first_line.setdefault(image, line_number)
    return images_of(numbered, first_line, path), repaired
