"""Karpathy's division files: ``dataset_coco.json``, ``dataset_flickr30k.json`` and so on.

One JSON object with ``images``, each with ``filename``, ``split`` and ``sentences`` (``raw`` and
``tokens``), and on COCO ``filepath`` and ``cocoid`` too. ``restval`` are those validation images
of 2014 that train together with the training images.
"""

from pathlib import Path
from typing import Any

from fairseq_mm.data.input_files import check_id, read_json
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import TABLE, captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example, in_order
from fairseq_mm.prepare.split_lists import fields_at, list_entries

_SPLITS = {"train": "train", "restval": "train", "val": "valid", "test": "test"}


def read_karpathy(
    path: Path, *, name: str, published: dict[str, int], key: str = "filename"
) -> Corpus:
    """
    Args:
        path: the division file.
        name: the data set that it must hold, as in its field ``dataset``.
        published: split -> images expected.
        key: the field that becomes the id.

    Raises:
        UserError: naming the file and the image's number, if it holds another data set or an
            image lacks a field.
    """
    content: Any = read_json(path)
    entries = list(list_entries(content, path, "images"))
    if content.get("dataset", name) != name:
        raise UserError(f"{path}: must hold {name}, but holds {content['dataset']} instead.")
    images: dict[str, list[Example]] = {}
    for where, entry in entries:
        with fields_at(where):
            found, image_id = str(entry["split"]), entry[key]
            captions = [sentence["raw"].strip() for sentence in entry["sentences"]]
        if found not in _SPLITS:
            raise UserError(
                f"{where}: `split` must be one of {', '.join(_SPLITS)}, but is {found} instead."
            )
        image = captioned_image(check_id(str(image_id), where), captions, where)
        images.setdefault(_SPLITS[found], []).append(image)
    corpus = Corpus(
        TABLE, name, "karpathy", in_order(images), files=[str(path)], published=published
    )
    corpus.check_ids()
    return corpus
