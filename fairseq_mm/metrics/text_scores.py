"""Computes all text metrics of a system on a test set, as one table line per score."""

from collections.abc import Sequence
from functools import partial
from typing import Callable, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.metrics import meteor as meteor_metric
from fairseq_mm.metrics.bleu import bleu_from_sums, bleu_sums, self_bleu
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.diversity import (
    distinct_n,
    first_words_of,
    novel_ngram_counts,
    novelty,
    repeated_ngrams,
    repeated_sentences,
    repeated_share,
    shared_between_stories,
)
from fairseq_mm.metrics.rouge import rouge_l, rouge_l_f1, rouge_n_f1
from fairseq_mm.metrics.score_rows import (
    Row,
    TokenizedItems,
    Tokens,
    mean_from_sums,
    mean_row,
    ratio_row,
    rows_without,
    signature,
)

NGRAMS = 4
# In signatures, since older versions ran METEOR's jar, whose signatures have no such property. The
# scores are the same.
_METEOR_PROGRAM = "python"
# the most frequent words of the How2 summaries
STOP_WORDS = frozenset([
    "in", "a", "this", "to", "free", "the", "video", "and", "learn",
    "from", "on", "with", "how", "tips", "for", "of", "expert", "an",
])  # fmt: skip


def _bleu(items: TokenizedItems) -> list[Row]:
    sums = np.stack([bleu_sums(h, r) for h, r in zip(items.hypotheses, items.references)])
    per_item = [bleu_from_sums(row) for row in sums]
    rows = []
    # from summed statistics: the mean of the items' BLEU would be another metric
    for order, value in enumerate(bleu_from_sums(sums.sum(0))):
        rows.append(
            Row(
                name=f"bleu{order + 1}",
                value=value,
                signature=items.sign(f"bleu{order + 1}", length="closest", smooth="none"),
                scored=len(sums),
                sums=sums,
                statistic=lambda sums, order=order: bleu_from_sums(sums)[order],
                per_item=[scores[order] for scores in per_item],
            )
        )
    return rows


def _meteor(items: TokenizedItems) -> list[Row]:
    sign = items.sign(
        f"meteor-{meteor_metric.VERSION}",
        task=items.meteor_task,
        norm="yes",
        by=_METEOR_PROGRAM,
    )
    try:
        per_item, sums = meteor_metric.meteor_sums(
            [" ".join(tokens) for tokens in items.hypotheses],
            [[" ".join(tokens) for tokens in texts] for texts in items.references],
            task=items.meteor_task,
        )
    except UserError as error:  # without METEOR's tables, other metrics are still computed
        return rows_without({"meteor": sign}, str(error))
    score = partial(meteor_metric.score_sums, items.meteor_task)
    return [
        Row(
            name="meteor",
            value=score(sums.sum(0)),
            signature=sign,
            scored=len(sums),
            sums=sums,
            statistic=score,
            per_item=per_item,
        )
    ]


def _meteor_vist(items: TokenizedItems) -> list[Row]:
    """Score stories by METEOR in the protocol of the Visual Storytelling Challenge (EvalVIST).

    Each story is one segment, and METEOR does not normalise its text. METEOR scores a segment with
    several references by the reference with the highest score. The corpus score is the mean over
    image sequences, and not METEOR's corpus score from summed statistics, which coco-caption uses.
    """
    # hter is the challenge's task, rank is METEOR's default: one file scored .618 and .331
    tasks = {"meteor_vist": "hter", "meteor_vist_rank": "rank"}
    signs = {
        name: items.sign(
            f"meteor-{meteor_metric.VERSION}",
            tokenization="none",
            protocol="EvalVIST" if task == "hter" else None,
            task=task,
            norm="no",
            segment="story",
            best="of-refs",
            mean="sequences",
            by=_METEOR_PROGRAM,
        )
        for name, task in tasks.items()
    }
    try:
        results = meteor_metric.meteor_of_tasks(
            items.texts, items.reference_texts, list(tasks.values()), normalize=False
        )
    except UserError as error:  # without METEOR's tables, other metrics are still computed
        return rows_without(signs, str(error))
    return [mean_row(name, results[task][1], signs[name]) for name, task in tasks.items()]


