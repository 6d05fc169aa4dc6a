"""Keeps the binarised text of records, which training reads, up to date.

fairseq's ``<split>*.bin`` and ``.idx`` are a cache of ``<split>.jsonl``: ``prepare.json`` has a
digest of the records and the cache. If it differs, because the records or the dictionary were
edited, or files of two folders were mixed, the text is binarised anew. A file whose size and time
``prepare.json`` records is not read for this comparison.
"""

import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary, data_utils

from fairseq_mm.data.binarised_text import binarise, load_binarised_text, load_dictionary
from fairseq_mm.data.caption_text import reserved_token
from fairseq_mm.data.folder_lock import FolderInUseError, only_writer
from fairseq_mm.data.output_file import partial_path
from fairseq_mm.data.record_split import (
    LANGUAGE_MODELS,
    Folder,
    Split,
    is_cache_current,
    record_digests,
)
from fairseq_mm.data.records import ImportedSplit
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)


def write_cache(folder: Folder, name: str) -> None:
    """Binarise the records of a split with the dictionaries of the folder.

    The files are those of ``fairseq-preprocess``. In a folder of prompts, they are also written to
    the subfolders for language models.
    """
    split = Split(folder, name)
    with partial_path(str(split.base(None))) as partial:
        os.mkdir(partial)
        for side in split.sides or (None,):
            base = os.path.join(partial, split.base(side).name)
            dictionary = load_dictionary(split.dictionary_path(side))
            binarise(_checked_tokens(split, side), dictionary, base)
            # the paths at which a language model reads this side of the pairs
            root = Path(folder)
            folders = [root / x for x, its_side in LANGUAGE_MODELS.items() if its_side == side]
            for target in (split.base(side), *(x / name for x in folders if x.is_dir())):
                for end in ("bin", "idx"):
                    copy = f"{base}.{end}.copy"
                    shutil.copyfile(f"{base}.{end}", copy)
                    os.replace(copy, f"{target}.{end}")


def _checked_tokens(split: Split, side: Optional[str]) -> Iterator[list[str]]:
    for line, words in enumerate(split.iterate_tokens(side)):
        if reserved_token(words) is not None:
            where = split.where(line)
            raise UserError(f"{where}: has one of fairseq's control symbols in its text.")
        yield words


def load_texts(split: Split, dictionaries: Sequence[Dictionary]) -> list[Any]:
    """Load the binarised texts of a split: source and target, or the only text.

    If they do not belong to the split's records, binarise the records; other processes wait.
    """
    bases = [str(split.base(side)) for side in split.sides or (None,)]
    if isinstance(split, ImportedSplit):
        texts = []
        counts = {} if split.keys is None else {f"{split.name}.visual_ids": len(split.keys)}
        for base, dictionary in zip(bases, dictionaries):
            text = load_binarised_text(base, num_types=len(dictionary), end=dictionary.eos())
            texts.append(text)
            counts[f"{base}.idx"] = len(text)
        if len(set(counts.values())) > 1:
            shown = ", but ".join(f"{name} has {count} lines" for name, count in counts.items())
            raise UserError(f"{shown}: they must agree line by line.")
        return texts
    while not is_cache_current(split.folder, split.name):
        try:
            with only_writer(split.folder):
                if not is_cache_current(split.folder, split.name):
                    logger.info(f"{split.path}: is not the text that was binarised; binarising it")
                    write_cache(split.folder, split.name)
                    record_digests(split.folder, [split.name])
        except FolderInUseError:
            time.sleep(0.5)
        except OSError as error:
            raise UserError(
                f"{split.path}: must be binarised anew, but {split.folder} cannot be written "
                f"({error.strerror})."
            ) from None
    return [data_utils.load_indexed_dataset(base) for base in bases]
