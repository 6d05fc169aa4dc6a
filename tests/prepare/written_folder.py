"""What stands in a data folder that was written."""

import json

from fairseq_mm.data.records import open_split


def records(folder, split):
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def tokens(folder, split, side=None):
    """Tokens of each line before binarisation, as the folder's tokenizer makes them."""
    return [" ".join(words) for words in open_split(folder, split).tokens(side)]


def keys(folder, split):
    return open_split(folder, split).keys


def binarised(folder, split, side=None):
    """Tokens of each line after binarisation, as fairseq reads them."""
    from fairseq.data import Dictionary, data_utils

    opened = open_split(folder, split)
    dictionary = Dictionary.load(opened.dictionary_path(side))
    return [
        dictionary.string(line)
        for line in data_utils.load_indexed_dataset(str(opened.base(side)), dictionary)
    ]


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
