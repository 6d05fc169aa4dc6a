"""Words outside the dictionary as indexed OOV tokens, so that a model can copy them.

The k-th distinct unknown word of a transcript, counted from 0, stands as ``<unk-k>`` in it and in
its summary. The dictionary has as many of these symbols as there are numbers, and the words that
they stand for are put back into what a model writes (See et al., 2017, section 2.2, whose extended
vocabulary of one article this is).
"""

import re
from collections.abc import Collection, Sequence

UNKNOWN = "<unk>"
_NUMBERED = re.compile(r"<unk-(\d+)>")


def oov_token(number: int) -> str:
    """The symbol of the unknown word of this number, counted from 0."""
    return f"<unk-{number}>"


def index_oov_words(
    words: Sequence[str], known: Collection[str], limit: int
) -> tuple[list[str], list[str]]:
    """Numbers a transcript's unknown words by their first occurrence.

    Args:
        words: of the transcript.
        known: words of the dictionary; a set, unless it is small. Symbols of indexed OOV tokens
            among them do not make such a word of the transcript known.
        limit: how many numbers the dictionary has; further unknown words become ``<unk>``.

    Returns:
        One token for each word, and the unknown words in the order of their numbers.
    """
    numbers: dict[str, int] = {}
    for word in words:
        if len(numbers) == limit:
            break
        if not _is_known(word, known):
            numbers.setdefault(word, len(numbers))
    return _replace(words, known, numbers), list(numbers)


def index_with(words: Sequence[str], known: Collection[str], oov_words: Sequence[str]) -> list[str]:
    """Numbers a summary's unknown words as its transcript's were.

    Args:
        words: of the summary.
        known: words of the dictionary.
        oov_words: of the transcript, see :func:`index_oov_words`.

    Returns:
        One token for each word; ``<unk>`` for unknown words that the transcript does not have.
    """
    numbers: dict[str, int] = {}
    for number, word in enumerate(oov_words):
        numbers.setdefault(word, number)
    return _replace(words, known, numbers)


def restore_oov_words(text: str, oov_words: Sequence[str]) -> str:
    """Puts the words back for which indexed OOV tokens stand.

    Args:
        text: tokens separated by spaces.
        oov_words: of the transcript, see :func:`index_oov_words`.

    Returns:
        The text; a number that the transcript does not have becomes ``<unk>``.
    """
    return " ".join(_restore(token, oov_words) for token in text.split())


def _is_known(word: str, known: Collection[str]) -> bool:
    if word == UNKNOWN:
        return True  # already replaced: which word it was is lost
    return word in known and not _NUMBERED.fullmatch(word)


def _replace(words: Sequence[str], known: Collection[str], numbers: dict[str, int]) -> list[str]:
    tokens = []
    for word in words:
        if _is_known(word, known):
            tokens.append(word)
        else:
            tokens.append(oov_token(numbers[word]) if word in numbers else UNKNOWN)
    return tokens


def _restore(token: str, oov_words: Sequence[str]) -> str:
    found = _NUMBERED.fullmatch(token)
    if found is None:
        return token
    number = int(found[1])
    return oov_words[number] if number < len(oov_words) else UNKNOWN
