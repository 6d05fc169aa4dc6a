"""Turns text into words or subwords, and back into text.

A data folder names the kind of its tokenizer in ``subwords.json`` and holds the tokenizer's files.
A checkpoint contains the kind and the files, so that it does not depend on the folder. The kinds
are:

- ``none``: the words of the text, split at spaces;
- ``gpt2``: fairseq's GPT-2 BPE, ``encoder.json`` and ``vocab.bpe``; tokens are the numbers of
  ``encoder.json``, as in the ``dict.txt`` of fairseq's BART;
- ``sentencepiece``: the tokens of ``sentencepiece.model``, as with ``--bpe sentencepiece``.

With ``indexed_oov`` (only for ``none``), a data folder writes words outside the dictionary as
``<unk-0>``, ``<unk-1>``, ...: see ``indexed_oov.py``.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from fairseq_mm.data.input_files import decoded, parse_object, read_bytes
from fairseq_mm.data.output_file import output_file, partial_path
from fairseq_mm.errors import UserError, file_errors, first_line

SUBWORDS_FILE = "subwords.json"
# folders and checkpoints contain these files, so that they work without the pretrained model
KINDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "gpt2": ("encoder.json", "vocab.bpe"),
    "sentencepiece": ("sentencepiece.model",),
}
# `prepare` replaces all of them: files of another kind must not stay in the folder
SUBWORD_FILES = frozenset([SUBWORDS_FILE, *(name for names in KINDS.values() for name in names)])
# folders and checkpoints keep this earlier name of indexed OOV tokens
INDEXED_OOV = "numbered_unknowns"

# names in pretrained models' folders: T5 uses the second, mBART and XLM-R the third
_SENTENCEPIECE_NAMES = (
    "sentencepiece.model",
    "spiece.model",
    "sentence.bpe.model",
    "sentencepiece.bpe.model",
)

# fairseq adds these tokens around and after a line; they have no text
_NO_TEXT = frozenset(["<s>", "</s>", "<pad>"])
_WORD_START = "\u2581"  # sentencepiece's mark for the beginning of a word
# models with byte fallback write <0xC3><0xA9> for a character that the vocabulary lacks
_BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")


class Subwords:
    """Tokenizer of a data folder or checkpoint, which turns text into tokens and back.

    Args:
        kind: One of ``KINDS``.
        files: Dictionary from the name of a file, as in ``KINDS``, to its content.
        indexed_oov: Number of dictionary entries ``<unk-0>``, ``<unk-1>``, ...; 0 if the dictionary
            has none.
        source: Path of the folder, for messages.
    """

    def __init__(
        self,
        kind: str = "none",
        *,
        files: Optional[Mapping[str, bytes]] = None,
        indexed_oov: int = 0,
        source: Union[str, os.PathLike] = "a checkpoint",
    ) -> None:
        self.kind = kind
        self.indexed_oov = indexed_oov
        self._gpt2: Any = None
        self._sentencepiece: Any = None
        try:
            if indexed_oov and kind != "none":  # pieces leave no word outside the dictionary
                raise ValueError(f"indexed OOV tokens ({indexed_oov}) are for text in words")
            self.files = {name: (files or {})[name] for name in KINDS[kind]}
            if kind == "gpt2":
                self._gpt2 = _load_gpt2(*self.files.values())
            elif kind == "sentencepiece":
                import sentencepiece

                self._sentencepiece = sentencepiece.SentencePieceProcessor()
                self._sentencepiece.LoadFromSerializedProto(*self.files.values())
                if not self._sentencepiece.get_piece_size():
                    raise ValueError("it has no pieces")
        # of libraries that parse the files
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"{source}: its {kind} subwords cannot be read: {type(error).__name__}: "
                f"{first_line(error)}"
            ) from None

    @property
    def fingerprint(self) -> str:
        """First twelve hexadecimal digits of a SHA-256 of everything that determines the tokens of
        a text."""
        # parsed BPE files are hashed, since copies of JSON and merges may differ in white space
        content: list[Any] = [self.kind, self.indexed_oov]
        if self._gpt2 is not None:
            content += [sorted(self._gpt2.encoder.items()), list(self._gpt2.bpe_ranks)]
        else:
            content += [hashlib.sha256(self.files[name]).hexdigest() for name in KINDS[self.kind]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def encode(self, text: str) -> list[str]:
        """Return the tokens of a text; each run of white space counts as one space."""
        words = text.split()
        if self._gpt2 is not None:
            return [str(number) for number in self._gpt2.encode(" ".join(words))]
        if self._sentencepiece is not None:
            return self._sentencepiece.encode(" ".join(words), out_type=str)
        return words

    def decode(self, tokens: str) -> str:
        """Turn tokens, separated by spaces, into text on one line.

        ``<s>``, ``</s>`` and ``<pad>`` are dropped; any other token that is no subword, such as
        ``<unk>``, is copied to the text.
        """
        pieces = [token for token in tokens.split() if token not in _NO_TEXT]
        if self._gpt2 is not None:
            # neighbouring pieces are decoded together, since a piece may end within a character
            text, run = "", []
            for piece in pieces:
                if piece.isdecimal() and int(piece) in self._gpt2.decoder:
                    run.append(int(piece))
                else:
                    text += self._gpt2.decode(run) + piece
                    run = []
            return " ".join((text + self._gpt2.decode(run)).split())
        if self._sentencepiece is not None:
            joined = _BYTES.sub(
                lambda run: bytes.fromhex(re.sub("<0x|>", "", run[0])).decode(errors="replace"),
                "".join(pieces),
            )
            return " ".join(joined.replace(_WORD_START, " ").split())
        return " ".join(pieces)

    def to_state(self) -> dict[str, Any]:
        """Return the tokenizer's kind and the contents of its files as a dictionary for JSON."""
        state: dict[str, Any] = self._describe()
        # JSON has no bytes
        if self.files:
            state["files"] = {
                name: base64.b64encode(content).decode() for name, content in self.files.items()
            }
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Subwords":
        """Build a tokenizer from the result of ``to_state``."""
        files = {name: base64.b64decode(x) for name, x in state.get("files", {}).items()}
        return cls(state.get("kind", ""), files=files, indexed_oov=state.get(INDEXED_OOV, 0))

    @classmethod
    def from_paths(
        cls, kind: str, paths: Mapping[str, Union[str, os.PathLike]], *, indexed_oov: int = 0
    ) -> "Subwords":
        """Build a tokenizer from its files: ``paths`` maps each name in ``KINDS`` to a path."""
        return cls(
            kind,
            files={name: read_bytes(os.fspath(path)) for name, path in paths.items()},
            indexed_oov=indexed_oov,
            source=" and ".join(os.fspath(path) for path in paths.values()),
        )

    @classmethod
    def load(cls, folder: Union[str, os.PathLike]) -> "Subwords":
        """Load the tokenizer of a data folder; without ``subwords.json``, its kind is ``none``."""
        path = os.path.join(os.fspath(folder), SUBWORDS_FILE)
        if not os.path.exists(path):
            return cls()
        description = parse_object(decoded(read_bytes(path), path), path)
        kind = description.get("kind", "")
        files = {name: read_bytes(os.path.join(folder, name)) for name in KINDS.get(kind, ())}
        return cls(kind, files=files, indexed_oov=description.get(INDEXED_OOV, 0), source=path)

    @classmethod
    def from_pretrained(cls, folder: Union[str, os.PathLike]) -> "Subwords":
        """Load the tokenizer of a pretrained model from the model's folder.

        If the folder has ``subwords.json``, this file names the kind of the tokenizer. Otherwise
        the kind is ``gpt2`` if the folder has ``encoder.json`` and ``vocab.bpe``, as fairseq's BART
        does, or ``sentencepiece`` if it has the file of a sentencepiece model.
        """
        root = Path(folder)
        if (root / SUBWORDS_FILE).exists():
            return cls.load(root)
        if all((root / name).exists() for name in KINDS["gpt2"]):
            return cls.from_paths("gpt2", {name: root / name for name in KINDS["gpt2"]})
        for name in _SENTENCEPIECE_NAMES:
            if (root / name).exists():
                return cls.from_paths("sentencepiece", {"sentencepiece.model": root / name})
        raise UserError(
            f"{folder}: must have {SUBWORDS_FILE}, {' and '.join(KINDS['gpt2'])}, or "
            f"{_SENTENCEPIECE_NAMES[0]}, to say how its model's text becomes tokens."
        )

    def save(self, folder: Union[str, os.PathLike]) -> None:
        """Write ``subwords.json`` and the tokenizer's files to a folder, which is created if
        necessary."""
        os.makedirs(folder, exist_ok=True)
        for name, content in self.files.items():
            path = os.path.join(folder, name)
            with file_errors(path, "cannot be written", OSError), partial_path(path) as partial:
                Path(partial).write_bytes(content)
                os.replace(partial, path)
        # last, since it names the kind: it must not be in the folder without its files
        with output_file(Path(folder) / SUBWORDS_FILE) as file:
            file.write(json.dumps(self._describe()) + "\n")

    def _describe(self) -> dict[str, Any]:
        numbered = {INDEXED_OOV: self.indexed_oov} if self.indexed_oov else {}
        return {"kind": self.kind, **numbered}


