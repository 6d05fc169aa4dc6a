"""All text metrics of one system over one set of items: a row a figure, with its signature."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Callable, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.metrics import meteor as meteor_jar
from fairseq_mm.metrics.bleu import MAX_ORDER, bleu_from_sums, bleu_sums
from fairseq_mm.metrics.bootstrap import Statistic
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.copying import CopiedRun
from fairseq_mm.metrics.diversity import distinct_n, mean_length, novelty, vocabulary_size
from fairseq_mm.metrics.rouge import rouge_l
from fairseq_mm.metrics.sentence_repetition import (
    repeated_sentences,
    repeated_share,
    shared_between_stories,
)
from fairseq_mm.metrics.signature import count_label, signature

Tokens = list[str]

# tokenisation -> what else a signature says of it
_TOKEN_PROPERTIES = {
    "ptb": {"case": "lc", "punct": "no"},
    "m_rnn": {"case": "lc", "punct": "yes"},
    "none": {"case": "mixed", "punct": "yes"},
    "wp": {"case": "mixed", "punct": "yes"},
}


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
        )


def _mean(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1]) if sums[1] else 0.0


def _mean_row(name: str, scores: Sequence[float], sign: str, note: str = "") -> Row:
    sums = np.stack([np.asarray(scores, dtype=float), np.ones(len(scores))], axis=1)
    return Row(
        name,
        _mean(sums.sum(0)),
        sign,
        len(scores),
        note,
        sums=sums,
        statistic=_mean,
        per_item=scores,
    )


def _bleu_of_order(order: int, sums: np.ndarray) -> float:
    return bleu_from_sums(sums)[order]


def _bleu(items: TokenizedItems) -> list[Row]:
    sums = np.stack([bleu_sums(h, r) for h, r in zip(items.hypotheses, items.references)])
    per_item = [bleu_from_sums(row) for row in sums]
    rows = []
    for order, value in enumerate(bleu_from_sums(sums.sum(0))):
        rows.append(
            Row(
                name=f"bleu{order + 1}",
                value=value,
                signature=items.sign(f"bleu{order + 1}", length="closest", smooth="none"),
                scored=len(sums),
                sums=sums,
                statistic=partial(_bleu_of_order, order),
                per_item=[scores[order] for scores in per_item],
            )
        )
    assert len(rows) == MAX_ORDER
    return rows


def _meteor(items: TokenizedItems) -> list[Row]:
    sign = items.sign(
        f"meteor-{meteor_jar.VERSION}",
        task=items.meteor_task,
        norm="yes" if items.meteor_normalize else "no",
    )
    try:
        corpus, per_item = meteor_jar.meteor(
            [" ".join(tokens) for tokens in items.hypotheses],
            [[" ".join(tokens) for tokens in texts] for texts in items.references],
            task=items.meteor_task,
            normalize=items.meteor_normalize,
        )
    except UserError as error:  # the other figures are not lost with it
        return [Row("meteor", None, sign, 0, str(error))]
    return [Row("meteor", corpus, sign, len(per_item), per_item=per_item)]


def _meteor_vist(items: TokenizedItems) -> list[Row]:
    """The protocol of the Visual Storytelling Challenge (EvalVIST), with its task and the default.

    Each story is one segment, as it is, without METEOR's own normalisation. A story's score is the
    highest over its references, each scored alone: METEOR's own way with several references,
    segment by segment. The figure is the mean over photo sequences, where coco-caption's makes a
    corpus score of summed statistics.
    """
    rows = []
    for name, task in (("meteor_vist", "hter"), ("meteor_vist_rank", "rank")):
        sign = items.sign(
            f"meteor-{meteor_jar.VERSION}",
            tokenization="none",
            protocol="EvalVIST" if task == "hter" else None,
            task=task,
            norm="no",
            segment="story",
            best="of-refs",
            mean="sequences",
        )
        try:
            _, scores = meteor_jar.meteor(
                items.texts, items.reference_texts, task=task, normalize=False
            )
        except UserError as error:  # the other figures are not lost with it
            rows.append(Row(name, None, sign, 0, str(error)))
        else:
            rows.append(_mean_row(name, scores, sign))
    return rows


def _rouge_l(items: TokenizedItems) -> list[Row]:
    scores = [rouge_l(h, r) for h, r in zip(items.hypotheses, items.references)]
    return [_mean_row("rouge_l", scores, items.sign("rouge_l", beta=1.2))]


def _cider(items: TokenizedItems) -> list[Row]:
    scorer = CiderD(items.references)
    scores = [scorer.score_item(tokens, i) for i, tokens in enumerate(items.hypotheses)]
    note = ""
    if scorer.num_documents == 1:
        note = "0 by definition: with one item every n-gram is in every document"
    sign = items.sign("cider_d", sigma=6, df=f"these-{scorer.num_documents}-items")
    return [_mean_row("cider", scores, sign, note)]


def _diversity(items: TokenizedItems) -> list[Row]:
    texts = items.hypotheses
    figures: list[tuple[str, float]] = [
        ("distinct1", distinct_n(texts, 1)),
        ("distinct2", distinct_n(texts, 2)),
        ("vocabulary", vocabulary_size(texts)),
        ("length", mean_length(texts)),
    ]
    return [Row(name, value, items.sign(name, refs=False), len(texts)) for name, value in figures]


def _novelty(items: TokenizedItems) -> list[Row]:
    if items.training_texts is None:
        return [Row("novelty", None, signature("novelty"), 0, "needs --training-text")]
    value = novelty(items.hypotheses, items.training_texts)
    sign = items.sign("novelty", refs=False, training=f"{len(items.training_texts)}-texts")
    return [Row("novelty", value, sign, len(items.hypotheses))]


def _copying(items: TokenizedItems) -> list[Row]:
    """Longest run of words shared with a training text, and its share of the hypothesis."""
    training = None if items.training_words is None else f"{items.training_words}-words"
    signs = {
        name: items.sign(name, refs=False, run="contiguous", training=training)
        for name in ("copied_words", "copied_share")
    }
    if items.copied_runs is None:
        note = "needs --data or --training-text"
        return [Row(name, None, sign, 0, note) for name, sign in signs.items()]
    lengths = [run.length for run in items.copied_runs]
    sizes = [max(1, len(words)) for words in items.hypotheses]
    shares = [length / size for length, size in zip(lengths, sizes)]
    note = f"{min(lengths)} to {max(lengths)}"
    return [
        _mean_row("copied_words", lengths, signs["copied_words"], note),
        _mean_row("copied_share", shares, signs["copied_share"]),
    ]


_REPETITIONS: dict[str, Callable[[Sequence[Tokens]], Optional[float]]] = {
    "repeated_words": partial(repeated_share, n=1),
    "repeated_trigrams": partial(repeated_share, n=3),
    "repeated_sentences": repeated_sentences,
}


def _sentences(items: TokenizedItems) -> list[Row]:
    """Words a sentence, and what sentences repeat, see ``sentence_repetition.py``."""
    signs = {"words_per_sentence": items.sign("words_per_sentence", refs=False)}
    for name in _REPETITIONS:
        signs[name] = items.sign(name, refs=False, of="earlier-sentences-of-its-story")
    signs["shared_trigrams"] = items.sign("shared_trigrams", refs=False, of="all-stories")
    stories = items.sentences
    if stories is None:
        note = "needs separators between sentences"
        return [Row(name, None, sign, 0, note) for name, sign in signs.items()]
    written = items.written_sentences or ()
    rows = [_sentence_length(stories, written, signs["words_per_sentence"])]
    for name, measure in _REPETITIONS.items():
        rows.append(_repetition(name, measure, stories, written, signs[name]))
    shared = shared_between_stories(stories, 3)
    rows.append(Row("shared_trigrams", shared, signs["shared_trigrams"], len(stories)))
    return rows


def _repetition(
    name: str,
    measure: Callable[[Sequence[Tokens]], Optional[float]],
    stories: Sequence[Sequence[Tokens]],
    written: Sequence[Sequence[Tokens]],
    sign: str,
) -> Row:
    values = [measure(sentences) for sentences in stories]
    # stories without a figure stay among the items, so that two systems' items are the same
    sums = np.array([[value or 0.0, value is not None] for value in values], dtype=float)
    scored = int(sums[:, 1].sum())
    if not scored:
        return Row(name, None, sign, 0, "needs stories of several sentences")
    theirs = [value for value in map(measure, written) if value is not None]
    note = f"people: {sum(theirs) / len(theirs):.5f}" if theirs else ""
    return Row(
        name, _mean(sums.sum(0)), sign, scored, note, sums=sums, statistic=_mean, per_item=values
    )


def _sentence_length(
    stories: Sequence[Sequence[Tokens]], written: Sequence[Sequence[Tokens]], sign: str
) -> Row:
    def sums_of(stories: Sequence[Sequence[Tokens]]) -> np.ndarray:
        return np.array([[sum(map(len, s)), len(s)] for s in stories], dtype=float).reshape(-1, 2)

    sums = sums_of(stories)
    counts = f"{sums[:, 1].min():.0f} to {sums[:, 1].max():.0f} sentences a story"
    people = f", people: {_mean(sums_of(written).sum(0)):.2f}" if written else ""
    return Row(
        "words_per_sentence",
        _mean(sums.sum(0)),
        sign,
        len(sums),
        counts + people,
        sums=sums,
        statistic=_mean,
        per_item=[_mean(story) for story in sums],
    )


METRICS: dict[str, Callable[[TokenizedItems], list[Row]]] = {
    "bleu": _bleu,
    "meteor": _meteor,
    "meteor_vist": _meteor_vist,
    "rouge_l": _rouge_l,
    "cider": _cider,
    "diversity": _diversity,
    "novelty": _novelty,
    "copying": _copying,
    "sentences": _sentences,
}


def score_texts(items: TokenizedItems, metrics: Sequence[str]) -> list[Row]:
    """Rows of the named metrics, in that order.

    Args:
        items: one item or more.
        metrics: names out of :data:`METRICS`.
    """
    return [row for name in metrics for row in METRICS[name](items)]
