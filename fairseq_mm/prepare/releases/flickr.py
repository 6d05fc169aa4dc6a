"""Flickr8k and Flickr30k as their authors released them.

Flickr8k (Hodosh et al. 2013): ``Flickr8k.token.txt`` (``name.jpg#0<TAB>caption``) beside lists of
the training, development and test images. Flickr30k (Young et al. 2014): the same layout
(``results_20130124.token``) or a table (``results.csv``: ``name.jpg| 0| caption``) without lists;
the division that everybody uses, m-RNN's paper too, is Karpathy's ``dataset_flickr30k.json``.
"""

import re
from pathlib import Path
from typing import Optional

from fairseq_mm.data.input_files import check_id, read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import CaptionCorpus, CaptionItem
from fairseq_mm.prepare.releases.karpathy import read_karpathy
from fairseq_mm.prepare.split_lists import read_id_list, select_splits

FLICKR8K_LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "valid": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
FLICKR8K_IMAGES = {"train": 6000, "valid": 1000, "test": 1000}
FLICKR30K_IMAGES = {"train": 29000, "valid": 1014, "test": 1000}


def read_token_file(path: Path) -> dict[str, CaptionItem]:
    """Reads ``name.jpg#0<TAB>caption`` lines: image name -> item, captions by their numbers.

    Raises:
        UserError: ``path:line``, if a line has another form or a caption's number stands twice.
    """
    numbered: dict[str, dict[int, str]] = {}
    first_line: dict[str, int] = {}
    for line_number, line in read_lines(path):
        if not line.strip():
            continue
        key, tab, caption = line.partition("\t")
        image, _, number = key.rpartition("#")
        if not tab or not image or not number.isdecimal():
            raise UserError(
                f"{path}:{line_number}: must be `image#number<TAB>caption`, but is "
                f"{line[:60]!r} instead."
            )
        _add_caption(numbered, image, int(number), caption, f"{path}:{line_number}")
        first_line.setdefault(image, line_number)
    return _items_of(numbered, first_line, path)


def read_results_csv(path: Path) -> tuple[dict[str, CaptionItem], list[str]]:
    """Reads ``name.jpg| 0| caption`` lines under a heading.

    The released table has a line without its second bar (``2199200615.jpg| 4   A dog ...``): the
    number is split off there.

    Returns:
        items: image name -> item.
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
        _add_caption(numbered, image, int(number), caption, f"{path}:{line_number}")
        first_line.setdefault(image, line_number)
    return _items_of(numbered, first_line, path), repaired


def _add_caption(
    numbered: dict[str, dict[int, str]], image: str, number: int, caption: str, where: str
) -> None:
    captions = numbered.setdefault(check_id(image, where), {})
    if number in captions:
        raise UserError(f"{where}: caption {number} of {image} was given before.")
    captions[number] = caption.strip()


def _items_of(
    numbered: dict[str, dict[int, str]], first_line: dict[str, int], path: Path
) -> dict[str, CaptionItem]:
    return {
        image: CaptionItem(
            image, [captions[n] for n in sorted(captions)], f"{path}:{first_line[image]}"
        )
        for image, captions in numbered.items()
    }


def read_flickr8k(folder: Path) -> CaptionCorpus:
    """Reads Flickr8k's text release from one folder; lists other than train's may be absent.

    The release has captions of 92 images that are in no list; one of them carries a name that
    is no image's, ``2258277193_586949ec62.jpg.1``. Both are listed as exceptions.

    Raises:
        UserError: if the captions or the training list are missing, or a line is malformed.
    """
    token_file = folder / "Flickr8k.token.txt"
    corpus = CaptionCorpus(
        name="flickr8k",
        split="official",
        items={},
        files=[str(token_file)],
        published=FLICKR8K_IMAGES,
    )
    captions = read_token_file(token_file)
    lists = {}
    for split, name in FLICKR8K_LISTS.items():
        if split != "train" and not (folder / name).exists():
            corpus.notes.append(f"{split}: skipped, {folder / name} is not there")
            continue
        lists[split] = read_id_list(folder / name)
        corpus.files.append(str(folder / name))
    select_splits(corpus, captions, lists)
    return corpus


def read_flickr30k(karpathy_file: Path, captions_file: Optional[Path] = None) -> CaptionCorpus:
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
    lists = {split: [item.id for item in items] for split, items in corpus.items.items()}
    corpus.files.append(str(captions_file))
    if repaired:
        corpus.exceptions["line without its second bar"] = repaired
    select_splits(corpus, captions, lists)
    return corpus