def _rouge_l(items: TokenizedItems) -> list[Row]:
    scores = [rouge_l(h, r) for h, r in zip(items.hypotheses, items.references)]
    return [mean_row("rouge_l", scores, items.sign("rouge_l", beta=1.2))]


def _cider(items: TokenizedItems) -> list[Row]:
    # document frequencies of the evaluated items, as in coco-caption: scores of a part of a split
    # cannot be compared with scores of the whole
    scorer = CiderD(items.references)
    scores = [scorer.score_item(tokens, i) for i, tokens in enumerate(items.hypotheses)]
    note = ""
    if scorer.num_documents == 1:
        note = "0 by definition: with one item every n-gram is in every document"
    sign = items.sign("cider_d", sigma=6, df=f"these-{scorer.num_documents}-items")
    return [mean_row("cider", scores, sign, note)]


_ROUGE: dict[str, Callable[[Tokens, Tokens], float]] = {
    "rouge1": partial(rouge_n_f1, n=1),
    "rouge2": partial(rouge_n_f1, n=2),
    "rouge_l": rouge_l_f1,
}


def _choice(items: TokenizedItems) -> Optional[str]:
    # a property of the signature only where there is a choice: the best of several references
    return "of-refs" if any(len(texts) > 1 for texts in items.references) else None


def _rouge(items: TokenizedItems) -> list[Row]:
    rows = []
    for name, rouge in _ROUGE.items():
        scores = [
            max(rouge(tokens, reference) for reference in texts)
            for tokens, texts in zip(items.hypotheses, items.references)
        ]
        sign = items.sign(name, best=_choice(items), beta=1, f1="mean")
        rows.append(mean_row(name, scores, sign))
    return rows


def content_f1(
    hypothesis: Sequence[str], reference: Sequence[str], matches: Sequence[meteor_metric.Match]
) -> float:
    """Compute Content F1: how well the content words of a summary and its reference are aligned.

    Defined by Palaskar et al. 2019, computed as for the scores of Yu et al. 2021 (Tables 1 and 2)
    from ``matches``, the METEOR 1.5 alignment of both texts: 18 frequent words of the How2
    summaries are removed from the alignment and from both texts. The result is 0 or more; 0 if
    nothing is aligned or a text has no content words. The corpus score is the mean over pairs of a
    hypothesis and a reference.

    Differs from the text of both papers, but agrees with their scores: METEOR's function words
    are not removed. The content words of a text are counted as a set, without repetitions, but each
    occurrence of an aligned word is counted, so that precision and recall of repetitive texts can
    exceed 1. A frequent word that is not aligned stays among the content words. If several
    hypothesis words are aligned with one frequent word, only the first of them is removed from the
    hypothesis. As in the authors' script, precision is divided by the number of the reference's
    content words and recall by the number of the hypothesis's; this exchange does not change F1.

    Two scores of Yu et al. 2021, Table 2, were computed with the alignments of another model's
    output: 72.5 (row "+ FG") and 72.1 (row "+ VTF"). With the right alignments, they are 68.92 and
    68.68.
    """
    hypothesis_stops: set[str] = set()
    reference_stops: set[str] = set()
    hypothesis_aligned = reference_aligned = 0
    for match in matches:
        words = reference[match.reference_start :][: match.reference_length]
        if len(words) == 1 and words[0] in STOP_WORDS:
            reference_stops.update(words)
            # only the first word of the span, as in the authors' script
            hypothesis_stops.add(hypothesis[match.hypothesis_start])
        else:
            reference_aligned += match.reference_length
            hypothesis_aligned += match.hypothesis_length
    num_hypothesis = len(set(hypothesis) - hypothesis_stops)
    num_reference = len(set(reference) - reference_stops)
    if not (num_hypothesis and num_reference and reference_aligned and hypothesis_aligned):
        return 0.0
    precision, recall = reference_aligned / num_reference, hypothesis_aligned / num_hypothesis
    return 2 * precision * recall / (precision + recall)


