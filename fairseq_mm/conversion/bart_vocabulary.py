"""Converts Hugging Face's BART vocabulary to fairseq's dictionary with GPT-2 BPE.

The embeddings of Hugging Face and of fairseq have the same order: four special symbols, the BPE
tokens, and ``<mask>`` last. Hugging Face's ``vocab.json`` lists a token by its letters. fairseq's
``dict.txt`` lists a token by its number in GPT-2's ``encoder.json``; it lacks ``<mask>``, which
fairseq's denoising task adds. GPT-2's numbers can be computed without ``encoder.json``: first come
the 256 bytes, then the tokens that result from the merges in ``merges.txt``, in their order, then
``<|endoftext|>``.
"""

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
# fairseq fills dictionaries up to a multiple of 8 with these words
_FILLER = re.compile(r"madeupword\d+")


class BartVocabulary(NamedTuple):
    """Vocabulary of a BART.

    Attributes:
        symbols: Symbols of fairseq's dictionary in the order of the embeddings; special symbols and
            ``<mask>`` are included.
        encoder: GPT-2's number of each BPE token, which replaces the token in fairseq's texts.
        merges: Pairs of tokens that the BPE merges, in the order of the merges.
    """

    symbols: list[str]
    encoder: dict[str, int]
    merges: list[tuple[str, str]]


def read_huggingface_vocabulary(folder: str, rows: int) -> BartVocabulary:
    """Read the vocabulary of Hugging Face's BART.

    Args:
        folder: Folder with ``vocab.json`` and ``merges.txt``, or only ``tokenizer.json``.
        rows: Number of embeddings.
    """
    pieces, merges, path = _read_tokenizer(folder)
    by_row = {row: piece for piece, row in pieces.items()}
    # fairseq's Dictionary has the four special symbols in fixed places, which are BART's
    if (
        any(pieces.get(word) != row for row, word in enumerate(SPECIAL))
        or len(by_row) < len(pieces)
        or any(row >= rows and piece != MASK for row, piece in by_row.items())
    ):
        raise UserError(
            f"{path}: must give each piece a number of its own below {rows}, the rows of the "
            f"embeddings, and begin with {', '.join(SPECIAL)}, but does not."
        )
    encoder = _numbers(merges, by_row)
    return BartVocabulary(_symbols(by_row, rows, encoder), encoder, merges)


def _read_tokenizer(folder: str) -> tuple[dict[str, int], list[tuple[str, str]], str]:
    """Read a tokenizer in Hugging Face's format."""
    vocabulary, merges, whole = (
        os.path.join(folder, name) for name in ("vocab.json", "merges.txt", "tokenizer.json")
    )
    if os.path.isfile(vocabulary) and os.path.isfile(merges):
        pieces = dict(_check_pieces(read_json(vocabulary), vocabulary))
        # tokens of tokenizer.add_tokens are in a file of their own
        added = os.path.join(folder, "added_tokens.json")
        if os.path.isfile(added):
            pieces.update(_check_pieces(read_json(added), added))
        with open(merges, encoding="utf-8-sig", newline="\n") as file:
            lines = [line.rstrip("\r") for line in file.read().split("\n")]
        start = 1 if lines[0].startswith("#version") else 0
        pairs = [_check_pair(line.split(" "), merges) for line in lines[start:] if line]
        return pieces, pairs, vocabulary
    content = read_json(whole)  # which needs no vocab.json and merges.txt
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise UserError(f"{whole}: must be a BPE, as BART's, but is not.")
    pieces = dict(_check_pieces(model.get("vocab"), whole))
    for token in content.get("added_tokens") or []:
        pieces[token["content"]] = token["id"]
    # tokenizers 0.20 and newer write a merge as a list, older versions as a text
    merges_of_file = (x.split(" ") if isinstance(x, str) else x for x in model.get("merges") or [])
    return pieces, [_check_pair(x, whole) for x in merges_of_file], whole


def _check_pieces(pieces: Any, path: str) -> dict[str, int]:
    if not isinstance(pieces, dict) or not all(type(x) is int for x in pieces.values()):
        raise UserError(f'{path}: must have pieces as {{"piece": number, ...}}, but has not.')
    return pieces


def _check_pair(parts: Sequence[str], path: str) -> tuple[str, str]:
    if len(parts) != 2 or not all(parts):
        raise UserError(f"{path}: a merge must be two pieces, but is {' '.join(parts)!r:.80}.")
    return parts[0], parts[1]


def _numbers(merges: list[tuple[str, str]], by_row: dict[int, str]) -> dict[str, int]:
    """Return GPT-2's number of each BPE token."""
    alphabet = list(bytes_to_unicode().values())
    encoder: dict[str, int] = {}
    for piece in (*alphabet, *("".join(pair) for pair in merges)):
        # two merges may produce the same piece; the first has its number
        encoder.setdefault(piece, len(encoder))
    letters = set(alphabet)
    for row in sorted(by_row):
        piece = by_row[row]
        is_special = piece in SPECIAL or piece == MASK or _FILLER.fullmatch(piece)
        # added words that are made of bytes: GPT-2's BPE could not decode others
        if not is_special and set(piece) <= letters:
            encoder.setdefault(piece, len(encoder))
    return encoder


def _symbols(by_row: dict[int, str], rows: int, encoder: dict[str, int]) -> list[str]:
    """Return the symbols of fairseq's dictionary in the order of the embeddings."""
    symbols = list(SPECIAL)
    used = set(by_row.values())
    fillers = (f"madeupword{i:04}" for i in range(10 * rows))
    for row in range(len(SPECIAL), rows):
        piece = by_row.get(row, "")
        if piece in encoder:
            symbols.append(str(encoder[piece]))
        elif piece == MASK or _FILLER.fullmatch(piece):
            symbols.append(piece)
        else:  # a row without a word, or with one that is not made of bytes
            symbols.append(next(word for word in fillers if word not in used))
    return symbols
