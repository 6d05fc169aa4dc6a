"""Reads generated texts: fairseq-generate's output, JSONL, plain text files, COCO results.

The format is found from the content. Texts are returned by item id; what is twice, or belongs to
no item, is reported and not scored.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Optional

from fairseq_mm.data.input_files import parse_json
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.generated_output import (
    GeneratedOutput,
    has_generated_lines,
    parse_generated,
)


@dataclass
class Hypotheses:
    """Texts by item id, in the order of the file.

    Args:
        texts: item id -> text.
        layout: what the file was read as.
        repeated: ids with several texts where one is expected; the first is in ``texts``.
        unused: how many texts were left out by rule: lower ranks of an n-best list, and lines of
            an item after its first.
        cut_short: ids of items whose lines are incomplete at the end of the file.
        equal_to_targets: ids of all items, if every text equals its ``T-`` line.
        output: fairseq-generate's output, if it is one.
    """

    texts: dict[str, str]
    layout: str
    repeated: list[str] = field(default_factory=list)
    unused: int = 0
    cut_short: list[str] = field(default_factory=list)
    equal_to_targets: list[str] = field(default_factory=list)
    output: Optional[GeneratedOutput] = None
    _last_key: Optional[str] = None
    _returned: set[str] = field(default_factory=set)

    def add(self, key: str, text: str) -> None:
        if key in self.texts:
            if key not in self.repeated:
                self.repeated.append(key)
            if key != self._last_key:
                self._returned.add(key)
        else:
            self.texts[key] = text
        self._last_key = key

    def check_one_run(self, path: str) -> None:
        """
        Raises:
            UserError: If every id comes back after others, as in two files that were joined.
        """
        if len(self._returned) == len(self.texts) > 1:
            raise UserError(
                f"{path}: each of its {len(self.texts)} ids (such as {self.repeated[0]!r}) comes "
                "twice or more: the file must hold one run, but holds several; score each run by "
                "itself."
            )


def read_hypotheses(
    path: str,
    *,
    item_ids: Sequence[str],
    visual_ids: Optional[Sequence[str]] = None,
    split: Optional[str] = None,
) -> Hypotheses:
    """Reads a file of generated texts.

    Args:
        path: the file.
        item_ids: ids of the references in their order: line i of a plain text file is item i,
            unless its lines begin with ids and tabs, as those of fairseq-mm caption.
        visual_ids: id of each line of the split, which joins fairseq-generate's line numbers (and
            plain text files that have a line for each of them) to items.
        split: the split's name: output that fairseq-generate made of another one is refused, whose
            line numbers would fit just as well.

    Raises:
        UserError: naming file and line, if it is in none of the formats, or empty, or has another
            number of lines than expected.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read as text: {reason}") from None
    if not text.strip():
        raise UserError(f"{path}: must have generated texts, but is empty.")
    if re.match(r"\s*\[\s*(\{|\]\s*$)", text):
        return _read_coco_results(path, text)
    if re.match(r"\s*\{", text):
        return _read_jsonl(path, text)
    if has_generated_lines(path, text):
        return _read_generated(path, text, visual_ids, split)
    return _read_plain(path, text, item_ids, visual_ids)


def _read_coco_results(path: str, text: str) -> Hypotheses:
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path}: must be COCO results, but is no JSON: {error}") from None
    hypotheses = Hypotheses({}, "coco")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("caption"), str):
            raise UserError(
                f'{path}: entry {number} must be {{"image_id": ..., "caption": "..."}}, but is '
                f"{str(entry)[:60]!r} instead."
            )
        if "image_id" not in entry:
            raise UserError(f"{path}: entry {number} has no image_id.")
        hypotheses.add(str(entry["image_id"]), entry["caption"])
    hypotheses.check_one_run(path)
    return hypotheses


