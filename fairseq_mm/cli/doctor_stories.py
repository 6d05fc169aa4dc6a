"""The doctor's look at folders of prompts and stories, and at the checkpoints of text models."""

import json
import os
from functools import partial
from itertools import zip_longest
from typing import Any, Optional

from fairseq_mm.cli.doctor_data import SPLITS, check_dictionary, checked, read_words
from fairseq_mm.cli.doctor_findings import Finding, note, ok, problem, reason_of
from fairseq_mm.errors import UserError

# As prepared_prompts.py has them; that module imports what a broken installation may lack.
SOURCE, TARGET = "wp_source", "wp_target"
LANGUAGE_MODELS = {"prompts": SOURCE, "stories": TARGET}

# tokens, the end included: tables have 1,024 rows by default, two of which are padding's
NUM_POSITIONS = 1022

_SIDES = {SOURCE: ("source", "prompt"), TARGET: ("target", "story")}
_ANEW = "prepare the folder anew with fairseq-mm prepare prompts"


def story_folder_of(folder: str) -> Optional[str]:
    """The folder of prompts and stories that ``folder`` is, or is a language model's part of."""
    if _holds_stories(folder):
        return folder
    parent, name = os.path.split(os.path.abspath(folder))
    return parent if name in LANGUAGE_MODELS and _holds_stories(parent) else None


def _holds_stories(folder: str) -> bool:
    if any(os.path.exists(_dictionary_of(folder, side)) for side in _SIDES):
        return True
    try:
        with open(os.path.join(folder, "prepare.json"), encoding="utf-8") as file:
            return json.load(file)["kind"] == "prompts"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _dictionary_of(folder: str, side: str) -> str:
    return os.path.join(folder, f"dict.{side}.txt")


def check_stories(folder: str) -> list[Finding]:
    """
    Args:
        folder: of prompts and stories, language models' parts included.
    """
    findings, words = [], {}
    for side in _SIDES:
        found, more = check_dictionary(_dictionary_of(folder, side))
        findings += more
        if found is not None:
            words[side] = found
    if len(words) < len(_SIDES):
        return findings
    parts = []
    for name, side in LANGUAGE_MODELS.items():
        if os.path.isdir(os.path.join(folder, name)):
            parts.append(name)
            findings += _check_same_dictionary(folder, name, words[side])
        else:
            text = "is missing; it is for language models only"
            findings.append(note(os.path.join(folder, name), text, _ANEW))
    try:
        import fairseq_mm.data.binarised_text
        import fairseq_mm.data.multimodal_dataset  # noqa: F401
    except Exception as error:  # a broken package raises anything
        text = f"its text is not checked ({reason_of(error)})"
        return [*findings, note(folder, text, "repair the installation first")]
    splits = [split for split in SPLITS if _has_split(folder, split)]
    if not splits:
        text = f"has none of the splits {', '.join(SPLITS)}"
        findings.append(problem(folder, text, "run fairseq-mm prepare prompts"))
    for split in splits:
        findings += _check_split(folder, split, words, parts)
    return findings


def _check_same_dictionary(folder: str, name: str, expected: list[str]) -> list[Finding]:
    path = os.path.join(folder, name, "dict.txt")
    words = read_words(path)
    if isinstance(words, Finding):
        return [words]
    for number, (ours, theirs) in enumerate(zip_longest(words, expected), start=1):
        if ours != theirs:
            other = _dictionary_of(folder, LANGUAGE_MODELS[name])
            text = (
                f"is not the dictionary of {other} ({len(words)} and {len(expected)} words; they "
                f"differ from line {number} on)"
            )
            return [problem(path, text, _ANEW)]
    return []


def _text_of(folder: str, split: str, side: str) -> str:
    """Path of a half of the pairs, without ``.bin`` and ``.idx``."""
    return os.path.join(folder, f"{split}.{SOURCE}-{TARGET}.{side}")


def _has_split(folder: str, split: str) -> bool:
    paths = [f"{_text_of(folder, split, side)}.{end}" for side in _SIDES for end in ("idx", "bin")]
    paths += [os.path.join(folder, "text", f"{split}.{side}") for side in _SIDES]
    paths += [os.path.join(folder, name, f"{split}.idx") for name in LANGUAGE_MODELS]
    return any(os.path.exists(path) for path in paths)


def _check_split(
    folder: str, split: str, words: dict[str, list[str]], parts: list[str]
) -> list[Finding]:
    from fairseq_mm.data.multimodal_dataset import check_line_counts

    bases = {_text_of(folder, split, side): side for side in _SIDES}
    bases.update((os.path.join(folder, name, split), LANGUAGE_MODELS[name]) for name in parts)
    sizes: dict[str, Any] = {}
    findings = []
    for base, side in bases.items():
        check = partial(_check_binarised, base, len(words[side]), sizes)
        findings += checked(split, _ANEW, check)
    counts = {f"{base}.idx": len(found) for base, found in sizes.items()}
    for side in _SIDES:
        path = os.path.join(folder, "text", f"{split}.{side}")
        if os.path.isfile(path):
            with open(path, "rb") as file:
                counts[path] = sum(1 for _ in file)
    if counts:
        findings += checked(split, _ANEW, partial(check_line_counts, counts))
    for name in parts:
        pair = (_text_of(folder, split, LANGUAGE_MODELS[name]), os.path.join(folder, name, split))
        findings += checked(split, _ANEW, partial(_check_same_lines, sizes, *pair))
    longest = []
    for side, (option, kind) in _SIDES.items():
        found = sizes.get(_text_of(folder, split, side))
        if found is None or not len(found):
            continue
        longest.append(f"longest {kind} of {found.max():,} tokens")
        if found.max() > NUM_POSITIONS:
            text = (
                f"the {kind} of line {found.argmax() + 1} has {found.max():,} tokens, its end "
                f"included, but models have positions for {NUM_POSITIONS:,} by default "
                f"({(found > NUM_POSITIONS).sum()} such lines)"
            )
            remedy = f"train with --max-{option}-positions {found.max() + 2} or --truncate-{option}"
            findings.append(note(split, text, remedy))
    if not any(finding.level == "PROBLEM" for finding in findings):
        pairs = len(sizes[_text_of(folder, split, SOURCE)])
        findings.append(ok(split, f"{pairs} pairs, {', '.join(longest)}"))
    return findings


