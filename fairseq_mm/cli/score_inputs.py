"""Reads the inputs of ``fairseq-mm score``: references and systems' texts, joined by item.

Line numbers of fairseq-generate's output cannot show that it belongs to a data folder, because
every folder has the same numbers. But it also prints the text of its folder, as ``T-`` lines or,
without targets, as ``S-`` lines, which are compared with the folder's.
"""

import html
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Callable, Optional

from fairseq_mm.data.indexed_oov import restore_oov_words
from fairseq_mm.data.input_files import parse_json, read_json, read_lines, read_objects
from fairseq_mm.data.records import Split, open_split, split_names
from fairseq_mm.data.story_text import SEPARATOR, join_sentences, split_sentences
from fairseq_mm.data.transcript_text import is_not_available
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.hypotheses import GeneratedOutput, Hypotheses, find_splits, read_hypotheses

_SHOWN = 50  # characters of a text in a message


@dataclass
class References:
    """References of the items (images, image sequences or videos) of a split."""

    path: str  # path of the file
    texts: dict[str, list[str]]  # item id -> references, in the order of the file
    split: Optional[Split] = None  # split of the data folder; None without a data folder
    # lines of the file if it has one reference per line; None if it has JSON
    lines: Optional[list[str]] = None
    # other name of an item, such as a file name in a COCO annotation file -> id
    aliases: dict[str, str] = field(default_factory=dict)


@dataclass
class JoinedTexts:
    """Texts of a system, assigned to the items (images or videos) that have references."""

    path: str  # path of the file of texts
    hypotheses: Hypotheses  # content of the file
    texts: dict[str, str]  # item id -> text, in the order of the references
    # ids of items that have references, but no text
    missing: list[str] = field(default_factory=list)
    # id -> text, for ids in the file that have no references
    without_references: dict[str, str] = field(default_factory=dict)
    # reason why the ``T-`` or ``S-`` lines of fairseq-generate's output could not be compared with
    # the data folder
    not_compared: Optional[str] = None

    def problems(self) -> dict[str, list[str]]:
        """Return a dict from each kind of problem, such as a missing text, to the ids concerned."""
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
        """Return the fields of the JSON result that describe this file of texts."""
        return {
            "path": self.path,
            "layout": self.hypotheses.layout,
            "texts": len(self.texts),
            "unused": self.hypotheses.unused,
            "problems": self.problems(),
        }


def find_source(
    path: Optional[str], data: Optional[str], split: Optional[str]
) -> tuple[Optional[str], str]:
    """Return the data folder and the split for which a file of texts was generated.

    The first JSON record may name both; ``data`` overrides its folder. Otherwise the split is
    ``split``, or the split that fairseq-generate's log names, or the split that has the id of the
    file's first text; else ``valid``.
    """
    if path is None or not os.path.isfile(path):
        return data, split or "valid"
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        line = file.readline()
    record = parse_json(line, f"{path}:1") if line.startswith("{") and '"data"' in line else {}
    if isinstance(record.get("data"), str) and isinstance(record.get("split"), str):
        # prompts have no ids: the texts of another split would be compared line by line
        if split not in (None, record["split"]):
            raise UserError(f"{path}: has texts of {record['split']}, but --split is {split}.")
        return data or record["data"], record["split"]
    if data is None or split is not None:
        return data, split or "valid"
    text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    logged = find_splits(text)
    if logged:
        return data, logged[0].split(",")[0]
    # {"id": "a.jpg", ...} of commands, "image_id" of COCO, or id, tab and text
    first = re.match(r'[\[\s]*\{.*?"(?:image_)?id": *"?(.*?)"?[,}]|(.*?)\t', text, re.DOTALL)
    key = (first[1] or first[2]) if first else None
    for name in sorted(split_names(data) if key else [], key=lambda name: name != "valid"):
        ids = open_split(data, name).keys or ()
        if key in ids or PurePosixPath(str(key)).name in ids:
            return data, name
    return data, "valid"


def read_score_references(
    split: Optional[Split], references: Optional[str], references_of: str = "item"
) -> References:
    """Read references from the file ``references`` or, if it is None, from a split.

    ``references_of`` is ``item``, or ``album`` for all stories of each image sequence's album.
    """
    if references is not None:
        result = _read_references(references, None if split is None else split.items)
    elif split is not None:
        result = References(split.path, split.references(references_of))
        if split.note:
            print(split.note, file=sys.stderr)
    else:
        raise UserError("references are needed: give --data DIR (and --split), or --references.")
    result.split = split
    return result


