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

# Marks, which the pattern sees as U+01C0, are letters of a plain word, but not of a compound.
_LETTER, _ALNUM = r"[^\W\d_\u01c0]", r"[^\W_\u01c0]"
_ANY_LETTER, _ANY_ALNUM, _ASCII = r"[^\W\d_]", r"[^\W_]", "[A-Za-z0-9]"
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
            rf"@[A-Za-z][A-Za-z0-9_]*|\#{_LETTER}\w*",
            r"[<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]](?![A-Za-z])",
            r"[-^x=~<>']_[-^x=~<>'](?!\w)|[\^x=~<>]\.[\^x=~<>](?!\w)",
            r"&(?:[A-Za-z]+|\#\d+);",
            r"(?P<number>(?:\(\d{2,3}\)[ ]?|(?:\+\+?)?(?:\d{2,4}[- ])?\d{2,4}[- ])"
            rf"\d{{3,4}}[- ]?\d{{3,5}}(?!{_ALNUM})"
            rf"|\d{{1,2}}[-/]\d{{1,2}}[-/]\d{{2,4}}(?!{_ALNUM})"
            rf"|\d{{1,4}}[ ]\d{{1,4}}/\d{{1,4}}"
            rf"|(?:\d{{1,4}}-)?\d{{1,4}}/\d{{1,4}}(?![\w/]|-{_ALNUM}))",
            r"[A-Z]+(?:(?:&amp;|[&+])[A-Z]+)+",
            r"[A-Za-z]\+\+|[A-Z]\#",
            # U.S.  p.m.  anti-U.S.
            rf"(?:{_ASCII}+-)*[A-Za-z]\.(?:[A-Za-z]\.)+(?!{_ALNUM})(?:-{_ASCII}+)*",
            rf"[A-Za-z]\.(?!{_ALNUM})(?!\s+(?:{_either(_SENTENCE_STARTERS)}(?!\w)|<[A-Za-z/]))(?:-{_ASCII}+)*",
            rf"(?i:{_either(_ABBREVIATIONS)})\.(?!{_ALNUM})(?:-{_ASCII}+)*",
            rf"{_either(_CAPITAL_ABBREVIATIONS)}\.(?!{_ALNUM})",
            rf"(?i:{_either(_NUMBERED)})\.(?=\s*\d)",
            # words with an apostrophe of their own
            rf"(?i:(?:ma{_APOSTROPHE}am|o{_APOSTROPHE}clock|[ce]'(?:mon|er|est)|ev'ry"
            rf"|nor{_APOSTROPHE}easter|li'l)(?:-{_ASCII}+)*|(?:dunkin|somethin|ol)"
            rf"{_APOSTROPHE}(?!{_ALNUM})"
            rf"|{_APOSTROPHE}(?:n{_APOSTROPHE}|(?:n|em|till?|cause|[2-9]0s)(?!{_ALNUM})|\d\d(?!\S)))",
            # contracted words: can not, gon na, got ta, wan na, gim me, lem me, 't is, more 'n
            r"(?i:can(?=not(?![\w-]))|(?:gon|wan)(?=na(?![\w-]))|got(?=ta(?![\w-]))|(?:gim|lem)(?=me(?![\w-]))"
            rf"|'t(?=(?:is|was)(?:n{_APOSTROPHE}t)?(?!{_LETTER}))"
            rf"|(?!y{_CONTRACTION})y{_APOSTROPHE}(?={_LETTER}))",
            rf"(?i:ph\.d\.?(?!{_ALNUM}))",
            rf"(?P<contraction>(?i:n[’'`]ts?)(?!{_ALNUM})|(?i:{_CONTRACTION}))",
            rf"(?i:{_ASCII}*[A-Za-z](?=n[’'`]ts?(?!{_ALNUM})))",
            rf"[dlDL]{_APOSTROPHE}(?={_LETTER}\u01c0)",
            # o'neil  d'artagnan; koala'eyed
            rf"(?!(?i:{_LETTER}{_CONTRACTION}))(?:[A-HJ-XZdlnos]{_APOSTROPHE}{_LETTER}{{2,}}"
            rf"(?:-(?:[dlnos]{_APOSTROPHE})?{_ALNUM}+)*"
            rf"|{_LETTER}+[aeiouyAEIOUY](?!(?i:{_CONTRACTION})){_APOSTROPHE}[aeiouA-Z]{_LETTER}*)",
            # a full stop before a comma belongs to the word: "etc.," but also "bat.,"
            rf"{_ANY_ALNUM}+(?:[-_/]{_ALNUM}+)*\.(?=[,;:])",
            rf"\d+(?:[.:,]\d+)+(?:-{_ASCII}+)+",
            r"[-+]?\d*(?:[.:,]\d+)+|[-+]\d+",
            rf"{_ANY_LETTER}{_ANY_ALNUM}*(?:[.!?]{_ANY_LETTER}{_ANY_ALNUM}*)+",
            rf"{_ASCII}+(?:-{_ASCII}+)*(?:/{_ASCII}+(?:-{_ASCII}+)*){{1,2}}",
            rf"{_ALNUM}+(?:[-_]{_ALNUM}+)+(?:(?<=-[dlnos]){_APOSTROPHE}{_LETTER}{{2,}})?",
            rf"{_ANY_LETTER}{_ANY_ALNUM}*|{_ALNUM}+",
            r"\.(?=\.\d)|\.\.+|-{2,}|\*+|_+|[?!]+|''|``",
            r"\S",
        ]
    )
)

