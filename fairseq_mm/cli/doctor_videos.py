"""The doctor's look at folders of videos with transcripts and summaries, and at their models."""

import os
from functools import partial
from typing import Any, Optional

from fairseq_mm.cli.doctor_data import (
    SPLITS,
    check_dictionary,
    check_text,
    checked,
    kind_of,
    line_counts,
    prepared_as,
    read_words,
)
from fairseq_mm.cli.doctor_findings import Finding, note, ok, problem, reason_of
from fairseq_mm.cli.doctor_weights import check_extractor_weights, check_features_fit
from fairseq_mm.errors import UserError

# As prepared_videos.py has them; that module imports what a broken installation may lack.
SOURCE, TARGET = "tran", "desc"
MAX_TOKENS = {SOURCE: 512, TARGET: 64}
MAX_FRAMES = 256

_TEXTS = {SOURCE: "transcript", TARGET: "summary"}
_PLURALS = {SOURCE: "transcripts", TARGET: "summaries"}
_ANEW = "prepare the folder anew with fairseq-mm prepare videos"
# percent of a text's tokens outside the dictionary that are more than rare words
_MANY_UNKNOWN = 20


def holds_videos(folder: str) -> bool:
    if any(os.path.exists(_dictionary_of(folder, side)) for side in _TEXTS):
        return True
    return kind_of(folder) == "videos"


def _dictionary_of(folder: str, side: str) -> str:
    return os.path.join(folder, f"dict.{side}.txt")


def check_videos(folder: str, store: Any) -> list[Finding]:
    """
    Args:
        folder: of videos.
        store: of their features; None where there is none.
    """
    findings, words = [], {}
    for side in _TEXTS:
        found, more = check_dictionary(_dictionary_of(folder, side))
        findings += more
        if found is not None:
            words[side] = found
    if len(words) < len(_TEXTS):
        return findings
    if words[SOURCE] != words[TARGET]:
        text = f"is not the dictionary of {_dictionary_of(folder, TARGET)}, but must be the same"
        findings.append(problem(_dictionary_of(folder, SOURCE), text, _ANEW))
    try:
        import fairseq_mm.data.binarised_text
        import fairseq_mm.data.multimodal_dataset  # noqa: F401
        from fairseq_mm.data.subwords import Subwords
    except Exception as error:  # a broken package raises anything
        text = f"its text is not checked ({reason_of(error)})"
        return [*findings, note(folder, text, "repair the installation first")]
    subwords = None
    try:
        subwords = Subwords.load(folder)
    except UserError as error:
        findings.append(problem("subwords", str(error), _ANEW))
    else:
        findings += _check_subwords(folder, subwords, words[SOURCE])
    if store is None and not os.path.exists(os.path.join(folder, "features.h5")):
        text = "has no features.h5; models that read the transcript alone need none"
        findings.append(note(folder, text, "make it with fairseq-mm extract"))
    splits = [split for split in SPLITS if _has_split(folder, split)]
    if not splits:
        text = f"has none of the splits {', '.join(SPLITS)}"
        findings.append(problem(folder, text, "run fairseq-mm prepare videos"))
    numbered = subwords is not None and subwords.numbered_unknowns > 0
    for split in splits:
        findings += _check_split(folder, split, len(words[SOURCE]), store, numbered)
    return findings


def _check_subwords(folder: str, subwords: Any, words: list[str]) -> list[Finding]:
    from fairseq_mm.data.numbered_unknowns import numbered_unknown

    findings = []
    recorded = prepared_as(folder).get("options", {}).get("subwords_fingerprint")
    if recorded not in (None, subwords.fingerprint):
        text = f"the folder was prepared with others ({recorded}) than it has now"
        text += f" ({subwords.fingerprint}, {subwords.kind})"
        findings.append(problem("subwords", text, _ANEW))
    known = set(words)
    lacking = [
        numbered_unknown(k)
        for k in range(subwords.numbered_unknowns)
        if numbered_unknown(k) not in known
    ]
    if lacking:
        text = (
            f"the dictionary lacks {lacking[0]} of {subwords.numbered_unknowns} numbered unknowns"
        )
        findings.append(problem("subwords", text, _ANEW))
    if not findings:
        text = f"{subwords.kind}, {subwords.fingerprint}"
        if subwords.numbered_unknowns:
            text += f", {subwords.numbered_unknowns} numbered unknowns"
        findings.append(ok("subwords", text))
    return findings