def _read_references(path: str, items: Optional[list[str]]) -> References:
    """Read JSON lines, COCO annotations, or one reference per line of a split, whose ids are
    ``items``; without ``items``, each line is an item."""
    result = References(path, {})
    first = next((line for _, line in read_lines(path) if line.strip()), "{")
    try:
        if path.endswith(".json"):
            content = read_json(path)
            for annotation in content["annotations"]:
                # a caption that is no text raises a TypeError
                result.texts.setdefault(str(annotation["image_id"]), []).append(
                    "" + annotation["caption"]
                )
            # annotations number the images, but a system may name their files
            for image in content.get("images", []):
                if "file_name" in image:
                    result.aliases[PurePosixPath(image["file_name"]).name] = str(image["id"])
        elif path.endswith(".jsonl") or first.lstrip().startswith("{"):
            for where, entry in read_objects(path):
                # users' own captions may name the image only
                key = str(entry.get("id", PurePosixPath(str(entry.get("image"))).name))
                references = entry.get("references", entry.get("captions"))
                if not isinstance(references, list) or not references or key in result.texts:
                    raise TypeError(f"look at {where}")
                result.texts[key] = list(map(str, references))
        else:
            result.lines = [line for _, line in read_lines(path)]
            items = [*map(str, range(len(result.lines)))] if items is None else items
            if len(items) != len(result.lines):
                raise TypeError(f"it has {len(result.lines)} lines, the split {len(items)}")
            for key, line in zip(items, result.lines):
                result.texts.setdefault(key, []).append(line)
        if not result.texts:
            raise TypeError("it has none")
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f'{path}: must have references: JSON lines {{"id": "...", "references": ["...", ...]}} '
            'with each id once; in a .json file, COCO\'s {"annotations": [{"image_id": ..., '
            f'"caption": ...}}, ...]}}; or a line for each line of the split ({error}).'
        ) from None
    return result


def join_texts(path: str, references: References) -> JoinedTexts:
    """Read the texts of a system, and assign each text to an item of ``references``."""
    item_ids, split = list(references.texts), references.split
    line_ids = None if split is None else split.items
    if references.lines is not None and split is None:
        line_ids = item_ids
    read = read_hypotheses(
        path, item_ids=item_ids, visual_ids=line_ids, split=None if split is None else split.name
    )
    not_compared = None if split is None else check_generated_for(path, read.output, split)
    if references.lines is not None:
        _check_generated_for_lines(path, read.output, references.path, references.lines)
    oov_words = get_oov_words(split)
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
            texts[item_id] = restored(text, oov_words.get(item_id))
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


def read_without_references(path: str, split: Optional[Split]) -> JoinedTexts:
    """Read the texts of a system that is scored without references. Their ids are in the file, or
    are line numbers from 0. Output of fairseq-generate is compared with the text of ``split``."""
    lines = [line for _, line in read_lines(path)]
    # the ids of a plain text file stand before its tabs
    has_ids = all("\t" in line for line in lines)
    ids = [line.split("\t")[0] if has_ids else str(i) for i, line in enumerate(lines)]
    name = None if split is None else split.name
    read = read_hypotheses(path, item_ids=ids, visual_ids=range(sys.maxsize), split=name)
    not_compared = None if split is None else check_generated_for(path, read.output, split)
    return JoinedTexts(path, read, read.texts, not_compared=not_compared)


def most_frequent_text(split: Split) -> str:
    """Return the most frequent text of a split. For visual stories, join the most frequent first
    sentence, second sentence, and so on, because whole stories hardly repeat."""
    counts: list[Counter[str]] = []
    for line, tokens in enumerate(split.iterate_tokens()):
        parts = split_sentences(split.decode(" ".join(tokens), line))
        counts.extend(Counter() for _ in range(len(parts) - len(counts)))
        for count, part in zip(counts, parts):
            count[part] += 1
    # Counter.most_common keeps the order of first occurrence among equal counts
    return join_sentences([count.most_common(1)[0][0] for count in counts])


def without_separators(text: str) -> str:
    """Remove the sentence separators (``<sent>``) of a story; other texts are unchanged."""
    if SEPARATOR not in text:
        return text  # with its spaces, which split and join would normalize
    return " ".join(word for word in text.split() if word != SEPARATOR)


def get_sources(
    split: Split, ids: Sequence[str], tokenize: Callable[[str], list[str]]
) -> Optional[list[Optional[list[str]]]]:
    """Return the tokens of the transcript of each video of ``ids``; None for a video without a
    transcript, or with the text "transcript not available". None if no video has a transcript."""
    by_id = dict(zip(split.items, split.field("transcript")))
    if not any(by_id.values()):
        return None
    texts = (by_id.get(key) or "" for key in ids)
    # an empty transcript has no n-grams: all of a summary's would count as novel
    return [None if is_not_available(text) else tokenize(text) or None for text in texts]


def get_oov_words(split: Optional[Split]) -> dict[str, list[str]]:
    """Return, for each item id, the words that ``<unk-0>``, ``<unk-1>``, ... denote."""
    return {} if split is None else dict(zip(split.items, split.field("unknowns")))


