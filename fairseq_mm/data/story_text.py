"""Prompts and stories: text as people write it <-> the words that WritingPrompts is made of.

The release is tokenised in NLTK's manner (the Penn Treebank's rules): ```` `` ```` and ``''``
for double quotes, ``ca n't``, ``it 's``, ``gon na``, brackets and marks as words of their own,
typographic quotes and apostrophes too (three words for *doesn't* with one), the full stop of a
sentence apart and that of an abbreviation not, case kept, and ``<newline>`` for a line break. A
word that is written in any other manner is an unknown word to a model of it.

:func:`tokenize_story_text` leaves text alone that is tokenised already. What cannot be told from
the words is lost on the way back: how many spaces there were, whether a dash had space around it,
``cannot`` or ``can not`` (becomes ``cannot``).
"""

import re

from fairseq_mm.errors import UserError

NEWLINE = "<newline>"

_WORD = re.compile(
    r"<newline>"
    r"|``+|''+"  # quotes that are tokens already; two apostrophes are a quote to NLTK too
    r"|\.\.\.|--+"
    r"|[][(){}<>;@#$%&?!\"“”„\u2018\u2019«»`]"
    r"|[,:](?!\d)"
    # anything else, with commas and colons that a digit follows: 1,000 and 10:30
    r"|(?P<other>(?:(?!''|\.\.\.|--)[^][(){}<>;@#$%&?!\"“”„\u2018\u2019«»`\s,:]|[,:](?=\d))+)"
)
_OPENS_QUOTE = re.compile(r"(?:^|[\s\[({<“\u2018`]|--)$")

_CLITIC = re.compile(r"(?i)(?<=[^\W_])(?:n't|'(?:s|m|d|ll|re|ve))$")
_TWO_WORDS = re.compile(
    r"(?i)(can)(not)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(wan)(na)|('t)(is)|('t)(was)|(d)('ye)"
)
_TWO_WORDS_HALVES = {
    ("can", "not"), ("gim", "me"), ("gon", "na"), ("got", "ta"), ("lem", "me"), ("wan", "na"),
    ("'t", "is"), ("'t", "was"), ("d", "'ye"),
}  # fmt: skip

# a full stop after a title, a single letter or inside an acronym ends no sentence ...
_TITLES = frozenset(
    ["mr", "mrs", "ms", "dr", "st", "prof", "rev", "gen", "capt", "lt", "sgt", "gov", "vs", "e.g"]
)
# ... and after these it does where a capital follows
_ENDINGS = frozenset(
    ["etc", "inc", "ltd", "co", "jr", "sr", "dept", "approx", "a.m", "p.m", "b.c", "a.d"]
)
# what may stand between a full stop and the next sentence
_SENTENCE_END = re.compile(
    r"[])}>\"'”\u2019»]*(?:\s*$|\s*<newline>|\s+[\[({\"“\u2018'`«*]*(?P<next>\S))"
)

_ATTACH_LEFT = frozenset([*".,;:?!%)]}>”\u2019»", "...", "''"])
_ATTACH_RIGHT = frozenset([*"([{<$#@“\u2018„«`", "``"])
_AFTER_APOSTROPHE = frozenset(["s", "t", "m", "d", "ll", "re", "ve"])


def tokenize_story_text(text: str) -> list[str]:
    """Splits text as WritingPrompts is split; line breaks become ``<newline>``.

    Text that is split already stays as it is.
    """
    lines = text.strip().splitlines()
    return _tokenize(f" {NEWLINE} ".join(line.strip() for line in lines))


def _tokenize(text: str) -> list[str]:
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


def _split_word(word: str, text: str, end: int) -> list[str]:
    """Splits clitics, closing apostrophes and the full stop of a sentence off a word.

    Args:
        word: it, without white space.
        text: where it stands.
        end: index in ``text`` behind it.
    """
    tail: list[str] = []
    if word[-1] == "." and word.strip(".") and _ends_sentence(word, text, end):
        word, tail = word[:-1], ["."]
    elif word[-1] == "'" and word.strip("'"):  # boys' and 'receiving station'
        word, tail = word[:-1], ["'"]
        if word[-1] == "." and word.strip("."):
            word, tail = word[:-1], [".", "'"]
    clitics: list[str] = []
    clitic = _CLITIC.search(word)
    while clitic:  # should n't 've
        clitics.insert(0, clitic.group())
        word = word[: clitic.start()]
        clitic = _CLITIC.search(word)
    halves = _TWO_WORDS.fullmatch(word)
    stem = [half for half in halves.groups() if half] if halves else [word]
    return [*stem, *clitics, *tail]


def _ends_sentence(word: str, text: str, end: int) -> bool:
    if word[-2:] == "..":
        return False
    match = _SENTENCE_END.match(text, end)
    if match is None:  # glued to what follows
        return False
    following = match.group("next")
    if following is None:
        return True
    stem = word[:-1].strip("'*_")
    if stem.lower() in _ENDINGS:
        return following.isupper()
    is_initial = len(stem) == 1 and stem.isupper() and stem != "I"
    return not (stem.lower() in _TITLES or "." in stem or is_initial)


def check_encodable(text: str, name: str) -> None:
    """
    Args:
        text: of the command line, where a byte that is no UTF-8 is half a character.
        name: of the argument, for the message.

    Raises:
        UserError: if it could not be written to a file.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{name}: must be UTF-8 text, but is not ({error.reason}).") from None


def detokenize_story(words: list[str], *, curly_quotes: bool = False) -> str:
    """Joins a story's or prompt's words to text that people read.

    Serves the release, where every mark is a word, and copies of it that have commas and full
    stops back at their words.

    Args:
        words: as a model writes them.
        curly_quotes: ``“`` and ``”`` for the quotes `` `` `` and ``''`` instead of ``"``.
    """
    opening, closing = ("“", "”") if curly_quotes else ('"', '"')
    pieces: list[str] = []
    previous = NEWLINE
    glue = True  # the next word follows without a space
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else NEWLINE
        if word == NEWLINE:
            pieces.append("\n")
            previous, glue = word, True
            continue
        if not glue and not _attaches_left(word, previous):
            pieces.append(" ")
        pieces.append(word.replace("``", opening).replace("''", closing))
        glue = _attaches_right(word, previous, following)
        previous = word
    return "".join(pieces)


def _attaches_left(word: str, previous: str) -> bool:
    lowered = word.lower()
    return (
        word in _ATTACH_LEFT
        or word == "'"
        or bool(re.fullmatch(r"(?:n't|'(?:s|m|d|ll|re|ve))\W*", lowered))
        or (previous.lower(), lowered) in _TWO_WORDS_HALVES
    )


def _attaches_right(word: str, previous: str, following: str) -> bool:
    if word == "\u2019":
        return following.lower() in _AFTER_APOSTROPHE and previous != NEWLINE
    return word in _ATTACH_RIGHT or word.endswith("\u2014")  # a dash, said\u2014
