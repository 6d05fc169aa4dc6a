"""Finds errors that are visible in a text itself: unknown words, repetitions, cut-off ends.

Such errors occur in less than 1 in 100 texts that people wrote; the report counts them in the
references, too. A word without a counterpart in the references is not an error: in Flickr8k, a
third of the content words of a human caption do not occur in the four other captions of the image,
even as a stem or synonym.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# kind of fault -> description on the page
FAULTS = {"repeat": "repeated", "unknown": "unknown word", "cut": "cut off"}
_LONGEST = 8  # words in a repeated phrase
# a phrase may return after one of these: "a red shirt and a red shirt"
_LINKS = frozenset(["and", "or", "with"])
# no text ends in these
_NEVER_LAST = frozenset(["a", "an", "the", "and", "or"])
# no phrase ends in these: "side to | side to" of "from side to side to ..." is no repeated phrase
_NEVER_PHRASE_LAST = _LINKS | _NEVER_LAST | {"after", "by", "of", "to"}


class Word(NamedTuple):
    """Word of a text, marked if it is an error.

    Attributes:
        text: The word as it is written.
        fault: Kind of error, a key of :data:`FAULTS`; empty for a correct word.
    """

    text: str
    fault: str = ""


def find_faults(text: str) -> list[Word]:
    """Split a text at white space, and mark each word that is an error.

    - ``unknown``: the word is ``<unk>`` or an indexed unknown token, such as ``<unk-0>``.
    - ``repeat``: the word belongs to a phrase that directly follows the same phrase. Between
      phrases of two words or more, there may be "and", "or" or "with". Punctuation ends a phrase.
    - ``cut``: the word is the last one, but cannot end a text, such as "a".
    """
    written = text.split()
    # punctuation is a word of its own in generated texts, and part of a word in others
    words = [_bare(word) for word in written]
    faults = [""] * len(words)
    for start, length in _repeats(words):
        faults[start : start + length] = ["repeat"] * length
    last = max((i for i, word in enumerate(words) if word), default=-1)
    if last >= 0 and words[last] in _NEVER_LAST:
        faults[last] = "cut"
    for i, word in enumerate(written):
        if word.startswith("<unk") and word.endswith(">"):
            faults[i] = "unknown"
    return [Word(word, fault) for word, fault in zip(written, faults)]


def count_faults(texts: Iterable[Sequence[Word]]) -> dict[str, int]:
    """Return a dict from each kind of error to the number of texts that have it."""
    counts = dict.fromkeys(FAULTS, 0)
    for words in texts:
        for fault in {word.fault for word in words} - {""}:
            counts[fault] += 1
    return counts


def _repeats(words: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Yield (index of the first word, length) of each phrase that repeats the phrase before it."""
    for start in range(1, len(words)):
        for length in range(min(_LONGEST, start, len(words) - start), 0, -1):
            phrase = words[start : start + length]
            gap = 1 if length > 1 and words[start - 1] in _LINKS else 0
            befores = [
                words[start - d - length : start - d] for d in (0, gap) if start >= d + length
            ]
            # "the the" is a fault, but not the end of a longer phrase
            is_whole = length == 1 or phrase[-1] not in _NEVER_PHRASE_LAST
            # "5 5" is a number of two parts, such as a telephone number
            is_phrase = all(phrase) and is_whole and not phrase[0].isdecimal()
            if is_phrase and phrase in befores:
                yield start, length
                break


def _bare(word: str) -> str:
    """Return a word in lower case without punctuation at its ends; empty for punctuation."""
    return word.lower().strip(".,;:!?\"'()[]`…")
