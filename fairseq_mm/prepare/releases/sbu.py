"""SBU captioned photos (Ordonez et al. 2011): 1,000,000 images of Flickr with one caption each.

RELEASE has SBU_captioned_photo_dataset_urls.txt and SBU_captioned_photo_dataset_captions.txt, whose
lines correspond; the id of an image is the file name in its URL. The release has no division into
splits: --valid-size and --test-size sample one. Many images are gone from Flickr: give --features
and --missing drop to leave out images without extracted features.
"""

import argparse
from itertools import zip_longest
from pathlib import Path

from fairseq_mm.data.input_files import check_id, read_lines
from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example, Examples

SBU_IMAGES = {"train": 1_000_000}
URLS, LINES = (f"SBU_captioned_photo_dataset_{what}.txt" for what in ("urls", "captions"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "release", metavar="RELEASE", type=Path, help="Folder of the release's two text files."
    )


def read(args: argparse.Namespace) -> Corpus:
    return read_sbu(args.release)


def read_sbu(folder: Path) -> Corpus:
    """Read SBU's release from a folder; an image that occurs in several lines gets all captions."""
    urls, captions = folder / URLS, folder / LINES
    images: dict[str, Example] = {}
    repeated: list[str] = []
    # zip would hide that one of the two files was cut short
    for address, caption in zip_longest(read_lines(urls), read_lines(captions)):
        if address is None or caption is None:
            longer, shorter = (captions, urls) if address is None else (urls, captions)
            number = (caption or address)[0]
            raise UserError(f"{longer}:{number}: {shorter} has only {number - 1} lines.")
        number, url = address
        key = check_id(url.strip().rpartition("/")[2], f"{urls}:{number}")
        # an id may occur once only, so that its captions are collected as in the other data sets
        if key in images:
            images[key].texts["captions"].append(caption[1].strip())
            repeated.append(key)
        else:
            images[key] = captioned_image(key, [caption[1].strip()], f"{captions}:{number}")
    splits: dict[str, Examples] = {"train": list(images.values())}
    files = [str(urls), str(captions)]
    corpus = Corpus(CAPTIONS, "sbu", "whole", splits, files, published=SBU_IMAGES)
    corpus.add_exception("image of several lines", list(dict.fromkeys(repeated)))
    return corpus
