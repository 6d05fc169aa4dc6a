"""Reads the inputs of ``fairseq-mm score``: references, systems' texts, files of a data folder."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Optional, Union

from fairseq_mm.cli.score_alignment import check_generated_for, check_generated_for_lines
from fairseq_mm.data.indexed_oov import restore_oov_words
from fairseq_mm.data.input_files import parse_json, read_lines
from fairseq_mm.data.split_files import read_oov_words, read_references, read_visual_ids
from fairseq_mm.data.story_file import read_stories
from fairseq_mm.data.transcript_text import is_not_available
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.copying import CopiedRun, CopiedRuns
from fairseq_mm.metrics.generated_output import find_splits
from fairseq_mm.metrics.hypotheses import Hypotheses, read_hypotheses


@dataclass
class References:
    """References of the items (images, image sequences or videos) of a split.

    Args:
        path: Path of the file.
        texts: Dict from item id to references, in the order of the file.
        visual_ids: Item id of each line of the split; None without a data folder.
        data: Path of the data folder; None without a data folder.
        split: Name of the split; None without a data folder.
        lines: Lines of the file if it has one reference per line; None if it has JSON.
        aliases: Dict from other names of items, such as file names in a COCO annotation file, to
            ids.
        oov_words: Dict from item id to the words that replace the indexed OOV tokens ``<unk-0>``,
            ``<unk-1>``, ... in the item's texts.
    """

    path: str
    texts: dict[str, list[str]]
    visual_ids: Optional[list[str]] = None
    data: Optional[str] = None
    split: Optional[str] = None
    lines: Optional[list[str]] = None
    aliases: dict[str, str] = field(default_factory=dict)
    oov_words: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class JoinedTexts:
    """Texts of a system, assigned to the items (images or videos) that have references.

    Args:
        path: Path of the file of texts.
        hypotheses: Content of the file.
        texts: Dict from item id to text, in the order of the references.
        missing: Ids of items that have references, but no text.
        without_references: Dict from id to text, for ids in the file that have no references.
        not_compared: Reason why the ``T-`` or ``S-`` lines of fairseq-generate's output could not
            be compared with the data folder; None if they were compared or do not exist.
    """

    path: str
    hypotheses: Hypotheses
    texts: dict[str, str]
    missing: list[str] = field(default_factory=list)
    without_references: dict[str, str] = field(default_factory=dict)
    not_compared: Optional[str] = None

    def problems(self) -> dict[str, list[str]]:
        """Return a dict from each problem, such as a missing text, to the ids that have it."""
        read = self.hypotheses
        problems = {
            "references without a text": self.missing,
            "items with several texts (the first is scored)": read.repeated,
            "texts without references (not scored)": list(self.without_references),
            "items whose lines are cut short at the end of the file (not scored)": read.cut_short,
            "texts that all equal their T- line (an overfitted model; or else the file is the "
            "output of --score-reference, for --reference-scores)": read.equal_to_targets,
        }
        if self.not_compared is not None:
            problems[f"texts that were {self.not_compared}"] = list(self.texts)
        return {what: ids for what, ids in problems.items() if ids}

    def describe(self) -> dict[str, object]:
        """Return the part of the JSON result about this file of texts: path, counts, problems."""
        return {
            "path": self.path,
            "layout": self.hypotheses.layout,
            "texts": len(self.texts),
            "unused": self.hypotheses.unused,
            "problems": self.problems(),
        }


def _read_coco_annotations(path: str) -> References:
    try:
        content = parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a COCO annotation file: {error}") from None
    references = References(path, {})
    try:
        for annotation in content["annotations"]:
            key, caption = str(annotation["image_id"]), annotation["caption"]
            if not isinstance(caption, str):
                raise TypeError
            references.texts.setdefault(key, []).append(caption)
        # annotations number the images, but a system may name their files
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
    """Return True if a file of references has a text, not a JSON object, on each line."""
    if path.endswith(".jsonl"):
        return False
    try:
        with open(path, encoding="utf-8") as file:
            first = next((line for line in file if line.strip()), "{")
    except (OSError, UnicodeDecodeError):
        return False  # the reader of JSONL reports it with the path
    return not first.lstrip().startswith("{")


def _read_plain(path: str, visual_ids: Optional[list[str]]) -> References:
    """Read a file with one reference per line.

    ``visual_ids`` has the item id of each line; if it is None, each line is an item, and ids are
    numbers from 0.
    """
    # not splitlines, which also breaks at U+2028 and others, where fairseq does not
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
    references = References(path, {}, visual_ids, lines=lines)
    for key, line in zip(visual_ids, lines):
        references.texts.setdefault(key, []).append(line)
    return references


def find_split(path: Optional[str], data: Optional[Union[str, Path]]) -> str:
    """Return the split of a data folder for which a file of texts was generated.

    The split is the one that fairseq-generate names, or has the id of the file's first text;
    ``valid`` if neither is known.
    """
    text = ""
    if path is not None and data is not None and os.path.isfile(path):
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    logged = find_splits(text)
    if logged:
        return logged[0].split(",")[0]
    # {"id": "a.jpg", ...} of commands, "image_id" of COCO, or id, tab and text
    first = re.match(r'[\[\s]*\{.*?"(?:image_)?id": *"?(.*?)"?[,}]|(.*?)\t', text, re.DOTALL)
    key = (first[1] or first[2]) if first else None
    files = sorted(Path(data or "").glob("*.visual_ids"), key=lambda file: file.stem != "valid")
    for file in files if key else ():
        ids = read_visual_ids(str(file))
        if key in ids or PurePosixPath(str(key)).name in ids:
            return file.stem
    return "valid"


def read_split_ids(data: str, split: str) -> list[str]:
    """Read the item id (``visual_ids``) of each line of a split of a data folder."""
    return read_visual_ids(str(Path(data) / f"{split}.visual_ids"))


def reference_name(split: str, references_of: str) -> str:
    """Return the name of the data folder's file with the references of a split.

    Args:
        split: Name of the split.
        references_of: ``item`` for the file with the references of each image sequence (or image,
            or video); ``album`` for the file with the references of each sequence's whole album.
    """
    return f"{split}.{'' if references_of == 'item' else references_of + '_'}references.jsonl"


def read_score_references(
    data: Optional[str], split: str, references: Optional[str], references_of: str = "item"
) -> References:
    """Read references and, from the data folder, the item ids and the words of indexed OOV tokens.

    Args:
        data: Path of the data folder; None without a data folder.
        split: Name of the split.
        references: Path of a file of references (default: the file in the data folder).
        references_of: ``item`` or ``album``, see :func:`reference_name`.
    """
    # --references replaces the folder's file; the folder still says which items its lines are
    if references is None and data is None:
        raise UserError("references are needed: give --data DIR (and --split), or --references.")
    path = references or str(Path(data or "", reference_name(split, references_of)))
    binarised = None
    if data is not None and references_of == "item" and not os.path.exists(path):
        from fairseq_mm.data.binarised_split import read_binarised_references

        # a missing --references is an error below, not a reason to read other references
        binarised = None if references else read_binarised_references(data, split)
    if binarised is not None:
        print(binarised.note, file=sys.stderr)
        result = References(binarised.path, binarised.texts)
    elif path.endswith(".json"):
        result = _read_coco_annotations(path)
    elif _is_plain(path):
        result = _read_plain(path, None if data is None else read_split_ids(data, split))
    else:
        result = References(path, read_references(path))
    if not result.texts:
        raise UserError(f"{path}: must have references, but has none.")
    if data is not None:
        result.data, result.split = data, split
        # a folder of fairseq-preprocess may lack visual_ids; its lines are then the items
        ids = read_split_ids(data, split) if binarised is None else binarised.visual_ids
        result.visual_ids, result.oov_words = ids, oov_words_by_video(data, split, ids)
    return result


def existing_file(data: Optional[Union[str, Path]], *names: str) -> Optional[str]:
    """Return the path of a file in the data folder ``data``; None without such a file or folder.

    ``names`` are the subfolders, if any, and the name of the file.
    """
    path = None if data is None else Path(data, *names)
    return str(path) if path is not None and path.is_file() else None


def join_texts(path: str, references: References) -> JoinedTexts:
    """Read the texts of a system, and assign each text to an item of ``references``."""
    item_ids: Sequence[str] = list(references.texts)
    read = read_hypotheses(
        path, item_ids=item_ids, visual_ids=references.visual_ids, split=references.split
    )
    not_compared = None
    if references.data is not None and references.split is not None:
        not_compared = check_generated_for(path, read.output, references.data, references.split)
    if references.lines is not None:
        check_generated_for_lines(path, read.output, references.path, references.lines)
    texts: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for key, text in read.texts.items():
        # fairseq-mm caption writes paths; a data folder's ids are often names of files
        names = (key, PurePosixPath(key).name)
        item_id = next((name for name in names if name in references.texts), None)
        if item_id is None:
            item_id = next(filter(None, map(references.aliases.get, names)), None)
        if item_id is None:
            unknown[key] = text
        elif item_id in texts:  # paths that end alike
            read.repeated.append(item_id)
        else:
            texts[item_id] = restored(text, references.oov_words.get(item_id))
    if not texts:
        raise UserError(
            f"{path}: none of its {len(read.texts)} ids (such as {next(iter(unknown))!r}) is among "
            f"the {len(item_ids)} ids of {references.path} (such as {item_ids[0]!r})."
        )
    return JoinedTexts(
        path,
        read,
        # resampling pairs two systems by position: both must be in the order of the references
        texts={key: texts[key] for key in item_ids if key in texts},
        missing=[key for key in item_ids if key not in texts],
        without_references=unknown,
        not_compared=not_compared,
    )


# not a list: fairseq-generate's output of a part of a split has numbers beyond its own length
class _LineNumbers(Sequence[str]):
    """Endless sequence whose element i is ``str(i)``."""

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, number: Any) -> Any:
        return str(number)


def read_without_references(path: str, data: Optional[str], split: str) -> JoinedTexts:
    """Read the texts of a system that is scored without references.

    The ids of the texts are read from the file. If the file has no ids, the ids are line numbers,
    counted from 0.

    Args:
        path: Path of the file of texts.
        data: Path of the data folder, with whose text fairseq-generate's output is compared; None
            if there is no data folder.
        split: Name of the split.
    """
    lines = [line for _, line in read_lines(path)]
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("{") and '"hypothesis"' not in first:
        texts = {story.id: story.tokens for story in read_stories(path)}
        return JoinedTexts(path, Hypotheses(texts, "stories"), texts)
    read = read_hypotheses(
        path,
        # the count of a plain file's lines must be the count of items
        item_ids=[str(i) for i in range(len(lines))],
        visual_ids=_LineNumbers(),
        split=None if data is None else split,
    )
    not_compared = None if data is None else check_generated_for(path, read.output, data, split)
    return JoinedTexts(path, read, read.texts, not_compared=not_compared)


def read_alone(path: str) -> JoinedTexts:
    """Read a system's texts that are not scored: JSONL, COCO results or lines ``id<TAB>text``."""
    # the ids of a plain text file stand before its tabs; without references, no others are known
    read = read_hypotheses(path, item_ids=[line.split("\t")[0] for _, line in read_lines(path)])
    return JoinedTexts(path, read, read.texts)