def _text_of(folder: str, split: str, side: str) -> str:
    """Path of a half of the pairs, without ``.bin`` and ``.idx``."""
    return os.path.join(folder, f"{split}.{SOURCE}-{TARGET}.{side}")


def _has_split(folder: str, split: str) -> bool:
    paths = [f"{_text_of(folder, split, side)}.{end}" for side in _TEXTS for end in ("idx", "bin")]
    paths += [os.path.join(folder, f"{split}.visual_ids")]
    return any(map(os.path.exists, paths))


def _check_split(
    folder: str, split: str, num_words: int, store: Any, numbered: bool
) -> list[Finding]:
    from fairseq_mm.data.multimodal_dataset import check_line_counts
    from fairseq_mm.data.references import read_references
    from fairseq_mm.data.unknowns_file import read_unknowns
    from fairseq_mm.data.visual_ids import read_visual_ids

    base = os.path.join(folder, split)
    findings: list[Finding] = []
    sizes: dict[str, Any] = {}
    said: dict[str, str] = {}
    for side in _TEXTS:
        check = partial(check_text, _text_of(folder, split, side), num_words, sizes)
        findings += checked(split, _ANEW, check)
    counts = line_counts(sizes, *(os.path.join(folder, "text", f"{split}.{x}") for x in _TEXTS))
    try:
        visual_ids = read_visual_ids(f"{base}.visual_ids")
        counts[f"{base}.visual_ids"] = len(visual_ids)
        if numbered:
            counts[f"{base}.unknowns.jsonl"] = len(read_unknowns(f"{base}.unknowns.jsonl"))
    except UserError as error:
        return [*findings, problem(split, str(error), _ANEW)]
    findings += checked(split, _ANEW, partial(check_line_counts, counts))
    path = f"{base}.references.jsonl"
    if os.path.exists(path) or split != "train":
        try:
            references = read_references(path)
        except UserError as error:
            findings.append(problem(split, str(error), _ANEW))
        else:
            absent = [key for key in visual_ids if key not in references]
            if absent:
                text = f"{len(absent)} of {len(visual_ids)} videos have no references, the first "
                findings.append(problem(split, f"{text}{absent[0]!r}", _ANEW))
    if any(finding.level == "PROBLEM" for finding in findings):
        return findings
    for side in _TEXTS:
        said[side], more = _describe_text(folder, split, side, num_words, sizes)
        findings += more
    if store is not None:
        said["frames"], more = _check_frames(split, visual_ids, store)
        findings += more
    if not any(finding.level == "PROBLEM" for finding in findings):
        findings.append(ok(split, f"{len(visual_ids)} videos; {'; '.join(said.values())}"))
    return findings


def _describe_text(
    folder: str, split: str, side: str, num_words: int, found: dict[str, Any]
) -> tuple[str, list[Finding]]:
    """Of a text that was found whole: its lengths and unknown words."""
    from fairseq_mm.data.binarised_text import load_binarised_text

    base = _text_of(folder, split, side)
    text, sizes = load_binarised_text(base, num_types=num_words + 4, end=2), found[base]
    unknown = sum(int((text[i] == 3).sum()) for i in range(len(text)))
    share = 100 * unknown / max(1, int(sizes.sum()) - len(sizes))
    cut = int((sizes > MAX_TOKENS[side]).sum())
    description = (
        f"{_PLURALS[side]} of {sizes.min()} to {sizes.max()} tokens, {cut} cut to "
        f"{MAX_TOKENS[side]}, {share:.2f} % unknown"
    )
    if share <= _MANY_UNKNOWN:
        return description, []
    many = f"{share:.0f} % of the tokens in {_PLURALS[side]} are unknown"
    remedy = "prepare with a smaller --threshold, with subwords, or from more training text"
    return description, [note(split, many, remedy)]


