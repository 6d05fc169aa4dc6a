# ruff: noqa: RUF001 (quotation marks and dashes are what this file is about)
"""Words of METEOR 1.5: normalisation and tokens of a text, which ``-norm`` turns on, and stems.

Normalisation separates punctuation from words, replaces quotation marks and dashes by their ASCII
forms, splits words at hyphens and apostrophes, and lower-cases all words. The stemmer is Porter2
(Snowball, https://snowballstem.org/algorithms/english/stemmer.html) in the version that METEOR
contains; later versions have more exceptions. Its words must be in lower case: capital letters
count as consonants, as in METEOR's jar.
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


# applied in this order
_RULES: tuple[_Rule, ...] = (
    (re.compile(rf"([^0-9{_LETTERS}{_SPACE}.'`,\-‘’])"), r" \1 "),
    (re.compile(r"\.\.+"), lambda dots: f" {'DOT' * (len(dots[0]) - 1)}{_ELLIPSIS_DOT} "),
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
    """Apply all rules about single characters, then split the text at white space."""
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


_VOWELS = frozenset("aeiouy")
# Y marks a y that is a consonant
_NOT_SHORT = _VOWELS | frozenset("wxY")
_LI_ENDINGS = frozenset("cdeghkmnrt")
_DOUBLES = frozenset(("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt"))

# words whose stem the rules would miss, and words that have no suffix
_STEMS = {
    "skis": "ski", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "idly": "idl",
    "gently": "gentl", "ugly": "ugli", "early": "earli", "only": "onli", "singly": "singl",
    **{word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}  # fmt: skip
# words that keep their suffix once a final s is removed
_KEPT = frozenset(
    ("inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed")
)

# without lookbehind: in a run of y, every second one is a consonant
_CONSONANT_Y = re.compile(r"(^|[aeiouy])y")
# the region after the first consonant that follows a vowel
_REGION = re.compile(r"[^aeiouy]*[aeiouy]+[^aeiouy]")
_PREFIXES = ("gener", "commun", "arsen")

# Suffix -> replacement, and for step 4 the suffixes that are removed. In each step, the longest
# suffix of a word decides, even if the suffix may not be replaced in this word.
_STEP_2 = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent", "izer": "ize",
    "ization": "ize", "ational": "ate", "ation": "ate", "ator": "ate", "alism": "al", "aliti": "al",
    "alli": "al", "fulness": "ful", "ousli": "ous", "ousness": "ous", "iveness": "ive",
    "iviti": "ive", "biliti": "ble", "bli": "ble", "ogi": "og", "fulli": "ful", "lessli": "less",
    "li": "",
}  # fmt: skip
_STEP_3 = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic",
    "ful": "", "ness": "", "ative": "",
}  # fmt: skip
_STEP_4 = frozenset(
    (
        *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ism"),
        *("ate", "iti", "ous", "ive", "ize", "ion"),
    )
)


def _regions(word: str) -> tuple[int, int]:
    """Return the starts of the stemmer's regions R1 and R2, in which suffixes are removed."""
    prefix = next((p for p in _PREFIXES if word.startswith(p)), None)
    if prefix is None:
        match = _REGION.match(word)
        first = match.end() if match else len(word)
    else:
        first = len(prefix)
    match = _REGION.match(word, first)
    return first, match.end() if match else len(word)


def _longest_suffix(word: str, suffixes: "dict[str, str] | frozenset[str]", longest: int) -> str:
    for length in range(min(longest, len(word)), 0, -1):
        if word[-length:] in suffixes:
            return word[-length:]
    return ""


def _ends_in_short_syllable(word: str) -> bool:
    if len(word) > 2:
        before, vowel, last = word[-3], word[-2], word[-1]
        return before not in _VOWELS and vowel in _VOWELS and last not in _NOT_SHORT
    return len(word) == 2 and word[0] in _VOWELS and word[1] not in _VOWELS


def _remove_plural(word: str) -> str:
    for ending in ("'s'", "'s", "'"):
        if word.endswith(ending):
            word = word[: -len(ending)]
            break
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    # "gas" and "this" keep their s: a vowel must come earlier than the letter before the s
    is_plural = word.endswith("s") and not word.endswith(("us", "ss"))
    return word[:-1] if is_plural and any(letter in _VOWELS for letter in word[:-2]) else word


def _remove_ed_and_ing(word: str, r1: int) -> str:
    for ending in ("eedly", "ingly", "edly", "eed", "ing", "ed"):
        if word.endswith(ending):
            break
    else:
        return word
    stem = word[: -len(ending)]
    if ending in ("eed", "eedly"):
        return f"{stem}ee" if len(stem) >= r1 else word
    if not any(letter in _VOWELS for letter in stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return f"{stem}e"
    if stem[-2:] in _DOUBLES:
        return stem[:-1]
    return f"{stem}e" if len(stem) == r1 and _ends_in_short_syllable(stem) else stem


def _replace_suffixes(word: str, r1: int, r2: int) -> str:
    suffix = _longest_suffix(word, _STEP_2, 7)
    stem = word[: len(word) - len(suffix)]
    if suffix and len(stem) >= r1:
        if suffix == "li":
            allowed = stem[-1:] in _LI_ENDINGS
        else:
            allowed = suffix != "ogi" or stem.endswith("l")
        if allowed:
            word = stem + _STEP_2[suffix]
    suffix = _longest_suffix(word, _STEP_3, 7)
    stem = word[: len(word) - len(suffix)]
    if suffix and len(stem) >= (r2 if suffix == "ative" else r1):
        word = stem + _STEP_3[suffix]
    suffix = _longest_suffix(word, _STEP_4, 5)
    stem = word[: len(word) - len(suffix)]
    if suffix and len(stem) >= r2 and (suffix != "ion" or stem.endswith(("s", "t"))):
        word = stem
    return word


def stem(word: str) -> str:
    """Return the stem of a word, such as ``danc`` for ``dances``."""
    if word in _STEMS:
        return _STEMS[word]
    if len(word) < 3:
        return word
    unmarked = word.removeprefix("'")
    word = _CONSONANT_Y.sub(r"\1Y", unmarked)
    is_marked = word != unmarked
    r1, r2 = _regions(word)
    word = _remove_plural(word)
    if word not in _KEPT:
        word = _remove_ed_and_ing(word, r1)
        if word[-1:] in ("y", "Y") and len(word) > 2 and word[-2] not in _VOWELS:
            word = f"{word[:-1]}i"
        word = _replace_suffixes(word, r1, r2)
        if word.endswith("e"):
            rest = word[:-1]
            if len(rest) >= r2 or (len(rest) >= r1 and not _ends_in_short_syllable(rest)):
                word = rest
        elif word.endswith("ll") and len(word) > r2:
            word = word[:-1]
    # a capital Y of the text stays, unless another y was marked
    return word.replace("Y", "y") if is_marked else word
