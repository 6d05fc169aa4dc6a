"""Reads generated texts: fairseq-generate's output, JSONL, plain text files, COCO results.

The format is detected from the content. Texts are returned by the id of their item (image, video or
story). If an item has several texts, one text is returned and the id is reported.
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
    """Generated texts by item id (of an image, a video or a story), in the order of the file.

    Args:
        texts: Dict from item id to text.
        layout: Detected format of the file.
        repeated: Ids of items that should have one text, but have several; the first text is in
            ``texts``.
        unused: Number of further texts that are ignored without an error: lower ranks of an n-best
            list, and texts of an item's second and later lines in the split.
        cut_short: Ids of items whose lines are incomplete at the end of the file.
        equal_to_targets: Ids of all items, if every text equals its target in the ``T-`` line of
            fairseq-generate's output; otherwise empty.
        output: Parsed output of fairseq-generate; None for files of other formats.
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
            # texts of one item in a row are an n-best list; an id that returns later is another run
            if key != self._last_key:
                self._returned.add(key)
        else:
            self.texts[key] = text
        self._last_key = key

    def check_one_run(self, path: str) -> None:
        """Raise UserError if every id has several texts, as in a file that joins several runs.

        ``path`` is the path of the file, for the message.
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
    """Read a file of generated texts. Raise UserError naming the line, if the format is wrong.

    Args:
        path: Path of the file.
        item_ids: Ids of the items (images, videos or stories) that have references, in order. Line
            i of a plain text file is the text of item i, unless the lines are an id, a tab and a
            text, like the output of fairseq-mm caption.
        visual_ids: Item id of each line of the split. The ids are needed for the output of
            fairseq-generate, and for plain text files with one line per line of the split. With
            None, fairseq-generate's output is refused.
        split: Name of the split; output of fairseq-generate for another split is refused. None
            accepts any split.
    """
    try:
        # editors on Windows begin a file with a byte order mark, which would join the first word
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read as text: {reason}") from None
    # an empty list is a COCO results file without captions
    if re.fullmatch(r"\s*(\[\s*\]\s*)?", text):
        raise UserError(f"{path}: must have generated texts, but is empty.")
    # a caption may begin with a bracket too: only a bracket and an object are JSON
    if re.match(r"\s*\[\s*\{", text):
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
        is_entry = isinstance(entry, dict) and "image_id" in entry
        if not is_entry or not isinstance(entry.get("caption"), str):
            raise UserError(
                f'{path}: entry {number} must be {{"image_id": ..., "caption": "..."}}, but is '
                f"{str(entry)[:60]!r} instead."
            )
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
        entry = entry if isinstance(entry, dict) else {}
        hypothesis = entry.get("hypothesis", entry.get("caption"))
        key = entry.get("id")
        # True is an int in Python, but no id
        is_id = isinstance(key, (str, int)) and not isinstance(key, bool)
        if not isinstance(hypothesis, str) or not is_id:
            raise UserError(
                f'{path}:{number}: must be {{"id": "...", "hypothesis": "..."}} or {{"id": "...", '
                f'"caption": "..."}}, but is {line[:60]!r} instead.'
            )
        for name in ("checkpoint", "options"):
            first, value = made_by.setdefault(name, (number, entry.get(name)))
            if entry.get(name) != value:
                raise UserError(
                    f"{path}:{number}: has another {name!r} than line {first}: the file must hold "
                    "one run, but holds several; score each run by itself."
                )
        hypotheses.add(str(key), hypothesis)
    hypotheses.check_one_run(path)
    return hypotheses


def _read_generated(
    path: str, text: str, visual_ids: Optional[Sequence[str]], split: Optional[str]
) -> Hypotheses:
    output = parse_generated(path, text)
    # its H- lines are the references: every metric would be perfect
    if output.scores_references:
        raise UserError(
            f"{path}: is the output of fairseq-generate --score-reference, whose texts are the "
            "references; give it as --reference-scores."
        )
    if visual_ids is None:
        raise UserError(
            f"{path}: is fairseq-generate's output, whose line numbers need --data and --split to "
            "be joined with references."
        )
    # line numbers of another split would be accepted just as well, and give wrong scores
    for generated in output.splits:
        if split is not None and split not in generated.split(","):
            raise UserError(
                f"{path}: was generated for the split {generated}, but --split is {split}."
            )
    # fairseq prints a detokenised text (D-) in addition to its tokens (H-)
    lines = {**output.hypotheses, **output.detokenised}
    beyond = [number for number in lines if number >= len(visual_ids)]
    if beyond:
        raise UserError(
            f"{path}: line {max(beyond)} must be one of the split's {len(visual_ids)} lines "
            "(counted from 0); it was generated from another split or data folder."
        )
    hypotheses = Hypotheses({}, "fairseq-generate", output=output)
    # an n-best list has equally many texts for every line; more texts of a line are repetitions
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
    """Return True if lines are an id, a tab and a text, False if they are only texts.

    The result is True if all lines have a tab, and at least one line begins with an id of
    ``item_ids``, or with a path that ends with such an id. Raise UserError if more than half of the
    lines begin so, but another line has no tab, since the file was then cut short.
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
        # an item has several lines in a split: equal texts are no repetition
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