def _check_frames(split: str, visual_ids: list[str], store: Any) -> tuple[str, list[Finding]]:
    import numpy as np

    keys = list(dict.fromkeys(visual_ids))
    absent = [key for key in keys if key not in store]
    if absent:
        text = (
            f"{len(absent)} of {len(keys)} videos have no features in {store.path}, the first "
            f"{absent[0]!r}"
        )
        return "", [
            problem(split, text, "extract them and join the stores: fairseq-mm store merge")
        ]
    rows = np.array([store.rows_of(key) for key in keys])
    cut = int((rows > MAX_FRAMES).sum())
    return (
        f"videos of {rows.min()} to {rows.max()} rows of features, median {np.median(rows):g}, "
        f"{cut} cut to {MAX_FRAMES}",
        [],
    )


def check_video_checkpoint(
    file: str,
    state: Any,
    folder: Optional[str],
    store: Any,
    weights: Optional[str] = None,
) -> list[Finding]:
    """
    Args:
        file: a checkpoint of a model that summarises videos or transcripts.
        state: its content.
        folder: data folder to compare it with.
        store: features to compare it with.
        weights: state dict file of its extractor; None looks for it beside the checkpoint.
    """
    from fairseq_mm.inference.checkpoints import provenance_of
    from fairseq_mm.models._provenance import STATE_KEY, fingerprint

    if STATE_KEY not in state["model"]:
        arch = state["cfg"]["model"]["_name"]
        text = f"carries no dictionary, as none of fairseq's own models does (--arch {arch})"
        return [note("checkpoint", text, "generate with the data folder that it was trained on")]
    try:
        carried = provenance_of(state, file)
    except UserError as error:
        return [problem("checkpoint", str(error), "name another checkpoint")]
    ours = carried["words"]
    kind = (carried.get("subwords") or {}).get("kind", "none")
    findings = [
        ok("checkpoint", f"dictionary of {len(ours)} words, {fingerprint(ours)}, subwords {kind}")
    ]
    if folder is not None:
        findings += _compare_with_folder(carried, folder)
    if carried["feature_dim"]:
        findings += check_extractor_weights(carried["extractor"], file, weights)
        findings += check_features_fit(carried, store)
    return findings


def _compare_with_folder(carried: dict[str, Any], folder: str) -> list[Finding]:
    from fairseq_mm.data.subwords import Subwords
    from fairseq_mm.models._provenance import fingerprint

    if not holds_videos(folder):
        if not os.path.isdir(folder):
            return []  # said of the folder
        text = f"summarises videos, but {folder} has none"
        return [problem("checkpoint", text, "name a folder made by fairseq-mm prepare videos")]
    remedy = "use the folder that it was trained on, or prepare with its dictionary and subwords"
    ours, words = carried["words"], read_words(_dictionary_of(folder, TARGET))
    if isinstance(words, list) and words != ours:
        text = (
            f"its dictionary ({len(ours)} words, {fingerprint(ours)}) is not that of {folder} "
            f"({len(words)} words, {fingerprint(words)})"
        )
        return [problem("checkpoint", text, remedy)]
    try:
        trained = Subwords.from_state(carried.get("subwords") or {"kind": "none"})
        given = Subwords.load(folder)
    except UserError as error:
        return [problem("checkpoint", str(error), remedy)]
    if trained.fingerprint != given.fingerprint:
        text = (
            f"its subwords ({trained.kind}, {trained.fingerprint}) are not those of {folder} "
            f"({given.kind}, {given.fingerprint})"
        )
        return [problem("checkpoint", text, remedy)]
    return []
