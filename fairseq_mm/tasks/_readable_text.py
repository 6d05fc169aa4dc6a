"""Tokens -> text as people read it, in validation and in fairseq's command lines."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Optional

from fairseq_mm.data.indexed_oov import restore_oov_words
from fairseq_mm.data.subwords import Subwords


class ReadableText:
    """What fairseq's command lines take for ``--bpe``: the data folder's subwords.

    fairseq decodes a text without saying whose it is, so the words that indexed OOV tokens of the
    texts to come stand for are told beforehand, in the order in which it decodes them.

    Args:
        subwords: of the data folder or the checkpoint.
    """

    def __init__(self, subwords: Subwords) -> None:
        self.subwords = subwords
        self._oov_words: deque[Sequence[str]] = deque()

    def expect(self, oov_words: Iterable[Sequence[str]]) -> None:
        """
        Args:
            oov_words: for each text that is decoded next the words that its numbers stand for.
        """
        self._oov_words = deque(oov_words)

    def encode(self, text: str) -> str:
        """Tokens of a text, separated by spaces."""
        return " ".join(self.subwords.encode(text))

    def decode(self, tokens: str) -> str:
        """Text of tokens separated by spaces."""
        oov_words = self._oov_words.popleft() if self._oov_words else None
        return self.text_of(tokens, oov_words)

    def text_of(self, tokens: str, oov_words: Optional[Sequence[str]] = None) -> str:
        """
        Args:
            tokens: separated by spaces.
            oov_words: words that indexed OOV tokens stand for; None where nobody knows them.
        """
        if oov_words is not None:
            tokens = restore_oov_words(tokens, oov_words)
        return self.subwords.decode(tokens)