def _content_f1(items: TokenizedItems) -> list[Row]:
    sign = items.sign(
        "content_f1",
        best=_choice(items),
        align=f"meteor-{meteor_metric.VERSION}",
        by=_METEOR_PROGRAM,
        task="rank",
        norm="no",
        stop=f"{len(STOP_WORDS)}-words",
        # older signatures without this property: every word of a span was removed
        span="first",
        bags="sets",
        f1="mean",
    )
    hypotheses = [h for h, texts in zip(items.hypotheses, items.references) for _ in texts]
    references = [reference for texts in items.references for reference in texts]
    try:
        alignments = meteor_metric.align(hypotheses, references)
    except UserError as error:  # without METEOR's tables, other metrics are still computed
        return rows_without({"content_f1": sign}, str(error))
    pair_scores = map(content_f1, hypotheses, references, alignments)
    scores = [max(next(pair_scores) for _ in texts) for texts in items.references]
    return [mean_row("content_f1", scores, sign)]


def _diversity(items: TokenizedItems) -> list[Row]:
    texts = items.hypotheses
    figures: list[tuple[str, float]] = [
        ("distinct1", distinct_n(texts, 1)),
        ("distinct2", distinct_n(texts, 2)),
        ("vocabulary", len({token for tokens in texts for token in tokens})),
        ("length", sum(map(len, texts)) / len(texts) if texts else 0.0),
    ]
    return [Row(name, value, items.sign(name, refs=False), len(texts)) for name, value in figures]


def _novelty(items: TokenizedItems) -> list[Row]:
    if items.training_texts is None:
        return rows_without({"novelty": signature("novelty")}, "needs --training-text")
    value = novelty(items.hypotheses, items.training_texts)
    sign = items.sign("novelty", refs=False, training=f"{len(items.training_texts)}-texts")
    return [Row("novelty", value, sign, len(items.hypotheses))]


def _novel_ngrams(items: TokenizedItems) -> list[Row]:
    signs = {
        f"novel{n}": items.sign(f"novel{n}", refs=False, source="transcript", mean="ngrams")
        for n in range(1, NGRAMS + 1)
    }
    sources = items.sources
    if sources is None:
        return rows_without(signs, "needs DATA/SPLIT.transcripts.jsonl")

    def count(texts: Sequence[Tokens]) -> np.ndarray:
        # items without a source count 0, since the comparison of two systems needs equal items
        nothing = [(0, 0)] * NGRAMS
        counts = [
            nothing if source is None else novel_ngram_counts(tokens, source, NGRAMS)
            for tokens, source in zip(texts, sources)
        ]
        return np.array(counts, dtype=float)  # [items, orders, 2]

    sums, reference_sums = count(items.hypotheses), count([texts[0] for texts in items.references])
    scored = sum(source is not None for source in sources)
    if not scored:
        return rows_without(signs, "no item has a transcript")
    rows = []
    for order, (name, sign) in enumerate(signs.items()):
        note = f"references: {mean_from_sums(reference_sums[:, order].sum(0)):.5f}"
        if scored < len(sources):
            note += f"; {len(sources) - scored} without a transcript left out"
        rows.append(ratio_row(name, sums[:, order], sign, note, scored=scored))
    return rows


def _copying(items: TokenizedItems) -> list[Row]:
    training = None if items.training_words is None else f"{items.training_words}-words"
    signs = {
        name: items.sign(name, refs=False, run="contiguous", training=training)
        for name in ("copied_words", "copied_share")
    }
    if items.copied_runs is None:
        return rows_without(signs, "needs --data or --training-text")
    lengths = [run.length for run in items.copied_runs]
    # an empty text has a share of 0
    sizes = [max(1, len(words)) for words in items.hypotheses]
    shares = [length / size for length, size in zip(lengths, sizes)]
    note = f"{min(lengths)} to {max(lengths)}"
    return [
        mean_row("copied_words", lengths, signs["copied_words"], note),
        mean_row("copied_share", shares, signs["copied_share"]),
    ]


_REPETITIONS: dict[str, Callable[[Sequence[Tokens]], Optional[float]]] = {
    "repeated_words": partial(repeated_share, n=1),
    "repeated_trigrams": partial(repeated_share, n=3),
    "repeated_sentences": repeated_sentences,
}