def _load_gpt2(encoder_json: bytes, vocab_bpe: bytes) -> Any:
    from fairseq.data.encoders.gpt2_bpe_utils import Encoder, bytes_to_unicode

    encoder = json.loads(encoder_json)
    lines = vocab_bpe.decode("utf-8-sig").splitlines()
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    merges = [(first, second) for first, second in pairs]
    # otherwise encoding a text could fail later with KeyError, at a piece without a number
    for piece in (*bytes_to_unicode().values(), *map("".join, merges)):
        if piece not in encoder:
            raise ValueError(f"encoder.json lacks the piece {piece!r}, which vocab.bpe makes")
    return Encoder(encoder, merges)


def join_pieces(tokens: Sequence[str], subwords: Subwords) -> tuple[list[str], np.ndarray]:
    """Join N tokens of the tokenizer ``subwords`` to words.

    Returns:
        words: The W words; ``</s>`` and other tokens without text are words by themselves.
        owners: ``[N]`` index of the word that each token belongs to.
    """
    if subwords.kind == "none":
        return list(tokens), np.arange(len(tokens))
    words: list[str] = []
    owners = []
    pieces: list[str] = []  # pieces of the current word
    for token in tokens:
        if token.startswith("<") and token.endswith(">"):
            words.append(token)
            pieces = []
        else:
            # a piece that begins a word decodes to text after a space, or to a space
            text = subwords.decode(token)
            parts = subwords.decode(" ".join([*pieces, token])).split()
            if pieces and len(parts) < 2 and text:
                words[-1] = "".join(parts)
                pieces.append(token)
            else:
                words.append(text)  # "" for a piece that is only a space
                pieces = [token]
        owners.append(len(words) - 1)
    return words, np.array(owners)


def by_word(weights: np.ndarray, owners: np.ndarray, *, sums: bool = False) -> np.ndarray:
    """Average (or add up) weights ``[..., N, M]`` of tokens over the tokens of each word, to
    ``[..., W, M]``; ``owners`` is the ``[N]`` result of :func:`join_pieces`."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    total = np.add.reduceat(weights, starts, axis=-2)
    return total if sums else total / np.bincount(owners)[:, None]
