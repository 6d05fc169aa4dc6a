"""Turns token indices into the words that rewards of ``--criterion self_critical`` compare.

If each token of the data folder is a word, the word is represented by the token's index, because
comparing numbers is faster than comparing text. If words are split into subwords, a word is text.
The end of a text counts as a word, so that texts with and without an end get different rewards.
"""

from collections.abc import Collection, Hashable, Sequence
from typing import Any

from fairseq.data import Dictionary


class RewardText:
    """Conversion of token indices into the words that rewards compare.

    Args:
        dictionary: Dictionary of the texts.
        ignored: Indices of tokens that are no words, such as the separator of sentences.
        subwords: Subword vocabulary whose ``decode`` turns tokens, separated by spaces, into text;
            None if each token is a word.
    """

    def __init__(
        self, dictionary: Dictionary, *, ignored: Collection[int] = (), subwords: Any = None
    ) -> None:
        self.dictionary = dictionary
        self.end = dictionary.eos()
        self.ignored = frozenset([dictionary.bos(), dictionary.pad(), self.end, *ignored])
        self.subwords = subwords

    def words(self, tokens: Sequence[int]) -> list[Hashable]:
        """Return the words of a text; a final ``</s>`` counts as a word."""
        kept = [token for token in tokens if token not in self.ignored]
        end: list[Hashable] = [self.end] if len(tokens) and tokens[-1] == self.end else []
        if self.subwords is None:
            return [*kept, *end]
        symbols = self.dictionary.symbols
        return [*self.subwords.decode(" ".join(symbols[x] for x in kept)).split(), *end]