def copied_runs(
    systems: Sequence[Sequence[list[str]]], training: str
) -> tuple[list[list[CopiedRun]], int]:
    """Find the longest run of words that each story copies from the training text.

    Args:
        systems: For each system, the words of each of its stories.
        training: Path of the training text.

    Returns:
        runs: For each system, the longest copied run of each of its stories.
        num_words: Number of words of the training text.
    """
    from tqdm.auto import tqdm

    size = os.path.getsize(training) if os.path.isfile(training) else None
    # the search counts characters, the size is in bytes: most characters are one byte
    with tqdm(
        total=size, unit="B", unit_scale=True, desc="training text", leave=False, disable=None
    ) as bar:
        search = CopiedRuns([words for stories in systems for words in stories])
        search.read_file(training, progress=bar.update)
    if not search.words_read:
        raise UserError(f"{training}: must have training stories, but is empty.")
    runs = iter(search.results())
    return [[next(runs) for _ in stories] for stories in systems], search.words_read


def _read_transcripts(path: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            entry = parse_json(line)
            key, text = entry["id"], entry["transcript"]
        except (ValueError, TypeError, KeyError):
            key, text = None, None
        if not isinstance(key, str) or not isinstance(text, str):
            raise UserError(
                f'{path}:{number}: must be {{"id": "...", "transcript": "..."}}, but is '
                f"{line[:60]!r} instead."
            )
        texts[key] = text
    return texts


def read_sources(
    data: Optional[str], split: str, ids: Sequence[str], tokenize: Callable[[str], list[str]]
) -> Optional[list[Optional[list[str]]]]:
    """Read the transcripts of the videos ``ids`` in a data folder, and tokenize them.

    Returns:
        Tokens of each video's transcript; None for a video without a transcript, or with the text
        "transcript not available". None instead of the list if there is no file of transcripts.
    """
    path = existing_file(data, f"{split}.transcripts.jsonl")
    if path is None:
        return None
    by_id = _read_transcripts(path)
    texts = (by_id.get(key, "") for key in ids)
    # an empty transcript has no n-grams: all of a summary's would count as novel
    return [None if is_not_available(text) else tokenize(text) or None for text in texts]


def oov_words_by_video(
    data: Optional[str], split: str, visual_ids: Sequence[str]
) -> dict[str, list[str]]:
    """Return a dict from video id to the words for ``<unk-0>``, ``<unk-1>``, ... in its texts.

    The result is empty if the data folder has no file of such words.

    Args:
        data: Path of the data folder; None without a data folder.
        split: Name of the split.
        visual_ids: Video id of each line of the split.
    """
    path = existing_file(data, f"{split}.unknowns.jsonl")
    if path is None:
        return {}
    oov_words = read_oov_words(path)
    if len(oov_words) != len(visual_ids):
        raise UserError(
            f"{path}: must have a line for each of the split's {len(visual_ids)} lines, but has "
            f"{len(oov_words)} lines."
        )
    return dict(zip(visual_ids, oov_words))


def restored(text: str, oov_words: Optional[Sequence[str]]) -> str:
    """Replace the indexed OOV tokens ``<unk-0>``, ``<unk-1>``, ... of a text by ``oov_words``.

    If ``oov_words`` is None, the text is returned unchanged.
    """
    return text if oov_words is None or "<unk-" not in text else restore_oov_words(text, oov_words)
