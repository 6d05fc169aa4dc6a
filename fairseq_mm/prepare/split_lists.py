"""Reads JSON files that list the images of splits, and lists of image ids, for several releases."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from fairseq_mm.data.input_files import SPLITS, check_id, read_json, read_lines
from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example

_IMAGE_NAME = re.compile(r".+\.(?:jpe?g|png)", re.IGNORECASE)
# `restval` are validation images of 2014 that Karpathy's division adds to the training images
_KARPATHY_SPLITS = {"train": "train", "restval": "train", "val": "valid", "test": "test"}


def list_entries(content: object, path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the elements of the list ``name`` in a JSON file's content, each with
    ``path: name[number]`` for messages."""
    for number, entry in enumerate(read_field(content, name, str(path), list)):
        yield f"{path}: {name}[{number}]", entry


def read_field(entry: object, name: str, where: str, kind: type = str) -> Any:
    """Return the field ``name`` of a JSON object."""
    value = entry.get(name) if isinstance(entry, dict) else None
    # isinstance would accept true and false as numbers
    if type(value) is not kind:
        noun = {str: "text", int: "a whole number", list: "a list"}[kind]
        is_there = isinstance(entry, dict) and name in entry
        problem = f"is {json.dumps(value)[:60]} instead" if is_there else "is missing"
        raise UserError(f"{where}: `{name}` must be {noun}, but {problem}.")
    return value


def read_karpathy(path: Path, *, name: str, published: dict[str, int]) -> Corpus:
    """Read one of Karpathy's division files: ``dataset_coco.json``, ``dataset_flickr30k.json``.

    Args:
        name: Expected value of the file's field ``dataset``.
        published: Dict from split to the published number of images.
    """
    content: Any = read_json(path)
    entries = list(list_entries(content, path, "images"))
    # the two division files have one layout: the wrong one would be read without complaint
    if content.get("dataset", name) != name:
        raise UserError(f"{path}: must hold {name}, but holds {content['dataset']} instead.")
    images: dict[str, list[Example]] = {}
    for where, entry in entries:
        split, image_id = (read_field(entry, field, where) for field in ("split", "filename"))
        # `raw` and not `tokens`, which lack punctuation: the tokenizer is the user's choice
        captions = [
            read_field(sentence, "raw", f"{where}: sentences[{number}]").strip()
            for number, sentence in enumerate(read_field(entry, "sentences", where, list))
        ]
        if split not in _KARPATHY_SPLITS:
            raise UserError(
                f"{where}: `split` must be one of {', '.join(_KARPATHY_SPLITS)}, but is {split} "
                "instead."
            )
        image = captioned_image(check_id(image_id, where), captions, where)
        images.setdefault(_KARPATHY_SPLITS[split], []).append(image)
    corpus = Corpus(
        CAPTIONS, name, "karpathy", dict(images), files=[str(path)], published=published
    )
    corpus.check_ids()
    return corpus


def read_id_list(path: Path, *, parse_id: Optional[Callable[[str], str]] = None) -> list[str]:
    """Read ids, one per line; ``parse_id`` turns a line into an id."""
    lines_by_id: dict[str, int] = {}
    for number, line in read_lines(path):
        name = line.strip()
        if not name:
            continue
        key = parse_id(name) if parse_id else name
        if key in lines_by_id:
            raise UserError(
                f"{path}:{number}: image {key} was given before, at line {lines_by_id[key]}."
            )
        lines_by_id[key] = number
    return list(lines_by_id)


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
    """Fill ``corpus.splits`` by lists of ids; images without captions, captions of no list and ids
    that are no image names become ``corpus.exceptions``."""
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
