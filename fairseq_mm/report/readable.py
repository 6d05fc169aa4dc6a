"""Names and rounds scores for readers: BLEU-4 18.2 in place of bleu4 0.18225343."""

import math
import re
from typing import NamedTuple, Optional

from fairseq_mm.report.html_page import plain_number

_LABELS = {
    "cider": "CIDEr-D",
    "rouge_l": "ROUGE-L",
    "content_f1": "Content F1",
    "meteor": "METEOR",
    "meteor_vist": "METEOR (VIST)",
    "meteor_vist_rank": "METEOR (task rank)",
    "self_bleu": "self-BLEU",
    "novelty": "new texts",
    "vocabulary": "different words",
    "length": "length",
    "perplexity": "perplexity",
    "ppl": "perplexity",
    "lr": "learning rate",
    "perplexity_sentence": "perplexity of a text",
    "copied_words": "longest copied run",
}
_NUMBERED = {
    "bleu": "BLEU",
    "rouge": "ROUGE",
    "distinct": "distinct",
    "novel": "new n-grams, n =",
    "seq_rep": "seq-rep",
}
# scores that papers print multiplied by 100
_POINTS = re.compile(r"bleu\d|meteor\w*|rouge\w*|cider|content_f1|self_bleu")
_SHARES = re.compile(r"novelty|distinct\d|novel\d|seq_rep\d?|repeated_\w+|copied_share")
_WORDS = frozenset(["length", "words_per_sentence", "copied_words"])
# order of importance: the first four that there are stand at the head of the page
MAIN = ("cider", "bleu4", "meteor", "meteor_vist", "rouge_l", "content_f1", "rouge1", "rouge2")


class Readable(NamedTuple):
    """Rounded score with its unit, as pages show it.

    Attributes:
        text: Rounded number, without unit.
        unit: ``points`` (the score multiplied by 100), ``%``, ``words``, or empty.
        exact: The score with all its digits.
    """

    text: str
    unit: str
    exact: str


def label(name: str) -> str:
    """Return the label of a score, such as ``BLEU-4`` for ``bleu4``."""
    match = re.fullmatch(r"(bleu|rouge|distinct|novel|seq_rep)(\d)", name)
    if match:
        kind = _NUMBERED[match[1]]
        return f"{kind} {match[2]}" if kind.endswith("=") else f"{kind}-{match[2]}"
    return _LABELS.get(name, name.replace("_", " "))


def readable(name: str, value: Optional[float], *, is_difference: bool = False) -> Readable:
    """Round a score.

    Scores between 0 and 1 become points or per cent with one decimal. Counts become integers.
    Numbers of words get one decimal, other scores three significant digits. None becomes a dash.

    Args:
        name: Name of the score, such as ``bleu4``.
        value: The score; None if it is missing.
        is_difference: True to write the sign of a positive number as well.
    """
    if value is None or not math.isfinite(value):
        return Readable("-", "", "" if value is None else str(value))
    # an exponent, such as 4e-05, is for programs
    exact = f"{value:.10f}".rstrip("0").rstrip(".")
    number, unit, decimals = value, "", 1
    if _POINTS.fullmatch(name):
        number, unit = 100 * value, "points"
    elif _SHARES.fullmatch(name):
        number, unit = 100 * value, "%"
    elif name in _WORDS:
        unit = "words"
    elif name == "vocabulary":
        decimals, unit = 0, "words"
    else:
        text = plain_number(abs(value))
        return Readable(f"{_sign(value, is_difference)}{text}", "", exact)
    text = f"{abs(number):,.{decimals}f}"
    # nothing is left of the sign of a number that is rounded to 0
    is_zero = not text.strip("0.")
    return Readable(text if is_zero else f"{_sign(number, is_difference)}{text}", unit, exact)


def _sign(number: float, is_difference: bool) -> str:
    # U+2212: a hyphen is shorter than a plus
    return "\u2212" if number < 0 else "+" if is_difference and number > 0 else ""


def main_names(names: list[str]) -> list[str]:
    """Return the most important of the scores ``names``: up to four of :data:`MAIN`.

    If ``names`` has none of :data:`MAIN`, the first four names are returned.
    """
    return ([name for name in MAIN if name in names] or names)[:4]
