"""The doctor's look at feature stores and data folders."""

import importlib.util
import json
import os
from collections import Counter
from typing import Any, Callable, Optional

from fairseq_mm.cli.doctor_findings import Finding, note, ok, problem
from fairseq_mm.errors import UserError

SPLITS = ("train", "valid", "test")
_SPLIT_FILES = ("idx", "bin", "visual_ids", "references.jsonl")


def check_features(paths: list[str]) -> tuple[Any, list[Finding]]:
    """The stores, opened as one, and what was found; None where they cannot be."""
    subject = os.pathsep.join(paths)
    try:
        from fairseq_mm.data.feature_store import open_features
    except ImportError as error:
        return None, [note(subject, f"not checked ({error})", "repair h5py and numpy first")]
    try:
        store = open_features(paths)
        store.check_finite(reread=True)
    except UserError as error:
        return None, [problem("features", str(error), "make it anew with extract or store import")]
    findings = [ok(subject, f"{len(store)} items of {store.dim} channels, all finite")]
    name = store.attributes.get("extractor")
    if name:
        weights = str(store.attributes.get("weights", "unknown weights"))
        findings.append(ok("extractor", f"{name}, {weights[:40]}"))
    else:
        findings.append(
            note(
                "extractor",
                f"{subject} does not say which network made it: images cannot be captioned",
                "store import with --extractor, --weights, --layer and --preprocessing",
            )
        )
    return store, findings


def check_data(folder: str, store: Any) -> list[Finding]:
    if not os.path.isdir(folder):
        return [problem(folder, "no such folder", "make it with fairseq-mm prepare")]
    if importlib.util.find_spec("numpy") is None:
        return [note(folder, "not checked", "install numpy first")]
    words, findings = check_dictionary(os.path.join(folder, "dict.txt"))
    if words is None:
        return findings
    splits = [
        split
        for split in SPLITS
        if any(os.path.exists(os.path.join(folder, f"{split}.{end}")) for end in _SPLIT_FILES)
    ]
    if not splits:
        findings.append(
            problem(folder, f"has none of the splits {', '.join(SPLITS)}", "run fairseq-mm prepare")
        )
    for split in splits:
        findings += check_split(folder, split, len(words), store)
    return findings


def check_dictionary(path: str) -> tuple[Optional[list[str]], list[Finding]]:
    """The words of a dictionary, and what was found; None where it cannot be read."""
    words = read_words(path)
    if isinstance(words, Finding):
        return None, [words]
    findings = [ok(path, f"{len(words)} words")]
    for word, count in Counter(words).most_common(1):
        if count > 1:
            findings.append(problem(path, f"has {word!r} twice", "prepare the folder anew"))
    return words, findings


def read_words(path: str) -> Any:
    """The words of a ``dict.txt`` in their order, or what is wrong with it."""
    words = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                fields = line.rstrip("\n").removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
                if len(fields) != 2 or not fields[1].isdigit():
                    return problem(
                        path,
                        f"line {number} must be a word and its count, but is {line.strip()!r}",
                        "prepare the folder anew",
                    )
                words.append(fields[0])
    except OSError as error:
        return problem(path, f"{error.strerror}", "make the folder with fairseq-mm prepare")
    except UnicodeDecodeError:
        return problem(path, "is no UTF-8 text", "prepare the folder anew")
    return words


def check_split(folder: str, split: str, num_words: int, store: Any) -> list[Finding]:
    from fairseq_mm.data.missing_images import read_missing_images
    from fairseq_mm.data.references import read_references
    from fairseq_mm.data.visual_ids import read_visual_ids

    base = os.path.join(folder, split)
    anew = "prepare the folder anew"
    findings = []
    try:
        visual_ids = read_visual_ids(f"{base}.visual_ids")
        missing = read_missing_images(folder)  # known to have no features
    except UserError as error:
        return [problem(split, str(error), anew)]
    sizes: dict[str, Any] = {}
    findings += checked(split, anew, lambda: check_text(base, num_words, sizes))
    counts = {f"{base}.visual_ids": len(visual_ids)}
    counts.update(line_counts(sizes, os.path.join(folder, "text", f"{split}.txt")))
    (first, expected), *others = counts.items()
    for path, count in others:
        if count != expected:
            text = f"{first} has {expected} lines, but {path} has {count}"
            findings.append(problem(split, text, anew))
    items = list(dict.fromkeys(visual_ids))
    path = f"{base}.references.jsonl"
    if os.path.exists(path) or split != "train":
        findings += checked(split, anew, lambda: _check_references(read_references(path), items))
    if store is not None:
        keys = dict.fromkeys(key for item in items for key in item.split("\t"))
        absent = [key for key in keys if key not in store and key not in missing]
        if absent:
            findings.append(
                problem(
                    split,
                    f"{len(absent)} of {len(keys)} ids have no features in {store.path}, the first "
                    f"{absent[0]!r}",
                    "extract them and join the stores with fairseq-mm store merge",
                )
            )
    if not findings:
        findings.append(ok(split, f"{len(visual_ids)} lines of {len(items)} items"))
    return findings


def check_text(base: str, num_words: int, sizes: dict[str, Any]) -> Optional[str]:
    """What is wrong with a binarised text.

    Args:
        base: its path without ``.bin`` and ``.idx``.
        num_words: size of the dictionary, special symbols left out.
        sizes: gets the number of tokens of each line, ``</s>`` included, by ``base``.

    Raises:
        UserError: if it cannot be read, or a line is empty.
    """
    try:
        import numpy as np

        from fairseq_mm.data.binarised_text import load_binarised_text
        from fairseq_mm.data.multimodal_dataset import check_no_empty_line
    except Exception:  # fairseq's own line says why
        return None
    text = load_binarised_text(base, num_types=num_words + 4, end=2)  # fairseq's special symbols
    sizes[base] = np.array(text.sizes)  # a copy: fairseq unmaps the file with ``text``
    if len(text) == 0:
        return f"{base}.idx: has no line"
    check_no_empty_line(f"{base}.idx", sizes[base])
    return None


def line_counts(sizes: dict[str, Any], *paths: str) -> dict[str, int]:
    """Numbers of lines of binarised texts, see :func:`check_text`, and of those text files that
    there are."""
    counts = {f"{base}.idx": len(found) for base, found in sizes.items()}
    for path in paths:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                counts[path] = sum(1 for _ in file)
    return counts


def kind_of(folder: str) -> Optional[str]:
    """What ``prepare.json`` says that a data folder is of; None where it says nothing."""
    return prepared_as(folder).get("kind")


def prepared_as(folder: str) -> dict[str, Any]:
    """The content of ``prepare.json``, empty where there is none."""
    try:
        with open(os.path.join(folder, "prepare.json"), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def checked(subject: str, remedy: str, check: Callable[[], Optional[str]]) -> list[Finding]:
    """The finding of a check that returns or raises what is wrong."""
    try:
        text = check()
    except UserError as error:
        text = str(error)
    return [problem(subject, text, remedy)] if text else []


def _check_references(references: dict[str, list[str]], items: list[str]) -> Optional[str]:
    absent = [item for item in items if item not in references]
    if absent:
        return f"{len(absent)} of {len(items)} items have no references, the first {absent[0]!r}"
    return None
