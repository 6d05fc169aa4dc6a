"""Flickr30k (Young et al. 2014) in Karpathy's split, or by lists of images.

Karpathy's dataset_flickr30k.json has the captions. With --split-ids the split is given by lists,
such as m-RNN's or Kiros's, with a file name or its stem per line; the first argument is then the
release's file of captions: in the layout of Flickr8k (results_20130124.token) or a table
(results.csv, lines `name.jpg| 0| caption`). Kaggle's captions.txt (lines
`image,caption`) has no split: its images are training images unless --valid-size and --test-size
draw others.
"""

import argparse
import re
from pathlib import Path
from typing import Optional

from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.releases.flickr8k import (
    read_captions_csv,
    read_numbered_captions,
    read_token_file,
)
from fairseq_mm.prepare.split_lists import read_id_list, read_karpathy, select_splits, split_files

FLICKR30K_IMAGES = {"train": 29000, "valid": 1014, "test": 1000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "division",
        type=Path,
        help="Karpathy's dataset_flickr30k.json; with --split-ids the release's captions.",
    )
    parser.add_argument(
        "--split-ids",
        nargs="+",
        default=[],
        metavar="SPLIT=FILE",
        help="Lists of the images of each split, instead of Karpathy's split.",
    )


def read(args: argparse.Namespace) -> Corpus:
    lists = split_files(args.split_ids)
    if not lists and args.division.suffix == ".txt":
        return read_captions_csv(args.division, name="flickr30k")
    if not lists:
        return read_karpathy(args.division, name="flickr30k", published=FLICKR30K_IMAGES)
    return read_listed(args.division, lists)


def read_listed(captions_file: Path, lists: dict[str, Path]) -> Corpus:
    """Read Flickr30k with splits that are lists of images.

    ``captions_file`` is ``results_20130124.token`` or ``results.csv``; ``lists`` maps a split to
    its file of image names, one per line, with or without ``.jpg``.
    """
    is_table = captions_file.suffix == ".csv"
    read = read_results_csv if is_table else lambda path: (read_token_file(path), [])
    captions, repaired = read(captions_file)
    files = [str(path) for path in (captions_file, *lists.values())]
    corpus = Corpus(CAPTIONS, "flickr30k", "lists of images", {}, files)
    corpus.add_exception("line without its second bar", repaired)
    ids = {s: read_id_list(path, parse_id=_file_name) for s, path in lists.items()}
    select_splits(corpus, captions, ids)
    return corpus


def _file_name(line: str) -> str:
    # lists have the name with or without its ending, some with a folder
    name = line.rpartition("/")[2]
    return name if name.lower().endswith(".jpg") else f"{name}.jpg"


def read_results_csv(path: Path) -> tuple[dict[str, Example], list[str]]:
    """Read ``results.csv``: a heading, and lines ``name.jpg| 0| caption``.

    Return the images with their captions by file name, and the names of images with a repaired
    line. The released table has one line without its second bar (``2199200615.jpg| 4   A dog
    ...``), which is split after the number.
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

    return read_numbered_captions(
        path, parse, "image| number| caption", heading="image_name"
    ), repaired
