"""COCO captions (Lin et al. 2014), in one of three splits, whose scores are not comparable.

  --split karpathy  dataset_coco.json: 113,287 training images (train and
                    restval), 5,000 for validation, 5,000 for testing
  --split official  captions_train2014.json captions_val2014.json: 82,783
                    training and 40,504 validation images
  --split m_rnn     the same two files, and --split-ids valid=FILE test=FILE
                    with numbers or file names, one per line: 118,286 training
                    images, 4,000 for validation, 1,000 for testing

The m-RNN paper (Mao et al. 2015, section 7.1) samples 4,000 and 1,000 images of val2014 and does
not say whether the rest of val2014 is used for training. The code of its authors trains on all
other images except 167126, a broken file in early downloads. --split official trains only on the
82,783 images of train2014.
"""

import argparse
import json
import re
from pathlib import Path

from fairseq_mm.data.input_files import check_id, read_json, read_lines
from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example, Examples, check_once
from fairseq_mm.prepare.split_lists import read_karpathy, release_file, split_files

COCO_IMAGES = {
    "karpathy": {"train": 113287, "valid": 5000, "test": 5000},
    "official": {"train": 82783, "valid": 40504},
    "m_rnn": {"train": 118286, "valid": 4000, "test": 1000},
}
# the broken file that the released code leaves out of all splits
M_RNN_EXCLUDED = 167126


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", help="Files of the split, as listed above.")
    parser.add_argument(
        "--split",
        choices=COCO_IMAGES,
        default="karpathy",
        help="Division of the images into splits (default: %(default)s).",
    )
    parser.add_argument(
        "--split-ids",
        nargs="+",
        default=[],
        metavar="SPLIT=FILE",
        help="Lists of the validation and test images, for --split m_rnn.",
    )


def read(args: argparse.Namespace) -> Corpus:
    return read_coco(args.split, args.files, split_files(args.split_ids))


def read_coco(division: str, files: list[Path], lists: dict[str, Path]) -> Corpus:
    """Read COCO captions in one of three divisions into splits; ids are file names.

    ``files`` are ``dataset_coco.json`` for karpathy, otherwise ``captions_train2014.json`` and
    ``captions_val2014.json``. For m_rnn, ``lists`` has the files that list ``valid`` and ``test``.
    """
    names = ["captions_train2014.json", "captions_val2014.json"]
    names = ["dataset_coco.json"] if division == "karpathy" else names
    wanted = ["valid", "test"] if division == "m_rnn" else []
    if len(files) != len(names) or set(lists) != set(wanted):
        raise UserError(
            f"--split {division} reads {' '.join(names)} and --split-ids for "
            f"{' '.join(wanted) or 'no split'}, but {len(files)} files were given, and --split-ids "
            f"for {' '.join(lists) or 'no split'}."
        )
    if division == "karpathy":
        return read_karpathy(files[0], name="coco", published=COCO_IMAGES["karpathy"])
    train, valid = map(read_annotations, files)
    read = [str(path) for path in (*files, *lists.values())]
    corpus = Corpus(CAPTIONS, "coco", division, {}, read, published=COCO_IMAGES[division])
    if division == "official":
        corpus.splits = {"train": list(train.values()), "valid": list(valid.values())}
    else:
        splits = _select_listed(valid, files[1], lists)
        if M_RNN_EXCLUDED in train or M_RNN_EXCLUDED in valid:
            corpus.exceptions["left out, as in the released lists"] = [str(M_RNN_EXCLUDED)]
        # images of val2014 in neither list are trained on, as in the released code
        listed = {image.id for images in splits.values() for image in images}
        train.update((n, image) for n, image in valid.items() if image.id not in listed)
        train.pop(M_RNN_EXCLUDED, None)
        corpus.splits = {"train": list(train.values()), **splits}
    corpus.check_ids()
    return corpus


def _select_listed(
    images: dict[int, Example], source: Path, lists: dict[str, Path]
) -> dict[str, Examples]:
    listed: dict[str, str] = {}
    splits: dict[str, Examples] = {}
    for split, path in lists.items():
        numbers = read_image_numbers(path)
        for number in numbers:
            if number not in images:
                raise UserError(f"{path}: image {number} is not in {source}.")
            check_once(f"image {number}", str(path), listed)
        splits[split] = [images[number] for number in numbers]
    return splits


def read_annotations(path: Path) -> dict[int, Example]:
    """Read an annotation file of the release; return a dict from image number to example.

    Images without captions are included.
    """
    images: dict[int, Example] = {}
    captions: dict[int, list[tuple[int, str]]] = {}
    with release_file(path):
        content = read_json(path)
        for number, image in enumerate(content["images"]):
            where = f"{path}: images[{number}]"
            images[image["id"]] = captioned_image(check_id(image["file_name"], where), [], where)
        for annotation in content["annotations"]:
            caption = (annotation["id"], annotation["caption"].strip())
            captions.setdefault(annotation["image_id"], []).append(caption)
        # by annotation number, so that the order of the file does not matter
        for image_number, numbered in captions.items():
            images[image_number].texts["captions"] += [caption for _, caption in sorted(numbered)]
    return images


def read_image_numbers(path: Path) -> list[int]:
    """Read a file that lists images, and return their numbers.

    The file is a JSON list, or has one image per line. An image is a number, or a file name such as
    ``COCO_val2014_000000391895.jpg``.
    """
    if path.suffix == ".json":
        content = read_json(path)
        entries = [(f"{path}: entry {n}", str(entry)) for n, entry in enumerate(content, 1)]
    else:
        entries = [(f"{path}:{n}", line.strip()) for n, line in read_lines(path) if line.strip()]
    numbers = []
    for where, entry in entries:
        # zeros before a number do not count: lists have 391895 or
        # COCO_val2014_000000391895
        match = re.fullmatch(r"(?:.*[_/])?0*(\d{1,18})(?:\.jpg)?", entry)
        if match is None:
            raise UserError(
                f"{where}: must be an image number or a file name such as "
                f"COCO_val2014_000000391895.jpg, but is {json.dumps(entry[:80])} instead."
            )
        numbers.append(int(match.group(1)))
    return numbers
