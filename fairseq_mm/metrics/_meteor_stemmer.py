"""Porter2 stemmer of English (Snowball) in the version that METEOR 1.5 contains.

The algorithm is described at https://snowballstem.org/algorithms/english/stemmer.html; later
versions of Snowball have more exceptions. Words must be in lower case: capital letters count as
consonants, as in METEOR's jar.
"""

import re

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
    """Return the starts of the regions R1 and R2, in which suffixes are removed."""
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