# PTBTokenizer's own classes of characters, found by asking it for every character. Combining marks
# belong to letters; superscripts, fractions and circled digits are tokens; Roman and Ethiopic
# numerals, emoji, and other signs and marks that PTBTokenizer does not know are removed.
_MARKS = re.compile(
    r"(?!\w)[\u02c2-\u0375\u0384-\u0385\u03f6\u0483-\u0487\u055a-\u055f\u058a\u0591-\u05bd\u05bf\u05c1"
    r"\u05c2\u05c4\u05c5\u05c7\u0615-\u061a\u064b-\u065e\u0670\u06d6-\u06ef\u06fa-\u06fe\u070f-\u07f3"
    r"\u0900-\u0903\u093c-\u094e\u0951-\u0955\u0962\u0963\u0981-\u09cd\u09d7\u09e2\u09e3\u0a01-\u0a4d"
    r"\u0a81-\u0acd\u0b82-\u0bcd\u0c01-\u0c03\u0c3e-\u0c56\u0d3e-\u0d48\u0e31-\u0e3a\u0e47-\u0e4e"
    r"\u0eb1-\u0ecd\u1885\u1886\u2010\u2011]"
)
_SINGLE = re.compile(
    r"[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2089\u2153-\u215e\u2460-\u2793]"
)
_DROPPED = re.compile(
    r"[\u09f4-\u09f9\u0bf0-\u0bf2\u0de6-\u0def\u0f2a-\u0f33\u1369-\u137c\u2150-\u2152\u215f-\u2189"
    r"\u3007\u3021-\u3029\u3038-\u303a\u3192-\u3195\u3220-\u32bf\ufe33-\uff00\U00010000-\U0010ffff]"
    r"|(?![\u0080\u00a1-\u00f7\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6\u05f3-\u0603\u0606-\u060c\u0614"
    r"\u061b\u061e\u061f\u066a\u066d\u06d4\u0700-\u070d\u07f6-\u07f8\u0964\u0965\u0e3f\u0e4f\u1fbd\u2013"
    r"\u2014\u2016-\u2023\u2026\u2030-\u203b\u203e-\u2042\u2044\u207a-\u20a0\u20a4\u20ac\u2100-\u214f"
    r"\u2190-\u2bff\u3001\u3002\u3012\u30fb\uff01-\uffe1\uffe5\uffe6])(?![\0-\x7f])\W"
)

# Longer words are split, because the time of tokenizing is quadratic in the length of a word.
_TOO_LONG = re.compile(r"(\S{1000})(?=\S)")

# Texts whose tokens may contain spaces, or whose full stops depend on the next word, are tokenized
# whole; others in chunks, which are cached.
_NEEDS_CONTEXT = re.compile(r"\d\s+\d|<|(?:^|\W)[^\W\d_]\.\s|\)\s\d|\.\s+\d")


def _tokens(text: str) -> list[str]:
    tokens = []
    # the pattern sees a letter in place of a mark, and a sign in place of a circled digit
    shadow = text if text.isascii() else _SINGLE.sub("\u00a7", _MARKS.sub("\u01c0", text))
    for match in _TOKEN.finditer(shadow):
        token = text[match.start() : match.end()]
        token = _REWRITTEN.get(token, token)
        if match.lastgroup == "contraction":
            token = token.replace("’", "'")
        elif match.lastgroup in ("tag", "number"):
            token = token.replace(" ", "\u00a0")
        if token[:2] == "--" or token[:2] == "..":
            continue
        if token not in PUNCTUATION:
            tokens.append(token.translate(_BRACKETS).lower())
    return tokens


@lru_cache(maxsize=1 << 17)
def _tokenize_chunk(chunk: str) -> tuple[str, ...]:
    # the shortest words that are split ("gonna", "gimme") have five letters
    if chunk.isascii() and chunk.isalpha() and len(chunk) < 5:
        return (chunk.lower(),)
    return tuple(_tokens(chunk))


def ptb_tokenize(text: str) -> list[str]:
    """Return the tokens of a text in lower case, without punctuation, as coco-caption does."""
    text = text.replace("\u00ad", "").replace("&nbsp;", " ")
    if not text.isascii():
        text = _DROPPED.sub(lambda match: match[0] if _MARKS.match(match[0]) else " ", text)
    text = _TOO_LONG.sub(r"\1 ", text)
    if _NEEDS_CONTEXT.search(text):
        return _tokens(text)
    return [token for chunk in text.split() for token in _tokenize_chunk(chunk)]
