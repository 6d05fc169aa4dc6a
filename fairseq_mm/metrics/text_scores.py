"""All text metrics of one system over one set of items: a row a figure, with its signature."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Callable

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.metrics import meteor as meteor_jar
from fairseq_mm.metrics.bleu import MAX_ORDER, bleu_from_sums, bleu_sums
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.diversity import distinct_n, mean_length, novelty, vocabulary_size
from fairseq_mm.metrics.rouge import rouge_l
from fairseq_mm.metrics.score_rows import Row, TokenizedItems, mean_row
from fairseq_mm.metrics.signature import signature
from fairseq_mm.metrics.story_scores import copying_rows, sentence_rows
from fairseq_mm.metrics.summary_scores import content_f1_rows, novel_ngram_rows, rouge_rows


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
            rows.append(mean_row(name, scores, sign))
    return rows


def _rouge_l(items: TokenizedItems) -> list[Row]:
    scores = [rouge_l(h, r) for h, r in zip(items.hypotheses, items.references)]
    return [mean_row("rouge_l", scores, items.sign("rouge_l", beta=1.2))]


def _cider(items: TokenizedItems) -> list[Row]:
    scorer = CiderD(items.references)
    scores = [scorer.score_item(tokens, i) for i, tokens in enumerate(items.hypotheses)]
    note = ""
    if scorer.num_documents == 1:
        note = "0 by definition: with one item every n-gram is in every document"
    sign = items.sign("cider_d", sigma=6, df=f"these-{scorer.num_documents}-items")
    return [mean_row("cider", scores, sign, note)]


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


METRICS: dict[str, Callable[[TokenizedItems], list[Row]]] = {
    "bleu": _bleu,
    "meteor": _meteor,
    "meteor_vist": _meteor_vist,
    "rouge": rouge_rows,
    "rouge_l": _rouge_l,
    "cider": _cider,
    "content_f1": content_f1_rows,
    "diversity": _diversity,
    "novelty": _novelty,
    "novel_ngrams": novel_ngram_rows,
    "copying": copying_rows,
    "sentences": sentence_rows,
}
_JAVA = ("meteor", "meteor_vist", "content_f1")


def score_texts(items: TokenizedItems, metrics: Sequence[str]) -> list[Row]:
    """Rows of the named metrics, in that order; Java works beside the others.

    Args:
        items: one item or more.
        metrics: names out of :data:`METRICS`.
    """
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as threads:
        waiting = {name: threads.submit(METRICS[name], items) for name in metrics if name in _JAVA}
        rows = {name: METRICS[name](items) for name in metrics if name not in waiting}
        rows.update({name: future.result() for name, future in waiting.items()})
    return [row for name in metrics for row in rows[name]]
