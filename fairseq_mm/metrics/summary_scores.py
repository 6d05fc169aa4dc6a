"""Rows of what summaries are measured by: ROUGE, Content F1, n-grams that the source lacks."""

from functools import partial
from typing import Callable, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.content_f1 import STOP_WORDS, content_f1
from fairseq_mm.metrics.meteor import VERSION
from fairseq_mm.metrics.meteor_alignment import align
from fairseq_mm.metrics.novel_ngrams import MAX_ORDER, novel_ngram_counts
from fairseq_mm.metrics.rouge import rouge_l_f1, rouge_n_f1
from fairseq_mm.metrics.score_rows import Row, TokenizedItems, Tokens, mean_of_sums, mean_row

_ROUGE: dict[str, Callable[[Tokens, Tokens], float]] = {
    "rouge1": partial(rouge_n_f1, n=1),
    "rouge2": partial(rouge_n_f1, n=2),
    "rouge_l": rouge_l_f1,
}


def _choice(items: TokenizedItems) -> Optional[str]:
    """Of several references the one that gives the highest figure counts."""
    return "of-refs" if any(len(texts) > 1 for texts in items.references) else None


def rouge_rows(items: TokenizedItems) -> list[Row]:
    """ROUGE-1, -2 and -L of summaries, see ``rouge.py``."""
    rows = []
    for name, rouge in _ROUGE.items():
        scores = [
            max(rouge(tokens, reference) for reference in texts)
            for tokens, texts in zip(items.hypotheses, items.references)
        ]
        sign = items.sign(name, best=_choice(items), beta=1, f1="mean")
        rows.append(mean_row(name, scores, sign))
    return rows


def content_f1_rows(items: TokenizedItems) -> list[Row]:
    """See ``content_f1.py``."""
    sign = items.sign(
        "content_f1",
        best=_choice(items),
        align=f"meteor-{VERSION}",
        task="rank",
        norm="no",
        stop=f"{len(STOP_WORDS)}-words",
        span="first",  # figures without this property left every word of a span out
        bags="sets",
        f1="mean",
    )
    pairs = [
        (tokens, reference)
        for tokens, texts in zip(items.hypotheses, items.references)
        for reference in texts
    ]
    try:
        alignments = align([tokens for tokens, _ in pairs], [reference for _, reference in pairs])
    except UserError as error:  # the other figures are not lost with it
        return [Row("content_f1", None, sign, 0, str(error))]
    of_pairs = (content_f1(*pair, matches) for pair, matches in zip(pairs, alignments))
    scores = [max(next(of_pairs) for _ in texts) for texts in items.references]
    return [mean_row("content_f1", scores, sign)]


def novel_ngram_rows(items: TokenizedItems) -> list[Row]:
    """Shares of novel n-grams over all summaries, with the references' own beside them."""
    names = [f"novel{n}" for n in range(1, MAX_ORDER + 1)]
    signs = [items.sign(name, refs=False, source="transcript", mean="ngrams") for name in names]
    sources = items.sources
    if sources is None:
        note = "needs DATA/SPLIT.transcripts.jsonl"
        return [Row(name, None, sign, 0, note) for name, sign in zip(names, signs)]
    # [items, orders, 2]; items without a source stay, so that two systems' items are the same
    nothing = [(0, 0)] * MAX_ORDER
    sums, theirs = np.array(
        [
            [
                nothing if source is None else novel_ngram_counts(tokens, source)
                for tokens, source in zip(texts, sources)
            ]
            for texts in (items.hypotheses, [texts[0] for texts in items.references])
        ],
        dtype=float,
    )
    scored = sum(source is not None for source in sources)
    if not scored:
        note = "no item has a transcript"
        return [Row(name, None, sign, 0, note) for name, sign in zip(names, signs)]
    rows = []
    for order, (name, sign) in enumerate(zip(names, signs)):
        own = sums[:, order]
        note = f"references: {mean_of_sums(theirs[:, order].sum(0)):.5f}"
        if scored < len(sources):
            note += f"; {len(sources) - scored} without a transcript left out"
        rows.append(
            Row(
                name,
                mean_of_sums(own.sum(0)),
                sign,
                scored,
                note,
                sums=own,
                statistic=mean_of_sums,
                per_item=[None if total == 0 else novel / total for novel, total in own.tolist()],
            )
        )
    return rows
