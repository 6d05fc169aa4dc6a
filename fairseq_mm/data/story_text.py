"""Tokenizes prompts and stories, and splits visual stories into sentences.

WritingPrompts is tokenized in NLTK's manner (the rules of the Penn Treebank): ```` `` ```` and
``''`` for double quotes, ``ca n't``, ``it 's``, ``gon na``. Brackets and punctuation marks are
words, also typographic quotes and apostrophes (so *doesn't* with a typographic apostrophe becomes
three words). The full stop of a sentence is a word, the full stop of an abbreviation is not. Case
is kept, and a line break is ``<newline>``. Words that are tokenized in any other way are unknown to
a model of WritingPrompts.

:func:`tokenize_story_text` does not change text that is tokenized already. Detokenizing cannot
restore the number of spaces, spaces around a dash, and ``can not`` (which becomes ``cannot``).

A visual story of five images is one line of text: its sentences, joined by a separator. The number
of separators before a word is the index of its sentence and of its image, in training and at every
step of beam search. The last sentence ends with fairseq's ``</s>``.
"""

import re
from collections.abc import Callable, Sequence

from fairseq_mm.errors import UserError

NEWLINE = "<newline>"
# VIST has five images and sentences a story; the separator is no word of its texts
NUM_IMAGES = 5
SEPARATOR = "<sent>"

_WORD = re.compile(
    r"<newline>"
    r"|``+|''+"  # quotes that are tokens already; two apostrophes are a quote to NLTK too
    r"|\.\.\.|--+"
    r"|[][(){}<>;@#$%&?!\"“”„\u2018\u2019«»`]"
    r"|[,:](?!\d)"
    # anything else, with commas and colons that a digit follows: 1,000 and 10:30
    r"|(?P<other>(?:(?!''|\.\.\.|--)[^][(){}<>;@#$%&?!\"“”„\u2018\u2019«»`\s,:]|[,:](?=\d))+)"
)
# a straight quote does not tell its side: as in NLTK, the text before it decides
_OPENS_QUOTE = re.compile(r"(?:^|[\s\[({<“\u2018`]|--)$")

_CLITIC = re.compile(r"(?i)(?<=[^\W_])(?:n't|'(?:s|m|d|ll|re|ve))$")
# words that the Penn Treebank splits in two
_TWO_WORDS = {
    ("can", "not"), ("gim", "me"), ("gon", "na"), ("got", "ta"), ("lem", "me"), ("wan", "na"),
    ("'t", "is"), ("'t", "was"), ("d", "'ye"),
}  # fmt: skip
_JOINED_WORDS = re.compile("(?i)" + "|".join(f"({a})({b})" for a, b in sorted(_TWO_WORDS)))

# a full stop after a title, a single letter or inside an acronym ends no sentence ...
_TITLES = frozenset(
    ["mr", "mrs", "ms", "dr", "st", "prof", "rev", "gen", "capt", "lt", "sgt", "gov", "vs", "e.g"]
)
# ... and after these it does where a capital follows
_ENDINGS = frozenset(
    ["etc", "inc", "ltd", "co", "jr", "sr", "dept", "approx", "a.m", "p.m", "b.c", "a.d"]
)
# closing marks may stand between a full stop and the next sentence, and opening marks before it
_SENTENCE_END = re.compile(
    r"[])}>\"'”\u2019»]*(?:\s*$|\s*<newline>|\s+[\[({\"“\u2018'`«*]*(?P<next>\S))"
)

_ATTACH_LEFT = frozenset([*".,;:?!%)]}>”\u2019»", "...", "''"])
_ATTACH_RIGHT = frozenset([*"([{<$#@“\u2018„«`", "``"])
_AFTER_APOSTROPHE = frozenset(["s", "t", "m", "d", "ll", "re", "ve"])


def join_sentences(sentences: Sequence[str]) -> str:
    """Join the sentences of a visual story to one line, with separators between them; the words of
    a sentence are separated by spaces."""
    return f" {SEPARATOR} ".join(sentences)


def split_sentences(line: str) -> list[str]:
    """Split the line of a visual story into sentences, which may be empty strings."""
    # by words, since the separator counts only as a word of its own
    sentences: list[list[str]] = [[]]
    for word in line.split():
        if word == SEPARATOR:
            sentences.append([])
        else:
            sentences[-1].append(word)
    return [" ".join(words) for words in sentences]


