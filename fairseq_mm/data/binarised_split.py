"""Decodes the text of a split from its binarised files.

``fairseq-mm score`` compares the output of fairseq-generate with this text. A folder that
fairseq-preprocess made has no ``<split>.references.jsonl``; its binarised targets then serve as
references.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.data.binarised_text import load_binarised_text, load_dictionary
from fairseq_mm.data.indexed_oov import restore_oov_words
from fairseq_mm.data.input_files import check_line_counts
from fairseq_mm.data.split_files import read_oov_words, read_visual_ids
from fairseq_mm.data.split_text import Folder
from fairseq_mm.data.story_text import SEPARATOR
from fairseq_mm.data.subwords import Subwords

# pairs of languages that the tasks read by default; a folder may hold other pairs of one split, too
_KNOWN_PAIRS = ("wp_source-wp_target", "tran-desc")


class SplitText:
    """Binarised text of a split, and the tokenizer that turns its tokens into readable text.

    Args:
        base: Path of the binarised text, without ``.bin`` and ``.idx``.
        dictionary_path: Path of the dictionary that the text was binarised with.
        folder: Data folder, whose tokenizer (:class:`.Subwords`) is loaded.
        split: Name of the split. If the folder has ``<split>.unknowns.jsonl``, the words that the
            tokens ``<unk-0>``, ``<unk-1>``, ... of each line stand for are read from this file.
    """

    def __init__(self, base: Path, dictionary_path: Path, folder: Folder, split: str) -> None:
        self.path = f"{base}.bin"
        self.dictionary = load_dictionary(str(dictionary_path))
        self.lines: Any = load_binarised_text(
            str(base), num_types=len(self.dictionary), end=self.dictionary.eos()
        )
        self.subwords = Subwords.load(folder)
        self.oov_words: Optional[list[list[str]]] = None
        unknowns = Path(folder) / f"{split}.unknowns.jsonl"
        if unknowns.is_file():
            self.oov_words = read_oov_words(unknowns)
            check_line_counts({self.path: len(self), str(unknowns): len(self.oov_words)})

    def __len__(self) -> int:
        return len(self.lines)

    def tokens(self, line: int) -> str:
        """Return the tokens of the text's line ``line`` (counted from 0), separated by spaces."""
        return self.dictionary.string(self.lines[line])

    def decode(self, tokens: str, line: int) -> str:
        """Turn ``tokens``, separated by spaces, into readable text.

        ``line`` is the line of the split (from 0) that contains the tokens. The words for
        ``<unk-0>``, ``<unk-1>``, ... differ between lines.
        """
        if self.oov_words is not None:
            tokens = restore_oov_words(tokens, self.oov_words[line])
        return self.subwords.decode(tokens)


class BinarisedReferences(NamedTuple):
    """References of a folder that fairseq-preprocess made: the lines of its binarised targets.

    Attributes:
        path: Path of the targets' ``.bin`` file.
        visual_ids: Id of each line. Lines with the same id have the same images or video.
        texts: Dictionary from an id to all lines with this id, as readable text without sentence
            separators.
        note: Sentence that says where the references come from.
    """

    path: str
    visual_ids: list[str]
    texts: dict[str, list[str]]
    note: str


def read_binarised_references(folder: Folder, split: str) -> Optional[BinarisedReferences]:
    """Read the binarised targets of a split as references; return None if there are none.

    If there is no ``<split>.visual_ids``, the id of each line is its number, counted from 0. Raise
    UserError if a file is damaged, or the targets and ``<split>.visual_ids`` have different numbers
    of lines.
    """
    missing = Path(folder) / f"{split}.references.jsonl"
    text = find_split_text(folder, split)
    if text is None:
        return None
    ids_path = Path(folder) / f"{split}.visual_ids"
    visual_ids = [str(line) for line in range(len(text))]
    if ids_path.exists():
        visual_ids = read_visual_ids(ids_path)
        check_line_counts({text.path: len(text), str(ids_path): len(visual_ids)})
    texts: dict[str, list[str]] = {}
    for line, key in enumerate(visual_ids):
        words = text.decode(text.tokens(line), line).split()
        texts.setdefault(key, []).append(" ".join(x for x in words if x != SEPARATOR))
    note = f"{missing}: no such file; the references are the lines of {text.path}."
    return BinarisedReferences(text.path, visual_ids, texts, note)


def find_split_text(folder: Folder, split: str, *, is_source: bool = False) -> Optional[SplitText]:
    """Open the binarised targets of a split; with ``is_source``, open its binarised sources.

    Return None if the folder has no such text, or has the split in several language pairs.
    """
    root = Path(folder)
    if not is_source and _is_binarised(root / split):
        return SplitText(root / split, root / "dict.txt", folder, split)
    side = 1 if is_source else 2
    pattern = re.compile(rf"({re.escape(split)}\.([^.-]+)-([^.-]+))\.\{side + 1}\.idx")
    matches = (pattern.fullmatch(path.name) for path in root.glob("*.idx"))
    pairs = [match.groups() for match in matches if match]
    known = [pair for pair in pairs if "-".join(pair[1:]) in _KNOWN_PAIRS]
    # of two unknown pairs either could be meant, and a comparison with the wrong text misleads
    if len(known or pairs) != 1:
        return None
    pair = (known or pairs)[0]
    base = root / f"{pair[0]}.{pair[side]}"
    if not _is_binarised(base):
        return None
    return SplitText(base, root / f"dict.{pair[side]}.txt", folder, split)


def _is_binarised(base: Path) -> bool:
    return all(Path(f"{base}{ending}").is_file() for ending in (".bin", ".idx"))
