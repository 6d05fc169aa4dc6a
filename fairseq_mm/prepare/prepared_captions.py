"""Writes captions as a data folder: everything that a task needs beside the feature store.

``text/<split>.txt`` (tokenised, one caption a line), ``<split>.visual_ids`` (the image of each
line), ``<split>.references.jsonl`` (raw captions by image), ``prepare.json`` (what was read and
how), and ``dict.txt``, ``<split>.bin``, ``<split>.idx`` by ``fairseq-preprocess``.
"""

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Optional

from tqdm import tqdm

from fairseq_mm.data.caption_text import reserved_token
from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import CaptionCorpus, CaptionItem
from fairseq_mm.prepare.prepared import (
    check_output,
    count_unknown,
    partial_folder,
    read_dictionary_words,
    run_preprocess,
    write_report,
)

CAPTION_FILES = frozenset(
    ["dict.txt"]
    + [f"text/{split}.txt" for split in SPLITS]
    + [f"{split}.{e}" for split in SPLITS for e in ("bin", "idx", "visual_ids", "references.jsonl")]
)


def preprocess_arguments(
    folder: Path,
    splits: list[str],
    *,
    threshold: int,
    max_words: int = 0,
    dictionary: Optional[Path] = None,
    destination: Optional[Path] = None,
) -> list[str]:
    """Arguments of ``fairseq-preprocess`` for the text of a data folder.

    ``--padding-factor 1``: fairseq would fill the dictionary up to a multiple of 8 with words
    that do not exist, and a softmax gives them probability, which perplexity then pays for.

    Args:
        folder: the data folder, with ``text``.
        splits: those that it has.
        threshold: words that occur less often in train become unknown.
        max_words: at most so many words, the most frequent ones; 0 for all.
        dictionary: taken instead of making one.
        destination: where to write, ``folder`` by default.
    """
    arguments = ["--only-source"]
    for split in splits:
        arguments += [f"--{split}pref", str(folder / "text" / f"{split}.txt")]
    arguments += ["--destdir", str(destination or folder)]
    if dictionary is not None:
        arguments += ["--srcdict", str(dictionary)]
    else:
        arguments += ["--thresholdsrc", str(threshold)]
        if max_words:  # fairseq counts its four control symbols too
            arguments += ["--nwordssrc", str(max_words + 4)]
    return [*arguments, "--padding-factor", "1", "--workers", "1"]


def write_caption_folder(
    corpus: CaptionCorpus,
    output: Path,
    *,
    tokenize: Callable[[str], list[str]],
    settings: dict[str, object],
    threshold: int = 5,
    max_words: int = 0,
    dictionary: Optional[Path] = None,
    skip_empty: bool = False,
    binarize: bool = True,
    overwrite: bool = False,
) -> dict[str, object]:
    """Writes ``corpus`` as a data folder; an interrupted run leaves none.

    Args:
        corpus: items by split.
        output: the folder. Other files in it, such as ``features.h5``, stay.
        tokenize: sentence -> tokens.
        settings: of the tokeniser, for ``prepare.json``.
        threshold: words that occur less often in train become unknown.
        max_words: size limit of the dictionary; 0 for none.
        dictionary: a ``dict.txt`` to take instead of making one.
        skip_empty: leave out captions without any word (counted), and images without a caption
            (listed), instead of refusing them.
        binarize: run fairseq-preprocess.
        overwrite: replace prepared data that stands there.

    Returns:
        The content of ``prepare.json``.

    Raises:
        UserError: if the folder has prepared data, a caption has no word or holds a control
            symbol, or no word is frequent enough.
    """
    check_output(output, CAPTION_FILES, kind="captions", overwrite=overwrite)
    with partial_folder(output, CAPTION_FILES, kind="captions", overwrite=overwrite) as partial:
        (partial / "text").mkdir()
        counts: dict[str, dict[str, int]] = {}
        words: Counter[str] = Counter()
        exceptions = dict(corpus.exceptions)
        for split, items in corpus.items.items():
            counts[split], frequencies, dropped = _write_split(
                partial, split, items, tokenize=tokenize, skip_empty=skip_empty
            )
            if not counts[split]["captions"]:
                raise UserError(f"{', '.join(corpus.files)}: no captions for {split}.")
            if dropped:
                exceptions[f"{split} images without a caption"] = dropped
            if split == "train":
                words = frequencies
        if dictionary is None and words.most_common(1)[0][1] < threshold:
            raise UserError(
                f"no word occurs {threshold} times or more in the {counts['train']['captions']} "
                "training captions; give a smaller --threshold."
            )
        command: dict[str, Any] = {
            "threshold": threshold,
            "max_words": max_words,
            "dictionary": dictionary,
        }
        splits = list(counts)
        if binarize:
            run_preprocess(preprocess_arguments(partial, splits, **command))
        report: dict[str, object] = {
            "data_set": corpus.name,
            "split": corpus.split,
            "files": corpus.files,
            "options": {
                **settings,
                "threshold": None if dictionary else threshold,
                "max_words": max_words,
                "dictionary": str(dictionary) if dictionary else None,
                "skip_empty": skip_empty,
            },
            "counts": counts,
            "deviations": corpus.deviations(),
            "exceptions": exceptions,
            "notes": corpus.notes,
            "command": shlex.join(
                ["fairseq-preprocess", *preprocess_arguments(output, splits, **command)]
            ),
        }
        if binarize:
            known = read_dictionary_words(partial / "dict.txt")
            report["dictionary_words"] = len(known)
            for split in counts:
                counts[split]["unknown"] = count_unknown(partial / "text" / f"{split}.txt", known)
        return write_report(partial, "captions", report)


def _write_split(
    folder: Path,
    split: str,
    items: list[CaptionItem],
    *,
    tokenize: Callable[[str], list[str]],
    skip_empty: bool,
) -> tuple[dict[str, int], "Counter[str]", list[str]]:
    """Writes a split's text, ids and references: counts, word counts, ids of images left out."""
    counts = {"images": 0, "captions": 0, "words": 0, "empty_captions_skipped": 0}
    frequencies: Counter[str] = Counter()
    text, ids, references, left_out = [], [], [], []
    for item in tqdm(items, desc=split, unit=" images", disable=None):  # on a terminal only
        kept = []
        for number, caption in enumerate(item.captions, 1):
            tokens = tokenize(caption)
            if not tokens and not skip_empty:
                raise UserError(
                    f"{item.where}: caption {number} of {item.id} has no word: {caption!r}; "
                    "--skip-empty leaves such captions out."
                )
            if not tokens:
                counts["empty_captions_skipped"] += 1
                continue
            symbol = reserved_token(tokens)
            if symbol is not None:
                raise UserError(
                    f"{item.where}: caption {number} of {item.id} holds fairseq's control symbol "
                    f"{symbol}, which would be read as such."
                )
            text.append(" ".join(tokens))
            ids.append(item.id)
            frequencies.update(tokens)
            kept.append(caption)
        if kept:
            line = {"id": item.id, "references": kept}
            references.append(json.dumps(line, ensure_ascii=False))
            counts["images"] += 1
            counts["captions"] += len(kept)
        elif skip_empty:
            left_out.append(item.id)
        else:
            raise UserError(
                f"{item.where}: image {item.id} has no caption; --skip-empty leaves it out."
            )
    counts["words"] = sum(frequencies.values())
    _write_lines(folder / "text" / f"{split}.txt", text)
    _write_lines(folder / f"{split}.visual_ids", ids)
    _write_lines(folder / f"{split}.references.jsonl", references)
    return counts, frequencies, left_out


def _write_lines(path: Path, lines: list[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
