"""Tokenizes captions: splits a raw sentence into words that a captioner reads and writes.

There are three tokenizers:

- ``words`` (the default) splits ordinary text by simple rules. Letters and digits joined by
  hyphens, apostrophes, and points or commas inside numbers stay together; ``'s``, ``n't`` and other
  clitics become words, as in the Penn Treebank; abbreviations such as ``u.s.`` keep their points.
- ``whitespace`` splits text at spaces, for text that is tokenized already.
- ``m_rnn`` follows the released m-RNN code: it lower-cases, splits at runs of non-word characters,
  keeps these runs as tokens, and drops a final ``.``.

By default, ``words`` and ``whitespace`` lower-case and drop punctuation. On Flickr8k's training
captions, both lead to a dictionary of 2,538 types: 2,536 words that occur at least five times, the
end of the sentence and the unknown word.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Optional

# fairseq's dictionary gives these a meaning: `</s>` inside a caption would end it there.
RESERVED_TOKENS = ("<s>", "<pad>", "</s>")

_CLITIC = re.compile(r"(?i)(?<=\w)(?:n't|'(?:s|m|d|re|ve|ll))$")
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})
_NON_WORD_RUN = re.compile(r"(\W+)")


@lru_cache(maxsize=256)
def _token_pattern(marks: str) -> "re.Pattern[str]":
    """Compile the pattern that matches one word or punctuation mark of a sentence.

    ``marks`` are the Unicode combining marks that occur in the sentence.
    """
    # \w does not match marks and joiners although they are parts of words (vowel signs of Indic
    # scripts); only the sentence's own marks are added, since Unicode has thousands
    letter = f"(?:[^\\W_]|[{re.escape(marks)}])" if marks else "[^\\W_]"
    return re.compile(
        rf"(?:(?<=\s)|^)'(?:s|m|d|re|ve|ll|n)(?=\s|$)"  # a clitic that was split off already
        rf"|(?<!\w)(?:[^\W\d_]\.){{2,}}"  # u.s.
        rf"|\d+(?:[.,]\d+)+"  # 3.5 and 1,000
        rf"|{letter}+(?:[-']{letter}+)*"
        rf"|(?P<mark>[^\w\s]|_)(?P=mark)*",  # ... is one token
        re.IGNORECASE,
    )


def _split_words(text: str) -> list[str]:
    if text.isascii():
        marks = ""
    else:
        # NFC joins a letter and its combining accent to one letter, if Unicode has that letter
        text = unicodedata.normalize("NFC", text).translate(_APOSTROPHES)
        marks = "".join(
            sorted({c for c in text if unicodedata.category(c)[0] == "M" or c in "\u200c\u200d"})
        )
    tokens = []
    for match in _token_pattern(marks).finditer(text):
        token = match.group()
        clitic = _CLITIC.search(token)
        if clitic:
            tokens.append(token[: clitic.start()])
            token = clitic.group()
        tokens.append(token)
    return tokens


def _split_m_rnn(text: str) -> list[str]:
    # the released code splits at `(\W+)`, whose group keeps the runs between words as tokens
    tokens = [token for run in _NON_WORD_RUN.split(text.lower()) for token in run.split()]
    return tokens[:-1] if tokens and tokens[-1] == "." else tokens


_SPLIT: dict[str, Callable[[str], list[str]]] = {
    "words": _split_words,
    "whitespace": str.split,
    "m_rnn": _split_m_rnn,
}
TOKENIZERS = tuple(_SPLIT)


class CaptionTokenizer:
    """Tokenizer of captions: a call turns a sentence into the list of its tokens.

    Args:
        name: One of ``TOKENIZERS``; ``m_rnn`` always lower-cases and keeps punctuation.
        keep_case: Do not lower-case.
        keep_punctuation: Keep tokens without any letter or digit.
    """

    def __init__(
        self, name: str = "words", *, keep_case: bool = False, keep_punctuation: bool = False
    ) -> None:
        self.name = name
        self._split = _SPLIT[name]
        self.keep_case = keep_case and name != "m_rnn"
        self.keep_punctuation = keep_punctuation or name == "m_rnn"

    def __call__(self, text: str) -> list[str]:
        # before splitting: the lower case of some letters is a letter and a combining mark
        if not self.keep_case:
            text = text.lower()
        tokens = self._split(text)
        if not self.keep_punctuation:
            tokens = [token for token in tokens if any(map(str.isalnum, token))]
        return tokens

    def settings(self) -> dict[str, object]:
        return {
            "tokenizer": self.name,
            "keep_case": self.keep_case,
            "keep_punctuation": self.keep_punctuation,
        }


def reserved_token(tokens: list[str]) -> Optional[str]:
    """Return the first of ``tokens`` that fairseq would read as a control symbol; None if there is
    none."""
    return next((token for token in tokens if token in RESERVED_TOKENS), None)
