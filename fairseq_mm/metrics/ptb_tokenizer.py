# ruff: noqa: RUF001 (quotation marks and dashes are what this file is about)
"""Splits captions into Penn Treebank tokens without Java, equal to the tokens of coco-caption.

coco-caption pipes captions through Stanford's ``PTBTokenizer -preserveLines -lowerCase`` (CoreNLP
3.4.1) and drops punctuation tokens. The rules of this module were written from the Penn Treebank
conventions and from the output of ``PTBTokenizer``; ``tests/metrics/test_ptb_tokenizer.py``
compares both.

Differs from the original: each text is tokenized independently. In the original, a caption that
ends in a single letter ("vitamin C.") keeps its full stop depending on the first word of the *next*
caption in the file. Words of more than 1,000 characters are split after each 1,000, and HTML
comments of more than 1,000 characters are not treated as tags. Real captions have neither.
"""

import re
from functools import lru_cache

# Tokens that coco-caption drops. It also lists "-LRB-" and other brackets, but never drops them:
# at that point they are in lower case.
PUNCTUATION = frozenset(("''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"))

_BRACKETS = str.maketrans(
    {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
)
_REWRITTEN = {
    **dict.fromkeys(('"', "“", "”", "«", "»", "&quot;"), "''"),
    **dict.fromkeys(("‘", "’", "‛", "‹", "›", "&apos;", "`"), "'"),
    **dict.fromkeys(("–", "—", "\x96", "\x97"), "--"),
    "…": "...", "&amp;": "&", "&lt;": "<", "&gt;": ">",
    "£": "#", "€": "$", "¢": "cents",
    "½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3",
}  # fmt: skip

# Words that keep their full stop: first in upper or lower case, then only with a capital.
_ABBREVIATIONS = """
    adj adm adv al ala alex apr ariz assn assoc asst atty aug ave bhd bldg blvd brig bros calif capt
    cf cie cmdr co col colo comdr conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc
    ext feb fla fri ft ga gen gov govs hon inc ind insp intl invt jan jos jr jul jun kan kans ky
    lieut lt ltd maj mar md messrs mfg mich minn mlle mme mo mon mont mr mrs ms msgr mt mtg natl neb
    nev nov oct okla penn pfc ph plc pres prof pte pty pvt rd rep reps rev rt sen sens sep sept seq
    sfc sgt spc sq sr st ste supt sys tel tenn thu thurs tue tues univ va vs vt wed wis wisc wm wyo
"""
_CAPITAL_ABBREVIATIONS = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash"
# Words that keep their full stop before a number.
_NUMBERED = "art fig figs no nos op pp"
# A single letter loses its full stop before a word that begins sentences.
_SENTENCE_STARTERS = r"""
    A About According Additionally After An As At But Earlier He Her Here However If In It Last Many
    More Mr\. Ms\. Now Once One Other Our She Since So Some Such That The Their Then There These
    They This We When While What Yet You
"""

_LETTER = r"[^\W\d_]"
_ALNUM = r"[^\W_\u00b2\u00b3\u00b9\u00bc-\u00be\u2150-\u215e]"  # no superscripts, no fractions
_APOSTROPHE = r"['’]"
_CONTRACTION = rf"{_APOSTROPHE}(?:[msd]|re|ve|ll)(?!{_LETTER})"


def _either(words: str) -> str:
    # longest first: an alternative that is the beginning of another one would hide it
    return "(?:" + "|".join(sorted(words.split(), key=len, reverse=True)) + ")"


# The first alternative that matches wins, so alternatives for longer tokens come first.
_TOKEN = re.compile(
    "|".join(
        [
            r"[A-Z]+\$",
            r"-[LRlr][RCSrcs][Bb]-",
            r"(?P<tag><(?:!--.{0,1000}?--|[!?/]?[A-Za-z][^<>]*)>)",
            r"https?://[^\s\"<>|(){}]*[^\s\"<>|.!?(){},;:-]",
            r"(?:www\.(?:[^\s\"<>|.!?(){},]+\.)+[a-zA-Z]{2,4}"
            r"|(?:[^\s\"`'<>|.!?(){},_$/-]+\.)+(?:com|net|org|edu)(?![^\W_]))"
            r"(?:/[^\s\"<>|()]+[^\s\"<>|.!?(){},-])?",
            r"[a-zA-Z0-9][^\s\"<>|(){}@]*@(?:[^\s\"<>|(){}.,@]+\.)+[a-zA-Z]{2,}",
            rf"[@#]{_LETTER}\w*",
            r"[<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]](?![A-Za-z])",
            r"[-^x=~<>']_[-^x=~<>'](?!\w)|[\^x=~<>]\.[\^x=~<>](?!\w)",
            r"&(?:[A-Za-z]+|\#\d+);",
            r"(?P<number>(?:\(\d{2,3}\)[ ]?|(?:\+\+?)?(?:\d{2,4}[- ])?\d{2,4}[- ])"
            rf"\d{{3,4}}[- ]?\d{{3,5}}(?!{_ALNUM})"
            rf"|\d{{1,2}}[-/]\d{{1,2}}[-/]\d{{2,4}}(?!{_ALNUM})"
            rf"|(?:\d{{1,4}}[- ])?\d{{1,4}}/\d{{1,4}}(?![\w/]|-{_ALNUM}))",
            r"[A-Z]+(?:(?:&amp;|[&+])[A-Z]+)+",
            r"[A-Za-z]\+\+|[A-Z]\#",
            # U.S.  p.m.  anti-U.S.
            rf"(?:{_ALNUM}+-)*{_LETTER}\.(?:{_LETTER}\.)+(?!{_ALNUM})(?:-{_ALNUM}+)*",
            rf"{_LETTER}\.(?!{_ALNUM})(?!\s+(?:{_either(_SENTENCE_STARTERS)}(?!\w)|<[A-Za-z/]))(?:-{_ALNUM}+)*",
            rf"(?i:{_either(_ABBREVIATIONS)})\.(?!{_ALNUM})(?:-{_ALNUM}+)*",
            rf"{_either(_CAPITAL_ABBREVIATIONS)}\.(?!{_ALNUM})",
            rf"(?i:{_either(_NUMBERED)})\.(?=\s*\d)",
            # words with an apostrophe of their own
            rf"(?i:(?:ma{_APOSTROPHE}am|o{_APOSTROPHE}clock|[ce]{_APOSTROPHE}(?:mon|er|est)|ev{_APOSTROPHE}ry"
            rf"|nor{_APOSTROPHE}easter|li{_APOSTROPHE}l)(?:-{_ALNUM}+)*|(?:dunkin|somethin|ol)"
            rf"{_APOSTROPHE}(?!{_ALNUM})"
            rf"|{_APOSTROPHE}(?:n{_APOSTROPHE}|(?:n|em|till?|cause|[2-9]0s)(?!{_ALNUM})|\d\d(?!\S)))",
            # contracted words: can not, gon na, got ta, wan na, gim me, lem me, 't is, more 'n
            r"(?i:can(?=not(?![\w-]))|(?:gon|wan)(?=na(?![\w-]))|got(?=ta(?![\w-]))|(?:gim|lem)(?=me(?![\w-]))"
            rf"|{_APOSTROPHE}t(?=(?:is|was)(?:n{_APOSTROPHE}t)?(?!{_LETTER}))"
            rf"|(?!y{_CONTRACTION})y{_APOSTROPHE}(?={_LETTER}))",
            rf"(?i:ph\.d\.?(?!{_ALNUM}))",
            rf"(?i:n[’'`]ts?)(?!{_ALNUM})",
            rf"(?i:{_ALNUM}*{_LETTER}(?=n[’'`]ts?(?!{_ALNUM})))",
            rf"(?i:{_CONTRACTION})",
            # o'neil  d'artagnan; koala'eyed
            rf"(?!(?i:{_LETTER}{_CONTRACTION}))(?:[A-HJ-XZdlnos]{_APOSTROPHE}{_LETTER}{{2,}}"
            rf"|{_LETTER}+[aeiouyAEIOUY](?!(?i:{_CONTRACTION})){_APOSTROPHE}[aeiouA-Z]{_LETTER}*)",
            # a full stop before a comma belongs to the word: "etc.," but also "bat.,"
            rf"{_ALNUM}+(?:[-_/]{_ALNUM}+)*\.(?=[,;:])",
            rf"\d+(?:[.:,]\d+)+(?:-{_ALNUM}+)+",
            r"[-+]?\d*(?:[.:,]\d+)+|[-+]\d+",
            rf"{_LETTER}{_ALNUM}*(?:\.{_ALNUM}+)+",
            rf"{_ALNUM}+(?:-{_ALNUM}+)*(?:/{_ALNUM}+(?:-{_ALNUM}+)*){{1,2}}",
            rf"{_ALNUM}+(?:[-_]{_ALNUM}+)*",
            r"\.(?=\.\d)|\.\.+|-{2,}|\*+|_+|[?!]+|''|``",
            r"\S",
        ]
    )
)

# Emoji and invisible characters, which PTBTokenizer removes.
_DROPPED = re.compile(
    "[\u2000-\u200f\u2025\u2028-\u202f\u203d-\u206f\ue000-\uf8ff\ufe00-\ufe0f\U00010000-\U0010ffff]"
)

# Longer words are split, because the time of tokenizing is quadratic in the length of a word.
_TOO_LONG = re.compile(r"(\S{1000})(?=\S)")

# Texts whose tokens may contain spaces, or whose full stops depend on the next word, are tokenized
# whole; others in chunks, which are cached.
_NEEDS_CONTEXT = re.compile(r"\d\s+\d|<|(?:^|\W)[^\W\d_]\.\s|\)\s\d|\.\s+\d")


def _tokens(text: str) -> list[str]:
    tokens = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        token = _REWRITTEN.get(token, token)
        if match.lastgroup in ("tag", "number"):
            token = token.replace(" ", "\u00a0")
        if token[:2] == "--" or token[:2] == "..":
            continue
        if token not in PUNCTUATION:
            tokens.append(token.translate(_BRACKETS).lower().replace("’", "'"))
    return tokens


@lru_cache(maxsize=1 << 17)
def _tokenize_chunk(chunk: str) -> tuple[str, ...]:
    # the shortest words that are split ("gonna", "gimme") have five letters
    if chunk.isascii() and chunk.isalpha() and len(chunk) < 5:
        return (chunk.lower(),)
    return tuple(_tokens(chunk))


def ptb_tokenize(text: str) -> list[str]:
    """Return the tokens of a text in lower case, without punctuation, as coco-caption does."""
    text = _DROPPED.sub(" ", text.replace("\u00ad", "").replace("&nbsp;", " "))
    text = _TOO_LONG.sub(r"\1 ", text)
    if _NEEDS_CONTEXT.search(text):
        return _tokens(text)
    return [token for chunk in text.split() for token in _tokenize_chunk(chunk)]
