"""Replaces words outside the dictionary by indexed OOV tokens, so that a model can copy them.

The k-th distinct unknown word of a transcript, counted from 0, is written ``<unk-k>`` in the
transcript and in its summary. The dictionary contains a fixed number of such tokens. In generated
text, these tokens are replaced by the words again. See et al. (2017, section 2.2) use an extended
vocabulary of each article to the same effect.
"""

import re
from collections.abc import Collection, Sequence

UNKNOWN = "<unk>"
_NUMBERED = re.compile(r"<unk-(\d+)>")


def oov_token(number: int) -> str:
    """Return the indexed OOV token ``<unk-k>`` for the unknown word with the number k, from 0."""
    return f"<unk-{number}>"


def index_oov_words(
    words: Sequence[str], known: Collection[str], limit: int
) -> tuple[list[str], list[str]]:
    """Replace the unknown words of a transcript by indexed OOV tokens, ``<unk-0>``, ``<unk-1>``...

    The unknown words are numbered in the order of their first occurrence.

    Args:
        words: Words of the transcript.
        known: Words of the dictionary. A word such as ``<unk-0>`` counts as unknown even if the
            dictionary contains it.
        limit: Number of indexed OOV tokens; further unknown words become ``<unk>``.

    Returns:
        One token for each word, and the unknown words in the order of their numbers.
    """
    unknown = dict.fromkeys(word for word in words if not _is_known(word, known))
    oov_words = list(unknown)[:limit]
    return index_with(words, known, oov_words), oov_words


def index_with(words: Sequence[str], known: Collection[str], oov_words: Sequence[str]) -> list[str]:
    """Replace the unknown words of a summary by the tokens ``<unk-0>``, ``<unk-1>``, ... that stand
    for these words in its transcript.

    Args:
        words: Words of the summary.
        known: Words of the dictionary.
        oov_words: Unknown words of the transcript, in the order of their numbers.

    Returns:
        One token for each word; ``<unk>`` for unknown words that the transcript does not have.
    """
    numbers: dict[str, int] = {}
    for number, word in enumerate(oov_words):
        numbers.setdefault(word, number)
    tokens = []
    for word in words:
        if not _is_known(word, known):
            word = oov_token(numbers[word]) if word in numbers else UNKNOWN
        tokens.append(word)
    return tokens


def restore_oov_words(text: str, oov_words: Sequence[str]) -> str:
    """Replace the tokens ``<unk-0>``, ``<unk-1>``, ... of a text by the words that they stand for.

    ``oov_words`` are the unknown words of the text's transcript. A token whose number is too high
    for ``oov_words`` becomes ``<unk>``.
    """
    words = text.split()
    for i, token in enumerate(words):
        match = _NUMBERED.fullmatch(token)
        if match:
            number = int(match[1])
            words[i] = oov_words[number] if number < len(oov_words) else UNKNOWN
    return " ".join(words)


def _is_known(word: str, known: Collection[str]) -> bool:
    if word == UNKNOWN:
        return True  # an unknown word that was replaced before: it cannot be restored
    return word in known and not _NUMBERED.fullmatch(word)
