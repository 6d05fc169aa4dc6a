"""What ``fairseq-mm score`` reads: references, training text, and texts joined with references."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Optional

from fairseq_mm.cli.score_summaries import restored, unknowns_by_video
from fairseq_mm.data.references import read_references
from fairseq_mm.data.visual_ids import read_visual_ids
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.hypotheses import read_hypotheses


@dataclass
class References:
    """References by item id, in the order of their file.

    Args:
        path: the file.
        texts: item id -> references.
        visual_ids: id of each line of the split, where a data folder is given.
        split: its name, where a data folder is given.
        aliases: other names of items (file names in a COCO annotation file) -> id.
        unknowns: item id -> words that its numbered unknowns stand for, where there are any.
    """

    path: str
    texts: dict[str, list[str]]
    visual_ids: Optional[list[str]] = None
    split: Optional[str] = None
    aliases: dict[str, str] = field(default_factory=dict)
    unknowns: dict[str, list[str]] = field(default_factory=dict)

    def id_of(self, key: str) -> Optional[str]:
        """Id of the item that ``key`` names, itself or as a path that ends with it, or None."""
        name = PurePosixPath(key).name
        for known in (key, name):
            if known in self.texts:
                return known
        return self.aliases.get(key) or self.aliases.get(name)


@dataclass
class JoinedTexts:
    """A system's texts by item id, in the order of the references, and what did not fit.

    Args:
        path: the file.
        layout: what it was read as.
        texts: item id -> text.
        missing: ids of references without a text.
        repeated: ids with several texts; the first is in ``texts``.
        unknown: ids of texts without references.
        unused: texts left out by rule (n-best lists, further lines of an item).
    """

    path: str
    layout: str
    texts: dict[str, str]
    missing: list[str]
    repeated: list[str]
    unknown: list[str]
    unused: int

    def problems(self) -> dict[str, list[str]]:
        found = {
            "references without a text": self.missing,
            "items with several texts (the first is scored)": self.repeated,
            "texts without references (not scored)": self.unknown,
        }
        return {what: ids for what, ids in found.items() if ids}


def _read_coco_annotations(path: str) -> References:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a COCO annotation file: {error}") from None
    references = References(path, {})
    try:
        for annotation in content["annotations"]:
            key = str(annotation["image_id"])
            references.texts.setdefault(key, []).append(str(annotation["caption"]))
        for image in content.get("images", []):
            if "file_name" in image:
                references.aliases[PurePosixPath(image["file_name"]).name] = str(image["id"])
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f'{path}: must be a COCO annotation file, {{"annotations": [{{"image_id": ..., '
            '"caption": ...}, ...]}, but is not. References of other layouts are .jsonl files.'
        ) from None
    return references


def _is_plain(path: str) -> bool:
    """Whether a file of references has a text a line, instead of a JSON object."""
    if path.endswith(".jsonl"):
        return False
    try:
        with open(path, encoding="utf-8") as file:
            first = next((line for line in file if line.strip()), "{")
    except (OSError, UnicodeDecodeError):
        return False
    return not first.lstrip().startswith("{")


def _read_plain(path: str, visual_ids: Optional[list[str]]) -> References:
    """One reference a line: of the split's line, or of an item of that number, counted from 0 as
    fairseq-generate does."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    if lines[-1] == "":
        lines.pop()
    if visual_ids is None:
        visual_ids = [str(number) for number in range(len(lines))]
    elif len(visual_ids) != len(lines):
        raise UserError(
            f"{path}: must have a reference for each of the split's {len(visual_ids)} lines, but "
            f"has {len(lines)} lines."
        )
    references = References(path, {}, visual_ids)
    for key, line in zip(visual_ids, lines):
        references.texts.setdefault(key, []).append(line)
    return references


def _visual_ids(data: str, split: str) -> list[str]:
    return read_visual_ids(str(Path(data) / f"{split}.visual_ids"))


def reference_name(split: str, references_of: str) -> str:
    """Name of the file in a data folder; ``references_of`` is ``item`` or ``album``."""
    return f"{split}.{'' if references_of == 'item' else references_of + '_'}references.jsonl"


def reference_path(
    data: Optional[str], split: str, references: Optional[str], references_of: str = "item"
) -> str:
    """The references' file.

    Raises:
        UserError: if neither a data folder nor a file is given.
    """
    if references is not None:
        return references
    if data is None:
        raise UserError("references are needed: give --data DIR (and --split), or --references.")
    return str(Path(data) / reference_name(split, references_of))


def read_score_references(
    data: Optional[str], split: str, references: Optional[str], references_of: str = "item"
) -> References:
    """Reads the references, and with a data folder the ids of its lines and numbered unknowns.

    Raises:
        UserError: if a file is missing or is not what it should be, or has no references.
    """
    path = reference_path(data, split, references, references_of)
    if path.endswith(".json"):
        found = _read_coco_annotations(path)
    elif _is_plain(path):
        found = _read_plain(path, None if data is None else _visual_ids(data, split))
    else:
        found = References(path, read_references(path))
    if not found.texts:
        raise UserError(f"{path}: must have references, but has none.")
    if data is not None:
        found.split = split
        found.visual_ids = _visual_ids(data, split)
        found.unknowns = unknowns_by_video(data, split, found.visual_ids)
    return found


def read_training_texts(path: str) -> list[str]:
    """Lines of a text file.

    Raises:
        UserError: if the file cannot be read or has no line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as training text: {error}") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UserError(f"{path}: must have training texts, but is empty.")
    return lines


def join_texts(path: str, references: References) -> JoinedTexts:
    """Reads a system's texts and joins them with the references by id.

    Raises:
        UserError: if the file is in no known layout, or none of its ids has references.
    """
    item_ids: Sequence[str] = list(references.texts)
    read = read_hypotheses(
        path, item_ids=item_ids, visual_ids=references.visual_ids, split=references.split
    )
    found: dict[str, str] = {}
    unknown: list[str] = []
    for key, text in read.texts.items():
        item_id = references.id_of(key)
        if item_id is None:
            unknown.append(key)
        elif item_id in found:  # paths that end alike
            read.repeated.append(item_id)
        else:
            found[item_id] = restored(text, references.unknowns.get(item_id))
    if not found:
        raise UserError(
            f"{path}: none of its {len(read.texts)} ids (such as {unknown[0]!r}) is among the "
            f"{len(item_ids)} ids of {references.path} (such as {item_ids[0]!r})."
        )
    return JoinedTexts(
        path=path,
        layout=read.layout,
        texts={key: found[key] for key in item_ids if key in found},
        missing=[key for key in item_ids if key not in found],
        repeated=read.repeated,
        unknown=unknown,
        unused=read.unused,
    )