def detokenize_sentences(line: str) -> list[str]:
    """Return the readable sentences of the line of a visual story."""
    return [detokenize_story(words.split()).strip() for words in split_sentences(line)]


def tokenize_story_text(text: str) -> list[str]:
    """Split text into words in the way of WritingPrompts; line breaks become ``<newline>``."""
    text = f" {NEWLINE} ".join(line.strip() for line in text.strip().splitlines())
    words: list[str] = []
    for match in _WORD.finditer(text):
        word = match.group()
        if word == '"':
            before = text[max(0, match.start() - 2) : match.start()]
            words.append("``" if _OPENS_QUOTE.search(before) else "''")
        elif match.lastgroup:
            words += _split_word(word, text, match.end())
        else:
            words.append(word)
    return words


# tokenizers of prompts and stories
STORY_TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "story": tokenize_story_text,
    "whitespace": str.split,
}


def _split_word(word: str, text: str, end: int) -> list[str]:
    """Return the parts of a word: its stem, clitics, closing apostrophe and full stop.

    ``word`` ends before ``text[end]``. The text that follows shows whether a full stop at the end
    of the word ends a sentence; only then is the full stop a part of its own.
    """
    tail: list[str] = []
    if word[-1] == "." and word.strip(".") and _ends_sentence(word, text, end):
        word, tail = word[:-1], ["."]
    elif word[-1] == "'" and word.strip("'"):  # a possessive (boys') or the end of a quotation
        word, tail = word[:-1], ["'"]
        if word[-1] == "." and word.strip("."):
            word, tail = word[:-1], [".", "'"]
    clitics: list[str] = []
    clitic = _CLITIC.search(word)
    while clitic:  # one word can have several, such as shouldn't've
        clitics.insert(0, clitic.group())
        word = word[: clitic.start()]
        clitic = _CLITIC.search(word)
    halves = _JOINED_WORDS.fullmatch(word)
    stem = [half for half in halves.groups() if half] if halves else [word]
    return [*stem, *clitics, *tail]


def _ends_sentence(word: str, text: str, end: int) -> bool:
    if word[-2:] == "..":
        return False
    match = _SENTENCE_END.match(text, end)
    if match is None:  # a letter follows without a space: an address or an abbreviation
        return False
    following = match.group("next")
    if following is None:
        return True
    stem = word[:-1].strip("'*_")
    if stem.lower() in _ENDINGS:
        return following.isupper()
    # `so did I.` ends a sentence, `George I. Smith` is rare
    is_initial = len(stem) == 1 and stem.isupper() and stem != "I"
    return not (stem.lower() in _TITLES or "." in stem or is_initial)


def check_encodable(text: str, name: str) -> None:
    """Raise UserError if ``text``, the value of the command-line argument ``name``, is not valid
    UTF-8."""
    # Python decodes a byte of an argument that is not UTF-8 to a lone surrogate, which would end
    # the command only when its outputs are written
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{name}: must be UTF-8 text, but is not ({error.reason}).") from None


def detokenize_story(words: list[str]) -> str:
    """Join the words of a story or prompt to readable text.

    The words may be tokens of the WritingPrompts release, in which every punctuation mark is a
    word. They may also come from copies of the release in which commas and full stops end words.
    """
    pieces: list[str] = []
    previous = NEWLINE
    glue = True  # whether the next word follows without a space
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else NEWLINE
        if word == NEWLINE:
            pieces.append("\n")
            previous, glue = word, True
            continue
        lowered = word.lower()
        attaches_left = (
            word in _ATTACH_LEFT
            or word == "'"
            or re.fullmatch(r"(?:n't|'(?:s|m|d|ll|re|ve))\W*", lowered)
            or (previous.lower(), lowered) in _TWO_WORDS
        )
        if not glue and not attaches_left:
            pieces.append(" ")
        pieces.append(word.replace("``", '"').replace("''", '"'))
        glue = word in _ATTACH_RIGHT or word.endswith("\u2014")  # a dash, said\u2014
        # as a token of its own it is an apostrophe before a clitic, or else the end of a quotation
        if word == "\u2019":
            glue = following.lower() in _AFTER_APOSTROPHE and previous != NEWLINE
        previous = word
    return "".join(pieces)
