"""Counts n-grams of a data folder for training with rewards by CIDEr-D.

  fairseq-mm frequencies DATA
  fairseq-mm frequencies DATA --documents 20000

The command reads the texts of a split and writes SPLIT.document_frequencies.npz to the data folder:
in how many items (images, image sequences, videos or prompts) each sequence of up to four words
occurs. fairseq-train --criterion self_critical reads the file. Run the command again if the texts
have changed. All sequences of words are held in memory; for a large split of long texts, give
--documents.
"""

import argparse
import os
from typing import Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.run_set_up import register_quietly


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="Data folder, made by fairseq-mm prepare.")
    arguments.add(
        parser, "split", split={"default": "train", "help": "Split to count (default: train)."}
    )
    parser.add_argument(
        "--documents",
        type=arguments.positive,
        metavar="N",
        help="Count N items, spread evenly over the split (default: all items).",
    )


def run(args: argparse.Namespace) -> None:
    arguments.check(args)
    register_quietly()
    import numpy as np

    from fairseq_mm.metrics.document_frequencies import (
        count_frequencies,
        digest_texts,
        frequencies_path,
        write_frequencies,
    )

    lines, items, text, paths = _read_split(args.data, args.split)
    order = np.argsort(items, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(items[order])) + 1)
    count = min(args.documents or len(groups), len(groups))
    chosen = (groups[i * len(groups) // count] for i in range(count))
    frequencies = count_frequencies(
        [text.words(lines[int(line)].tolist()) for line in group] for group in chosen
    )
    path = frequencies_path(args.data, args.split)
    write_frequencies(path, frequencies, count, spell=text.spell, texts=digest_texts(paths))
    print(f"{path}: {len(frequencies)} n-grams of {count} items")


def _read_split(data: str, split: str) -> tuple[Any, Any, Any, list[str]]:
    """Read the texts of a split.

    Returns:
        lines: Token indices of each line.
        items: For each line, the number of its image, image sequence, video or prompt.
        text: Conversion of token indices to the words that rewards compare.
        paths: Paths of the files that were read.
    """
    import numpy as np

    from fairseq_mm.cli.doctor import KINDS, find_data_folder
    from fairseq_mm.data.binarised_text import load_binarised_text, load_dictionary
    from fairseq_mm.data.input_files import check_line_counts
    from fairseq_mm.data.reward_text import RewardText, text_files
    from fairseq_mm.data.split_files import read_visual_ids
    from fairseq_mm.data.story_text import SEPARATOR
    from fairseq_mm.data.subwords import Subwords

    kind = find_data_folder(data)[1]
    dictionary = load_dictionary(os.path.join(data, KINDS[kind].dictionaries[-1]))
    source, target = KINDS[kind].languages or (None, None)
    paths = text_files(os.path.join(data, split), (source, target))
    base = paths[0][: -len(".bin")]
    lines = load_binarised_text(base, num_types=len(dictionary), end=dictionary.eos())
    items = np.arange(len(lines))
    if os.path.exists(paths[2]) or KINDS[kind].inputs == "images":
        visual_ids = read_visual_ids(paths[2])
        check_line_counts({f"{base}.idx": len(lines), paths[2]: len(visual_ids)})
        numbers: dict[str, int] = {}
        items = np.array([numbers.setdefault(ids, len(numbers)) for ids in visual_ids])
    text = RewardText(dictionary)
    if kind == "visual stories":
        text = RewardText(dictionary, ignored=[dictionary.index(SEPARATOR)])
    elif kind == "videos":
        subwords = Subwords.load(data)
        text = RewardText(dictionary, subwords=None if subwords.kind == "none" else subwords)
    return lines, items, text, paths