def _sentences(items: TokenizedItems) -> list[Row]:
    signs = {"words_per_sentence": items.sign("words_per_sentence", refs=False)}
    for name in _REPETITIONS:
        signs[name] = items.sign(name, refs=False, of="earlier-sentences-of-its-story")
    signs["shared_trigrams"] = items.sign("shared_trigrams", refs=False, of="all-stories")
    stories = items.sentences
    if stories is None:
        return rows_without(signs, "needs separators between sentences")
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
    # stories without a value count 0, since the comparison of two systems needs equal items
    sums = np.array([[value or 0.0, value is not None] for value in values], dtype=float)
    scored = int(sums[:, 1].sum())
    if not scored:
        return rows_without({name: sign}, "needs stories of several sentences")[0]
    people = [value for value in map(measure, written) if value is not None]
    note = f"people: {sum(people) / len(people):.5f}" if people else ""
    return ratio_row(name, sums, sign, note, scored=scored, per_item=values)


def _sentence_length(
    stories: Sequence[Sequence[Tokens]], written: Sequence[Sequence[Tokens]], sign: str
) -> Row:
    def count_words(stories: Sequence[Sequence[Tokens]]) -> np.ndarray:
        return np.array([[sum(map(len, s)), len(s)] for s in stories], dtype=float).reshape(-1, 2)

    sums = count_words(stories)
    counts = f"{sums[:, 1].min():.0f} to {sums[:, 1].max():.0f} sentences a story"
    people = f", people: {mean_from_sums(count_words(written).sum(0)):.2f}" if written else ""
    per_item = [mean_from_sums(story) for story in sums]
    return ratio_row("words_per_sentence", sums, sign, counts + people, per_item=per_item)


_SEQ_REP = ("seq_rep1", "seq_rep2", "seq_rep3", "seq_rep4")
_FIRST_DISTINCT = ("first_distinct1", "first_distinct2")


def _self_bleu(items: TokenizedItems) -> list[Row]:
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


def _seq_rep(items: TokenizedItems) -> list[Row]:
    rows = []
    people = [text for texts in items.references for text in texts]
    for n, name in enumerate(_SEQ_REP, start=1):
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


def _first_distinct(items: TokenizedItems) -> list[Row]:
    length = items.first_words
    signs = {
        name: items.sign(name, refs=False, words=f"first-{length}") for name in _FIRST_DISTINCT
    }
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


METRICS: dict[str, Callable[[TokenizedItems], list[Row]]] = {
    "bleu": _bleu,
    "meteor": _meteor,
    "meteor_vist": _meteor_vist,
    "rouge": _rouge,
    "rouge_l": _rouge_l,
    "cider": _cider,
    "content_f1": _content_f1,
    "diversity": _diversity,
    "novelty": _novelty,
    "novel_ngrams": _novel_ngrams,
    "copying": _copying,
    "sentences": _sentences,
    "self_bleu": _self_bleu,
    "seq_rep": _seq_rep,
    "first_distinct": _first_distinct,
}
# metric -> names of its scores, if they differ from its own name
FIGURES: dict[str, tuple[str, ...]] = {
    "bleu": ("bleu1", "bleu2", "bleu3", "bleu4"),
    "meteor_vist": ("meteor_vist", "meteor_vist_rank"),
    "rouge": tuple(_ROUGE),
    "diversity": ("distinct1", "distinct2", "vocabulary", "length"),
    "novel_ngrams": tuple(f"novel{n}" for n in range(1, NGRAMS + 1)),
    "copying": ("copied_words", "copied_share"),
    "sentences": ("words_per_sentence", *_REPETITIONS, "shared_trigrams"),
    "seq_rep": _SEQ_REP,
    "first_distinct": _FIRST_DISTINCT,
}
METRIC_OF_FIGURE = {
    figure: metric
    for metric, figures in FIGURES.items()
    for figure in figures
    if figure not in METRICS
}


def score_texts(items: TokenizedItems, metrics: Sequence[str]) -> list[Row]:
    """Compute the table lines of the scores of each metric, in the order of ``metrics``.

    ``metrics`` are keys of :data:`METRICS`.
    """
    return [row for name in metrics for row in METRICS[name](items)]
