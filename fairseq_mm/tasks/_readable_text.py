"""Tokens -> text as people read it, in validation and in fairseq's command lines."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Optional

from fairseq_mm.data.indexed_oov import restore_oov_words
from fairseq_mm.data.subwords import Subwords


class ReadableText:
    """Decoder from tokens to text with the interface of fairseq's ``--bpe`` classes.

    fairseq decodes a text without passing the sample that it belongs to. The words of indexed OOV
    tokens must therefore be announced with :meth:`expect`, in the order of decoding.

    Args:
        subwords: Subwords of the data folder or the checkpoint.
    """

    def __init__(self, subwords: Subwords) -> None:
        self.subwords = subwords
        self._oov_words: deque[Sequence[str]] = deque()

    def expect(self, oov_words: Iterable[Sequence[str]]) -> None:
        """Announce the words of indexed OOV tokens.

        Args:
            oov_words: For each of the next texts, the words that its indexed tokens denote.
        """
        self._oov_words = deque(oov_words)

    def encode(self, text: str) -> str:
        """Return the tokens of a text, separated by spaces."""
        return " ".join(self.subwords.encode(text))

    def decode(self, tokens: str) -> str:
        """Return the text of tokens that are separated by spaces."""
        oov_words = self._oov_words.popleft() if self._oov_words else None
        return self.text_of(tokens, oov_words)

    def text_of(self, tokens: str, oov_words: Optional[Sequence[str]] = None) -> str:
        """Decode tokens to a text.

        Args:
            tokens: Tokens, separated by spaces.
            oov_words: Words that indexed OOV tokens denote; None if unknown.
        """
        if oov_words is not None:
            tokens = restore_oov_words(tokens, oov_words)
        return self.subwords.decode(tokens)
