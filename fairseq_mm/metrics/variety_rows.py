"""Builds table lines of scores of variety: self-BLEU, repeated n-grams, and distinct-n.

Distinct-n falls with the length of texts, so it reads the same number of words of each text.
"""

import numpy as np

from fairseq_mm.metrics.diversity import distinct_n, first_words_of, repeated_ngrams
from fairseq_mm.metrics.score_rows import Row, TokenizedItems, Tokens, ratio_row, rows_without
from fairseq_mm.metrics.self_bleu import self_bleu

SEQ_REP = ("seq_rep1", "seq_rep2", "seq_rep3", "seq_rep4")
FIRST_DISTINCT = ("first_distinct1", "first_distinct2")


def self_bleu_rows(items: TokenizedItems) -> list[Row]:
    texts = items.hypotheses
    # the value grows with the number of texts, so the number is a part of the signature
    sign = items.sign(
        "self_bleu",
        refs=False,
        of=f"corpus-{len(texts)}-texts",
        order=4,
        length="closest",
        smooth="none",
        mean="texts",
    )
    if len(texts) < 2:
        return rows_without({"self_bleu": sign}, "needs two texts or more")
    scores = self_bleu(texts)
    people = _first_references(items)
    note = f"people: {np.mean(self_bleu(people)):.5f}" if people else ""
    # no sums: a resampled corpus has equal texts, so the bootstrap would raise the value
    return [
        Row("self_bleu", float(np.mean(scores)), sign, len(scores), note, per_item=scores),
    ]


def seq_rep_rows(items: TokenizedItems) -> list[Row]:
    rows = []
    people = [text for texts in items.references for text in texts]
    for n, name in enumerate(SEQ_REP, start=1):
        sign = items.sign(name, refs=False, of="its-text", mean="texts")
        values = [repeated_ngrams(tokens, n) for tokens in items.hypotheses]
        # texts without a value count 0, since the comparison of two systems needs equal items
        sums = np.array([[value or 0.0, value is not None] for value in values], dtype=float)
        scored = int(sums[:, 1].sum())
        if not scored:
            rows += rows_without({name: sign}, f"needs texts of {n} words or more")
            continue
        written = [value for value in (repeated_ngrams(t, n) for t in people) if value is not None]
        note = f"people: {np.mean(written):.5f}" if written else ""
        rows.append(ratio_row(name, sums, sign, note, scored=scored, per_item=values))
    return rows


def first_distinct_rows(items: TokenizedItems) -> list[Row]:
    length = items.first_words
    signs = {name: items.sign(name, refs=False, words=f"first-{length}") for name in FIRST_DISTINCT}
    texts = first_words_of(items.hypotheses, length)
    if not texts:
        return rows_without(signs, f"no text has {length} words")
    people = first_words_of(_first_references(items), length)
    rows = []
    for n, (name, sign) in enumerate(signs.items(), start=1):
        notes = [f"people: {distinct_n(people, n):.5f} ({len(people)} texts)"] if people else []
        if len(texts) < len(items.hypotheses):
            notes.append(f"{len(items.hypotheses) - len(texts)} shorter texts left out")
        rows.append(Row(name, distinct_n(texts, n), sign, len(texts), "; ".join(notes)))
    return rows


def _first_references(items: TokenizedItems) -> list[Tokens]:
    # one reference of each item: the value of people is over as many texts as the system's
    return [texts[0] for texts in items.references]
