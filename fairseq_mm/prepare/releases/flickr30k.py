"""Flickr30k (Young et al. 2014) in Karpathy's split, which m-RNN's paper has too.

Karpathy's dataset_flickr30k.json has the captions; the release has the same ones in the layout of
Flickr8k (results_20130124.token) or as a table (results.csv, lines `name.jpg| 0| caption`).
"""

import argparse
import re
from pathlib import Path
from typing import Optional

from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.releases.flickr8k import read_numbered_captions, read_token_file
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
        "those of the split).",
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
        images: image name -> image.
        repaired: images with such a line.
    """
    repaired = []

    def parse(line: str) -> Optional[tuple[str, int, str]]:
        match = re.fullmatch(r"([^|]+)\|\s*(\d+)\s*(\||\s)\s*(.*)", line)
        if match is None:
            return None
        image, number, bar, caption = match.groups()
        if bar != "|":
            repaired.append(image.strip())
        return image.strip(), int(number), caption

    return read_numbered_captions(path, parse, "image| number| caption"), repaired
