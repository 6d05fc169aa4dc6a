# ruff: noqa: RUF001 (quotation marks and dashes are what this file is about)
"""Tokenizer of METEOR 1.5 for English, which the jar's option ``-norm`` turns on.

Punctuation is separated from words, quotation marks and dashes become their ASCII forms, hyphens
and apostrophes split words, and all words are lower-cased.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

# ASCII's white space and digits only, as in the jar's regular expressions
_LETTERS = (
    r"A-Za-z\u0160\u017d\u0161\u017e\u0178\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0400-\u0527"
    r"\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
)
_SPACE = " \t\n\x0b\f\r"
_DELIMITERS = re.compile(r"[ \t\n\r\f]+")
# characters that the jar removes at both ends of a text
CONTROLS = "".join(map(chr, range(0x21)))

# Marks the full stops of an ellipsis, so that rules for full stops skip them. The jar has the same
# marker: it turns the word DOTMULTI of a text into a full stop.
_ELLIPSIS_DOT = "DOTMULTI"

_Rule = tuple[re.Pattern, "str | Callable[[re.Match], str]"]


def _mark_dots(match: re.Match) -> str:
    return f" {'DOT' * (len(match.group()) - 1)}{_ELLIPSIS_DOT} "


# applied in this order
_RULES: tuple[_Rule, ...] = (
    (re.compile(rf"([^0-9{_LETTERS}{_SPACE}.'`,\-‘’])"), r" \1 "),
    (re.compile(r"\.\.+"), _mark_dots),
    (re.compile(r"([^0-9]),([^0-9])"), r"\1 , \2"),
    (re.compile(r"([0-9]),([^0-9])"), r"\1 , \2"),
    (re.compile(r"([^0-9]),([0-9])"), r"\1 , \2"),
    (re.compile("[`‘’]"), "'"),
    (re.compile("[“”]|''"), ' " '),
    (re.compile("–|--"), "-"),
    (re.compile(rf"([0-9{_LETTERS}.])-([0-9{_LETTERS}])"), r"\1 \2"),
    (re.compile(rf"([^{_LETTERS}])'([^{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(rf"([^{_LETTERS}0-9])'([{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(rf"([{_LETTERS}])'([^{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(rf"([{_LETTERS}])'([{_LETTERS}])"), r"\1 '\2"),
    (re.compile("([0-9])'(s)"), r"\1 '\2"),
)
_LETTER = re.compile(f"[{_LETTERS}]")
# the lookbehind keeps the search linear in long runs of DOT
_MARKED_DOTS = re.compile(f"(?<!DOT)((?:DOT)*){_ELLIPSIS_DOT}")
_OTHER_SPACES = re.compile("[ \u2000-\u200a\u202f\u205f\u3000\u00a0]+")
# A rule that matches the first sign together with the space does not match the second sign.
_NEEDS_CONTEXT = re.compile(r"[,'`]\s+[,'`]")


def _split(text: str) -> list[str]:
    """Split a text at white space, after all rules that look at single characters."""
    text = f" {text} "
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return [token for token in _DELIMITERS.split(text) if token]


@lru_cache(maxsize=1 << 17)
def _split_chunk(chunk: str) -> tuple[str, ...]:
    return (chunk,) if chunk.isalnum() else tuple(_split(chunk))


def _separate_full_stops(tokens: list[str], abbreviations: Mapping[str, bool]) -> list[str]:
    """Separate full stops that end sentences; drop the full stops of words such as ``U.S.``"""
    result = []
    for token, following in zip(tokens, [*tokens[1:], ""]):
        if len(token) < 2 or not token.endswith("."):
            result.append(token)
            continue
        word = token[:-1]
        only_before_number = abbreviations.get(word)
        if "." in word and _LETTER.search(word):
            result.append(token.replace(".", ""))
        elif (
            only_before_number is False
            or "a" <= following[:1] <= "z"
            or (only_before_number and "0" <= following[:1] <= "9")
        ):
            result.append(token)
        else:
            result += (word, ".")
    return result


def normalize(text: str, abbreviations: Mapping[str, bool]) -> list[str]:
    """Return the tokens of a text in lower case.

    ``abbreviations`` maps words that keep their full stop to True if they keep it only before a
    number.
    """
    if text.isascii() and text.isprintable() and not _NEEDS_CONTEXT.search(text):
        # the rules see at most the space next to a chunk, so chunks can be cached
        tokens = [token for chunk in text.split() for token in _split_chunk(chunk)]
        is_simple = ".." not in text and _ELLIPSIS_DOT not in text
    else:
        tokens, is_simple = _split(text), False
    if any(token.endswith(".") for token in tokens):
        tokens = _separate_full_stops(tokens, abbreviations)
    if is_simple:
        return [token.lower() for token in tokens]
    text = " ".join(tokens)
    text = _MARKED_DOTS.sub(lambda match: "." * (len(match[1]) // 3 + 1), text)
    text = _OTHER_SPACES.sub(" ", text).strip(CONTROLS).lower()
    return [token for token in _DELIMITERS.split(text) if token]
