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
        self._unknowns: deque[Sequence[str]] = deque()

    def expect(self, unknowns: Iterable[Sequence[str]]) -> None:
        """
        Args:
            unknowns: for each text that is decoded next the words that its numbers stand for.
        """
        self._unknowns = deque(unknowns)

    def encode(self, text: str) -> str:
        """Tokens of a text, separated by spaces."""
        return " ".join(self.subwords.encode(text))

    def decode(self, tokens: str) -> str:
        """Text of tokens separated by spaces."""
        unknowns = self._unknowns.popleft() if self._unknowns else None
        return self.text_of(tokens, unknowns)

    def text_of(self, tokens: str, unknowns: Optional[Sequence[str]] = None) -> str:
        """
        Args:
            tokens: separated by spaces.
            unknowns: words that indexed OOV tokens stand for; None where nobody knows them.
        """
        if unknowns is not None:
            tokens = restore_oov_words(tokens, unknowns)
        return self.subwords.decode(tokens)