def _check_binarised(base: str, num_words: int, sizes: dict[str, Any]) -> Optional[str]:
    """Adds the numbers of tokens of its lines to ``sizes``."""
    import numpy as np

    from fairseq_mm.data.binarised_text import load_binarised_text
    from fairseq_mm.data.multimodal_dataset import check_no_empty_line

    text = load_binarised_text(base, num_types=num_words + 4, end=2)  # fairseq's special symbols
    sizes[base] = np.array(text.sizes)  # a copy: fairseq unmaps the file with ``text``
    if len(text) == 0:
        return f"{base}.idx: has no line"
    check_no_empty_line(f"{base}.idx", sizes[base])
    return None


def _check_same_lines(sizes: dict[str, Any], pair: str, part: str) -> Optional[str]:
    ours, theirs = sizes.get(pair), sizes.get(part)
    if ours is None or theirs is None or len(ours) != len(theirs) or (ours == theirs).all():
        return None
    line = int((ours != theirs).argmax())
    return (
        f"line {line + 1} has {ours[line]} tokens in {pair}.idx, but {theirs[line]} in {part}.idx: "
        "they must be of the same text"
    )


def check_text_checkpoint(file: str, state: Any, folder: Optional[str]) -> list[Finding]:
    """
    Args:
        file: a checkpoint of a model of stories, or of a language model.
        state: its content.
        folder: data folder to compare it with.
    """
    from fairseq_mm.inference.checkpoints import provenance_of
    from fairseq_mm.inference.loading import load_models
    from fairseq_mm.models._provenance import STATE_KEY, fingerprint

    another = "name another checkpoint"
    if STATE_KEY not in state["model"]:
        arch = state["cfg"]["model"]["_name"]
        if folder is None:
            text = f"carries no dictionary, as none of fairseq's own models does (--arch {arch})"
            return [note("checkpoint", text, "name its data folder too: --data")]
        try:
            load_models(file, data=folder, device="cpu")
        except UserError as error:
            remedy = "use the folder that it was trained on, or name another checkpoint"
            return [problem("checkpoint", str(error), remedy)]
        text = f"carries no dictionary (fairseq's --arch {arch}); it fits those of {folder}"
        return [ok("checkpoint", text)]
    try:
        provenance = provenance_of(state, file)
        load_models(file, device="cpu", states={file: state})
    except UserError as error:
        return [problem("checkpoint", str(error), another)]
    carried = {"dictionary": provenance["words"]}
    if provenance.get("source_words") is not None:
        carried = {
            "source dictionary": provenance["source_words"],
            "target dictionary": provenance["words"],
        }
    findings = [
        ok("checkpoint", f"{name} of {len(words)} words, {fingerprint(words)}")
        for name, words in carried.items()
    ]
    if folder is not None:
        findings += _compare_dictionaries(carried, folder)
    return findings


def _compare_dictionaries(carried: dict[str, list[str]], folder: str) -> list[Finding]:
    """
    Args:
        carried: of a checkpoint, by name: one of a language model, two of a model of stories.
        folder: of the data.
    """
    from fairseq_mm.models._provenance import fingerprint

    stories = story_folder_of(folder)
    if len(carried) == 2 and stories is None:
        if not os.path.isdir(folder):
            return []  # said of the folder
        text = f"tells stories of prompts, but {folder} has none"
        return [problem("checkpoint", text, "name a folder made by fairseq-mm prepare prompts")]
    if len(carried) == 2:
        paths = [[_dictionary_of(stories, side)] for side in _SIDES]
        remedy = "use the folder that it was trained on, or prepare with --source-dictionary and "
        remedy += "--target-dictionary"
    else:
        # a language model is of either
        paths = [[os.path.join(folder, "dict.txt")]]
        if stories == folder:
            paths = [[_dictionary_of(folder, side) for side in _SIDES]]
        remedy = "use the folder that it was trained on, or prepare with its dictionary"
    findings = []
    for (name, ours), candidates in zip(carried.items(), paths):
        found = {path: read_words(path) for path in candidates}
        if ours in found.values() or any(isinstance(x, Finding) for x in found.values()):
            continue
        theirs = " or ".join(
            f"{path} ({len(words)} words, {fingerprint(words)})" for path, words in found.items()
        )
        text = f"its {name} ({len(ours)} words, {fingerprint(ours)}) is not that of {theirs}"
        findings.append(problem("checkpoint", text, remedy))
    return findings
