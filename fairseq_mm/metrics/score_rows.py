"""Lines of a table of scores, their signatures, and the tokenized texts to score."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from fairseq_mm import __version__
from fairseq_mm.metrics.copying import CopiedRun

Tokens = list[str]

# tokenization -> further properties in its signature
_TOKEN_PROPERTIES = {
    "ptb": {"case": "lc", "punct": "no"},
    "m_rnn": {"case": "lc", "punct": "yes"},
    "none": {"case": "mixed", "punct": "yes"},
    "wp": {"case": "mixed", "punct": "yes"},
}
# shorter than most captions, so that few are left out; stories need a larger number
FIRST_WORDS = 8
_COUNTS = ("vocabulary",)
_TWO_DECIMALS = frozenset(
    ["perplexity", "perplexity_sentence", "length", "words_per_sentence", "copied_words"]
)


def count_label(references: Sequence[Sequence[object]]) -> str:
    """Return the number of references per text, such as ``5``, or ``3-5`` if it varies."""
    counts = {len(item) for item in references} or {0}
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"


def signature(metric: str, **properties: object) -> str:
    """Return a string that says how a score was computed, like sacreBLEU's, such as
    ``bleu|refs:5|tok:ptb|case:lc|version:fairseq_mm-0.3.0``. Properties that are None are left out.
    """
    parts = [f"{name}:{value}" for name, value in properties.items() if value is not None]
    # with the version, since a tokenizer or metric may change between versions
    return "|".join([metric, *parts, f"version:fairseq_mm-{__version__}"])


def format_figure(name: str, value: Optional[float], *, decimals: int = 5) -> str:
    """Format the score ``name`` for a table: counts as integers, None as ``-``, perplexities and
    numbers of words with two decimals, all other scores with ``decimals``."""
    if value is None:
        return "-"
    if name in _COUNTS:
        return f"{value:.0f}"
    return f"{value:.2f}" if name in _TWO_DECIMALS else f"{value:.{decimals}f}"


@dataclass
class Row:
    """Line of the score table: one score, or the reason why it is missing.

    An item is one scored text with its references, such as the caption of an image."""

    name: str  # name of the score, such as ``bleu4``
    value: Optional[float]  # the score; None if it is missing
    signature: str  # properties that determine the score, see :func:`signature`
    scored: int  # number of scored items
    note: str = ""  # reason why the score is missing, or a remark
    expected: Optional[int] = None  # number of items that should have been scored, if it is known
    # ``[items, statistics]`` numbers whose sums over the items determine the score; None if the
    # score is not computed from such sums
    sums: Optional[np.ndarray] = field(default=None, repr=False)
    # function that computes the score from ``sums.sum(axis=0)``
    statistic: Any = field(default=None, repr=False)
    # score of each item, None for an item without one; None if the metric does not score single
    # items
    per_item: Optional[Sequence[Optional[float]]] = field(default=None, repr=False)


@dataclass
class TokenizedItems:
    """Tokenized hypothesis and references of each item (image, video or story)."""

    hypotheses: Sequence[Tokens]  # tokens of each item's hypothesis
    references: Sequence[Sequence[Tokens]]  # tokens of each item's references
    # name of the tokenizer, for signatures: ``ptb`` (coco-caption), ``m_rnn`` (Mao et al. 2015),
    # ``wp`` (WritingPrompts) or ``none`` (split at white space)
    tokenization: str
    training_texts: Optional[Sequence[Tokens]] = None  # tokenized training texts
    # longest run of words that each hypothesis shares with the training text
    copied_runs: Optional[Sequence[CopiedRun]] = None
    training_words: Optional[int] = None  # number of words in that training text
    texts: Sequence[str] = ()  # hypotheses without tokenization
    reference_texts: Sequence[Sequence[str]] = ()  # references without tokenization
    # noun for signatures if items share their references, such as ``album``
    references_of: Optional[str] = None
    # tokens of each sentence of each hypothesis; None without separators of sentences
    sentences: Optional[Sequence[Sequence[Tokens]]] = None
    # the same of stories that people wrote
    written_sentences: Optional[Sequence[Sequence[Tokens]]] = None
    # tokens of each item's source (a video's transcript), None for an item without one
    sources: Optional[Sequence[Optional[Tokens]]] = None
    # True if hypotheses were allowed to contain ``<unk>``; None if unknown
    allows_unk: Optional[bool] = None
    # number of words of each text that the metric ``first_distinct`` reads
    first_words: int = FIRST_WORDS

    def sign(
        self,
        metric: str,
        *,
        refs: bool = True,
        tokenization: Optional[str] = None,
        **properties: object,
    ) -> str:
        # the order of properties is fixed, so that equal scores have equal strings
        tokenization = tokenization or self.tokenization
        return signature(
            metric,
            refs=count_label(self.references) if refs else None,
            refs_of=self.references_of if refs else None,
            tok=tokenization,
            **_TOKEN_PROPERTIES[tokenization],
            **properties,
            # a model that must not write <unk> has to guess, which changes every score
            unk=None if self.allows_unk is None else ("yes" if self.allows_unk else "no"),
        )


def mean_from_sums(sums: np.ndarray) -> float:
    """Divide ``sums[0]`` by ``sums[1]``; the result is 0 if ``sums[1]`` is 0."""
    # a resampled corpus may consist of items without a value
    return float(sums[0] / sums[1]) if sums[1] else 0.0


def ratio_row(
    name: str,
    sums: np.ndarray,
    sign: str,
    note: str = "",
    *,
    scored: Optional[int] = None,
    per_item: Optional[Sequence[Optional[float]]] = None,
) -> Row:
    """Build the table line of a score that is the ratio of two sums over the texts.

    Args:
        name: Name of the score.
        sums: ``[texts, 2]`` numerator and denominator of each text.
        sign: Signature of the score.
        note: Remark in the line.
        scored: Number of texts that have the score; None for all.
        per_item: Scores of the texts; by default their ratios, None if the denominator is 0.
    """
    if per_item is None:
        per_item = [None if total == 0 else part / total for part, total in sums.tolist()]
    return Row(
        name,
        mean_from_sums(sums.sum(0)),
        sign,
        len(sums) if scored is None else scored,
        note,
        sums=sums,
        statistic=mean_from_sums,
        per_item=per_item,
    )


def mean_row(name: str, scores: Sequence[Optional[float]], sign: str, note: str = "") -> Row:
    """Build the table line of a score that is the mean of ``scores``, one per text; texts whose
    score is None are left out."""
    # as a ratio of sums, so that the bootstrap resamples means like all other scores; texts without
    # a score count 0 in both sums, since the comparison of two systems needs equal items
    sums = np.array([[score or 0.0, score is not None] for score in scores], dtype=float)
    scored = int(sums[:, 1].sum())
    if not scored:
        return Row(name, None, sign, 0, note)
    return ratio_row(name, sums, sign, note, scored=scored, per_item=scores)
