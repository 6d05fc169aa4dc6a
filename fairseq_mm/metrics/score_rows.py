"""Rows of a table of scores, and the tokenised items that they are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import Statistic
from fairseq_mm.metrics.copying import CopiedRun
from fairseq_mm.metrics.signature import count_label, signature

Tokens = list[str]

# tokenisation -> what else a signature says of it
_TOKEN_PROPERTIES = {
    "ptb": {"case": "lc", "punct": "no"},
    "m_rnn": {"case": "lc", "punct": "yes"},
    "none": {"case": "mixed", "punct": "yes"},
    "wp": {"case": "mixed", "punct": "yes"},
}


_COUNTS = ("vocabulary",)
_TWO_DECIMALS = frozenset(
    ["perplexity", "perplexity_sentence", "length", "words_per_sentence", "copied_words"]
)


def format_figure(name: str, value: Optional[float], *, decimals: int = 5) -> str:
    """Return a figure as people read it: counts as integers, shares with some decimals.

    Args:
        name: Name of the figure, such as ``bleu4``.
        value: The figure; None is shown as ``-``.
        decimals: Decimals of shares and scores.
    """
    if value is None:
        return "-"
    if name in _COUNTS:
        return f"{value:.0f}"
    return f"{value:.2f}" if name in _TWO_DECIMALS else f"{value:.{decimals}f}"


@dataclass
class Row:
    """One figure, or the reason why there is none.

    Args:
        name: such as ``bleu4``.
        value: the figure.
        signature: what it was made with.
        scored: number of items that it was made of.
        note: reason or remark.
        expected: number of items that there should be, where it is known.
        sums: ``[items, statistics]`` from which ``statistic`` makes the figure; None where it
            cannot be made from a part of the items.
        per_item: the items' own figures, where the metric has them.
    """

    name: str
    value: Optional[float]
    signature: str
    scored: int
    note: str = ""
    expected: Optional[int] = None
    sums: Optional[np.ndarray] = field(default=None, repr=False)
    statistic: Optional[Statistic] = field(default=None, repr=False)
    per_item: Optional[Sequence[Optional[float]]] = field(default=None, repr=False)


@dataclass
class TokenizedItems:
    """Hypothesis and references of each item, tokenised; what the metrics get.

    Args:
        hypotheses: one token list an item.
        references: for each item its references' token lists.
        tokenization: name of the tokenisation (``ptb``, ``m_rnn``, ``wp`` or ``none``), for
            signatures.
        training_texts: tokenised training texts, for novelty.
        meteor_task: see :func:`fairseq_mm.metrics.meteor.meteor`.
        meteor_normalize: the jar's ``-norm``.
        copied_runs: for each hypothesis what it copies from the training text, for copying.
        training_words: of the text that was searched for them.
        texts: hypotheses as they are, for the protocol of VIST.
        reference_texts: references as they are, for the same.
        references_of: what a reference belongs to, where it is not the item itself.
        sentences: for each hypothesis the tokens of its sentences; None where nothing says where
            one ends.
        written_sentences: the same of stories that people wrote, to compare with.
        sources: tokens of each item's source (a video's transcript), None for items without one;
            None where there are no sources.
        allows_unk: whether the hypotheses may have had ``<unk>``; None where it is not known.
    """

    hypotheses: Sequence[Tokens]
    references: Sequence[Sequence[Tokens]]
    tokenization: str
    training_texts: Optional[Sequence[Tokens]] = None
    meteor_task: str = "rank"
    meteor_normalize: bool = True
    copied_runs: Optional[Sequence[CopiedRun]] = None
    training_words: Optional[int] = None
    texts: Sequence[str] = ()
    reference_texts: Sequence[Sequence[str]] = ()
    references_of: Optional[str] = None
    sentences: Optional[Sequence[Sequence[Tokens]]] = None
    written_sentences: Optional[Sequence[Sequence[Tokens]]] = None
    sources: Optional[Sequence[Optional[Tokens]]] = None
    allows_unk: Optional[bool] = None

    def sign(
        self,
        metric: str,
        *,
        refs: bool = True,
        tokenization: Optional[str] = None,
        **properties: object,
    ) -> str:
        tokenization = tokenization or self.tokenization
        return signature(
            metric,
            refs=count_label(self.references) if refs else None,
            refs_of=self.references_of if refs else None,
            tok=tokenization,
            **_TOKEN_PROPERTIES[tokenization],
            **properties,
            unk=None if self.allows_unk is None else ("yes" if self.allows_unk else "no"),
        )


def mean_from_sums(sums: np.ndarray) -> float:
    """Of two sums the first over the second; 0 over 0 is 0."""
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
    """Row of a figure that is one sum over another.

    Args:
        name: of the figure.
        sums: ``[items, 2]``.
        sign: its signature.
        note: remark.
        scored: number of items that have the figure, where not all do.
        per_item: the items' own figures; the ratios by default, None of 0 over 0.
    """
    sums = np.asarray(sums, dtype=float)
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


def mean_row(name: str, scores: Sequence[float], sign: str, note: str = "") -> Row:
    """Row of a figure that is the mean of its items' figures."""
    sums = np.stack([np.asarray(scores, dtype=float), np.ones(len(scores))], axis=1)
    return ratio_row(name, sums, sign, note, per_item=scores)


def rows_without(signs: Mapping[str, str], note: str) -> list[Row]:
    """Rows that say why there is no figure; ``signs`` are their signatures by name."""
    return [Row(name, None, sign, 0, note) for name, sign in signs.items()]
