"""Reads JSON files that list the images of splits, and lists of image ids, for several releases."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from fairseq_mm.data.input_files import SPLITS, check_id, read_json, read_lines
from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example, check_once

_IMAGE_NAME = re.compile(r".+\.(?:jpe?g|png)", re.IGNORECASE)
# `restval` are validation images of 2014 that Karpathy's division adds to the training images
_KARPATHY_SPLITS = {"train": "train", "restval": "train", "val": "valid", "test": "test"}


@contextlib.contextmanager
def release_file(path: Path) -> Iterator[None]:
    """Turn errors about unexpected content of a release's file into a UserError with its path."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: is not laid out as the release's file ({reason}).") from None


def read_karpathy(path: Path, *, name: str, published: dict[str, int]) -> Corpus:
    """Read one of Karpathy's division files: ``dataset_coco.json``, ``dataset_flickr30k.json``.

    Args:
        name: Expected value of the file's field ``dataset``.
        published: Dict from split to the published number of images.
    """
    splits: dict[str, Any] = {}
    with release_file(path):
        content = read_json(path)
        # the two division files have one layout: the wrong one would be read without complaint
        if content.get("dataset", name) != name:
            raise UserError(f"{path}: must hold {name}, but holds {content['dataset']} instead.")
        for number, entry in enumerate(content["images"]):
            where = f"{path}: images[{number}]"
            # `raw` and not `tokens`, which lack punctuation: the tokenizer is the user's choice
            captions = [sentence["raw"].strip() for sentence in entry["sentences"]]
            image = captioned_image(check_id(entry["filename"], where), captions, where)
            splits.setdefault(_KARPATHY_SPLITS[entry["split"]], []).append(image)
    corpus = Corpus(CAPTIONS, name, "karpathy", splits, files=[str(path)], published=published)
    corpus.check_ids()
    return corpus


def read_id_list(path: Path, *, parse_id: Callable[[str], str] = str) -> list[str]:
    """Read ids, one per line; ``parse_id`` turns a line into an id."""
    seen: dict[str, str] = {}
    ids = []
    for number, line in read_lines(path):
        if line.strip():
            ids.append(parse_id(line.strip()))
            check_once(f"image {ids[-1]}", f"{path}:{number}", seen)
    return ids


def split_files(pairs: list[str]) -> dict[str, Path]:
    """Parse the ``SPLIT=FILE`` arguments of ``--split-ids``; return a dict from split to file."""
    files: dict[str, Path] = {}
    for pair in pairs:
        split, _, file = pair.partition("=")
        if split not in SPLITS or not file or split in files:
            raise UserError(
                "--split-ids must be train=FILE, valid=FILE or test=FILE, each once, but is "
                f"{' '.join(pairs)} instead."
            )
        files[split] = Path(file)
    return files


def select_splits(
    corpus: Corpus, captions: dict[str, Example], lists: dict[str, list[str]]
) -> None:
    """Fill ``corpus.splits`` by lists of ids. Images without captions, captions that are in no list
    and ids that are no image names become ``corpus.exceptions``."""
    listed = set()
    for split, ids in lists.items():
        examples = [captions[key] for key in ids if key in captions]
        corpus.splits[split] = examples
        if not examples:
            raise UserError(
                f"{corpus.files[0]}: has captions of none of the {len(ids):,} images listed for "
                f"{split}" + (f", such as {ids[0]}." if ids else ".")
            )
        listed.update(ids)
    exceptions = {
        "listed without captions": [key for key in listed if key not in captions],
        "captions without a split": [key for key in captions if key not in listed],
        "not an image's name": [key for key in captions if not _IMAGE_NAME.fullmatch(key)],
    }
    for what, ids in exceptions.items():
        # sorted: `listed` is a set, whose order differs between runs
        corpus.add_exception(what, sorted(ids))
    # an image in two lists would be trained on and tested
    corpus.check_ids()