def _read_jsonl(path: str, text: str) -> Hypotheses:
    hypotheses = Hypotheses({}, "jsonl")
    made_by: dict[str, tuple[int, Any]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: must be a JSON object: {error}") from None
        found = entry if isinstance(entry, dict) else {}
        hypothesis = found.get("hypothesis", found.get("caption"))
        key = found.get("id")
        is_id = isinstance(key, (str, int)) and not isinstance(key, bool)
        if not isinstance(hypothesis, str) or not is_id:
            raise UserError(
                f'{path}:{number}: must be {{"id": "...", "hypothesis": "..."}} or {{"id": "...", '
                f'"caption": "..."}}, but is {line[:60]!r} instead.'
            )
        for name in ("checkpoint", "options"):
            first, value = made_by.setdefault(name, (number, found.get(name)))
            if found.get(name) != value:
                raise UserError(
                    f"{path}:{number}: has another {name!r} than line {first}: the file must hold "
                    "one run, but holds several; score each run by itself."
                )
        hypotheses.add(str(found["id"]), hypothesis)
    hypotheses.check_one_run(path)
    return hypotheses


def _read_generated(
    path: str, text: str, visual_ids: Optional[Sequence[str]], split: Optional[str]
) -> Hypotheses:
    output = parse_generated(path, text)
    if output.is_reference_scores:
        raise UserError(
            f"{path}: is the output of fairseq-generate --score-reference, whose texts are the "
            "references; give it as --reference-scores."
        )
    if visual_ids is None:
        raise UserError(
            f"{path}: is fairseq-generate's output, whose line numbers need --data and --split to "
            "be joined with references."
        )
    for generated in output.splits:
        if split is not None and split not in generated.split(","):
            raise UserError(
                f"{path}: was generated for the split {generated}, but --split is {split}."
            )
    # detokenised lines are the texts, where they are printed
    lines = {**output.hypotheses, **output.detokenised}
    beyond = [number for number in lines if number >= len(visual_ids)]
    if beyond:
        raise UserError(
            f"{path}: line {max(beyond)} must be one of the split's {len(visual_ids)} lines "
            "(counted from 0); it was generated from another split or data folder."
        )
    hypotheses = Hypotheses({}, "fairseq-generate", output=output)
    # The same number of texts everywhere is an n-best list; more for some lines are repetitions.
    counts = Counter(len(texts) for texts in lines.values())
    n_best = min(counts, default=0)
    for number in sorted(lines):
        texts, key = lines[number], visual_ids[number]
        best = max(texts, key=lambda scored: scored[0])[1] if n_best > 1 else texts[0][1]
        if key in hypotheses.texts:  # a later line of the same item
            hypotheses.unused += len(texts)
            continue
        hypotheses.texts[key] = best
        hypotheses.unused += n_best - 1
        if len(texts) > n_best:
            hypotheses.repeated.append(key)
    if output.cut_short is not None and output.cut_short < len(visual_ids):
        key = visual_ids[output.cut_short]
        if key not in hypotheses.texts:  # no earlier line of the item is scored
            hypotheses.cut_short.append(key)
    if output.repeats_targets():
        hypotheses.equal_to_targets = list(hypotheses.texts)
    return hypotheses


def _begin_with_ids(path: str, lines: Sequence[str], item_ids: Sequence[str]) -> bool:
    """Whether each line is an id, or a path that ends with it, a tab and a text.

    Raises:
        UserError: if most are, and one has no tab: a file that was cut short.
    """
    known = set(item_ids)
    keys = [line.split("\t")[0] for line in lines if "\t" in line]
    count = sum(key in known or PurePosixPath(key).name in known for key in keys)
    if len(keys) == len(lines):
        return count > 0
    if 2 * count <= len(lines):
        return False
    number = next(number for number, line in enumerate(lines, 1) if "\t" not in line)
    raise UserError(
        f"{path}:{number}: must be an id, a tab and a text, as other lines are, but has no tab."
    )


def _read_plain(
    path: str, text: str, item_ids: Sequence[str], visual_ids: Optional[Sequence[str]]
) -> Hypotheses:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if _begin_with_ids(path, lines, item_ids):
        hypotheses = Hypotheses({}, "ids and text")
        for line in lines:
            key, text = line.split("\t")[:2]
            hypotheses.add(key, text)
        hypotheses.check_one_run(path)
        return hypotheses
    hypotheses = Hypotheses({}, "text")
    if len(lines) == len(item_ids):
        hypotheses.texts = dict(zip(item_ids, lines))
    elif visual_ids is not None and len(lines) == len(visual_ids):
        for key, line in zip(visual_ids, lines):
            if hypotheses.texts.setdefault(key, line) != line and key not in hypotheses.repeated:
                hypotheses.repeated.append(key)
        hypotheses.unused = len(lines) - len(hypotheses.texts)
    else:
        of_split = "" if visual_ids is None else f" or the split's {len(visual_ids)} lines"
        raise UserError(
            f"{path}: must have a line for each of {len(item_ids)} items{of_split}, but has "
            f"{len(lines)} lines."
        )
    return hypotheses