def restored(text: str, oov_words: Optional[Sequence[str]]) -> str:
    """Replace the indexed OOV tokens ``<unk-0>``, ``<unk-1>``, ... of a text by ``oov_words``."""
    return text if oov_words is None or "<unk-" not in text else restore_oov_words(text, oov_words)


def check_generated_for(
    path: str, output: Optional[GeneratedOutput], split: Split
) -> Optional[str]:
    """Check that the ``T-`` or ``S-`` lines of fairseq-generate's output equal a split's texts;
    return the reason if they cannot be compared."""
    if output is None:
        return None
    printed = output.targets or output.sources
    if not printed:
        return f"not compared with {split.path}: the file has no T- or S- lines"
    side = split.sides[0] if split.sides and not output.targets else None
    dictionary = split.dictionary_path(side)
    if not os.path.exists(dictionary):
        return f"not compared with {split.path}: there is no {dictionary}"
    # it imports fairseq and torch, for seconds
    from fairseq_mm.data.binarised_text import load_dictionary

    known = frozenset(load_dictionary(dictionary).symbols)
    texts = [
        " ".join(word if word in known else "<unk>" for word in words)
        for words in split.iterate_tokens(side)
    ]
    # fairseq-generate decodes targets like hypotheses, but prints only hypotheses in both forms:
    # H- before decoding, D- after it
    both = [i for i in output.hypotheses.keys() & output.detokenised.keys() if i < len(texts)]
    decoders = []
    for decode in (lambda tokens, line: tokens, split.decode):
        equal = sum(
            _get_letters(decode(output.hypotheses[i][0][1], i))
            == _get_letters(output.detokenised[i][0][1])
            for i in both
        )
        if 2 * equal >= len(both):
            decoders.append(decode)
    if not decoders:
        changed = "--bpe or --tokenizer has changed the words of its lines"
        return f"not compared with {split.path}: {changed}"

    def expected(line: int) -> list[str]:
        return [decode(texts[line], line) for decode in decoders] if line < len(texts) else [""]

    differing = [
        number
        for number, (_, found) in sorted(printed.items())
        # a killed run may end inside a line: the text of its last line may be missing
        if (found or number != output.cut_short)
        and not any(_is_beginning(found, line) for line in expected(number))
    ]
    _refuse(path, output, differing, split.path, lambda number: expected(number)[-1])
    return None


def _check_generated_for_lines(
    path: str, output: Optional[GeneratedOutput], references_path: str, lines: Sequence[str]
) -> None:
    """Compare the ``T-`` lines of fairseq-generate's output with a text file of references.

    A ``T-`` line that equals no reference is accepted: references may be tokenized differently.
    """
    if output is None:
        return
    # a text can occur in several lines: it is wrong only if its own line is not among them
    positions: dict[str, list[int]] = {}
    for position, line in enumerate(lines):
        positions.setdefault(_get_letters(line), []).append(position)
    differing = [
        number
        for number, (_, text) in sorted(output.targets.items())
        if number < len(lines)
        and not _is_beginning(text, lines[number])
        and number not in positions.get(_get_letters(text), [number])
    ]
    _refuse(path, output, differing, references_path, lines.__getitem__)


def _refuse(
    path: str,
    output: GeneratedOutput,
    differing: Sequence[int],
    folder_path: str,
    expected: Callable[[int], str],
) -> None:
    """Raise UserError if ``differing`` lists any lines of fairseq-generate's output."""
    if not differing:
        return
    printed, letter = (output.targets, "T") if output.targets else (output.sources, "S")
    number = differing[0]
    file_line, text = printed[number]
    raise UserError(
        f"{path}:{file_line}: {letter}-{number} is {text[:_SHOWN]!r}, but line {number} (counted "
        f"from 0) of {folder_path} is {expected(number)[:_SHOWN]!r} ({len(differing)} of "
        f"{len(printed)} such lines differ): it was generated from another data folder or split."
    )


def _is_beginning(text: str, line: str) -> bool:
    """Return True if ``line`` begins with ``text``; only letters and digits are compared."""
    letters = _get_letters(text)
    if letters or not _get_letters(line):
        return _get_letters(line).startswith(letters)
    # every line begins with an empty string, so texts without letters are compared as they are
    return text.strip() != "" and line.lstrip().startswith(text.strip())


def _get_letters(text: str) -> str:
    """Return the letters and digits of a text in lower case; tokenizers do not change them."""
    # NFKC: sentencepiece normalizes text in this form; tokenizers of Moses escape & as &amp;
    normal = unicodedata.normalize("NFKC", html.unescape(text).casefold())
    return "".join(filter(str.isalnum, normal))
