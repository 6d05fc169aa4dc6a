"""Text metrics of a system on a test set: one table that names each metric, its scores, and its
inputs."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.metrics import meteor as meteor_metric
from fairseq_mm.metrics.bleu import bleu_from_sums, bleu_sums, self_bleu
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.rouge import rouge_l, rouge_l_f1, rouge_n_f1
from fairseq_mm.metrics.score_rows import (
    Row,
    TokenizedItems,
    Tokens,
    mean_from_sums,
    mean_row,
    ratio_row,
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
    # from summed statistics: the mean of the items' BLEU would be another metric
    return [
        Row(
            name=f"bleu{order + 1}",
            value=value,
            signature=items.sign(f"bleu{order + 1}", length="closest", smooth="none"),
            scored=len(sums),
            sums=sums,
            statistic=lambda sums, order=order: bleu_from_sums(sums)[order],
            per_item=[scores[order] for scores in per_item],
        )
        for order, value in enumerate(bleu_from_sums(sums.sum(0)))
    ]


def _meteor(items: TokenizedItems) -> list[Row]:
    per_item, sums = meteor_metric.meteor_sums(
        [" ".join(tokens) for tokens in items.hypotheses],
        [[" ".join(tokens) for tokens in texts] for texts in items.references],
    )
    sign = items.sign(
        f"meteor-{meteor_metric.VERSION}", task="rank", norm="yes", by=_METEOR_PROGRAM
    )
    score = partial(meteor_metric.score_sums, "rank")
    row = Row("meteor", score(sums.sum(0)), sign, len(sums), per_item=per_item)
    row.sums, row.statistic = sums, score
    return [row]


# hter is the challenge's task, rank is METEOR's default: one file scored .618 and .331
_VIST_TASKS = {"meteor_vist": "hter", "meteor_vist_rank": "rank"}


def _meteor_vist(items: TokenizedItems) -> list[Row]:
    """Score stories by METEOR in the protocol of the Visual Storytelling Challenge (EvalVIST): a
    story is one segment without -norm, and the score is the mean over image sequences."""
    tasks = list(_VIST_TASKS.values())
    results = meteor_metric.meteor_of_tasks(
        items.texts, items.reference_texts, tasks, normalize=False
    )
    rows = []
    for name, task in _VIST_TASKS.items():
        sign = items.sign(
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
        rows.append(mean_row(name, results[task][1], sign))
    return rows


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
    summaries are removed from the alignment and from both texts. The result is 0 or more; the
    corpus score is the mean over pairs of a hypothesis and a reference.

    Differs from the text of both papers, but agrees with their scores: METEOR's function words are
    not removed. The content words of a text are counted as a set, but each occurrence of an aligned
    word is counted, so that precision and recall can exceed 1. If several hypothesis words are
    aligned with one frequent word, only the first is removed. As in the authors' script, precision
    is divided by the number of the reference's content words and recall by the hypothesis's; this
    exchange does not change F1. Two scores of Yu et al. 2021, Table 2, were computed with the
    alignments of another model's output: 72.5 (row "+ FG") and 72.1 (row "+ VTF"). With the right
    alignments, they are 68.92 and 68.68.
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
    hypotheses = [h for h, texts in zip(items.hypotheses, items.references) for _ in texts]
    references = [reference for texts in items.references for reference in texts]
    alignments = meteor_metric.align(hypotheses, references)
    pair_scores = map(content_f1, hypotheses, references, alignments)
    scores = [max(next(pair_scores) for _ in texts) for texts in items.references]
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
    return [mean_row("content_f1", scores, sign)]


def ngrams(tokens: Tokens, n: int) -> list[tuple[str, ...]]:
    """Return all n-grams of a text in order; an empty list if the text has fewer than n tokens."""
    return list(zip(*(tokens[i:] for i in range(n))))


def distinct_n(texts: Iterable[Tokens], n: int) -> float:
    """Compute distinct-n: the number of distinct n-grams of all texts over the number of n-grams.

    Defined in section 5.2 of Li et al. 2016 (A Diversity-Promoting Objective Function). The result
    is 0 if no text has an n-gram. It falls with the amount of text: compare equal numbers of texts.
    """
    different: set[tuple[str, ...]] = set()
    total = 0
    for tokens in texts:
        grams = ngrams(tokens, n)
        different.update(grams)
        total += len(grams)
    return len(different) / total if total else 0.0


def repeated_ngrams(tokens: Tokens, n: int) -> Optional[float]:
    """Compute seq-rep-n, ``1 - distinct n-grams / n-grams`` of a text (Welleck et al. 2020, section
    3); None if the text has fewer than n words."""
    return 1 - distinct_n([tokens], n) if len(tokens) >= n else None


def repeated_share(sentences: Sequence[Tokens], n: int) -> Optional[float]:
    """Compute the share of a sentence's n-grams that occur in earlier sentences of the story: the
    mean over the second and later sentences with n tokens or more; None if there are none.

    An n-gram that occurs twice in the sentence counts twice. Yao et al. 2019 (Plan-and-Write,
    "intra-story repetition") compare with each earlier sentence separately and take the mean, which
    falls with the number of sentences.
    """
    seen: set[tuple[str, ...]] = set()
    shares = []
    for number, sentence in enumerate(sentences):
        grams = ngrams(sentence, n)
        # a sentence of fewer than n words says nothing about repetition
        if number and grams:
            shares.append(sum(ngram in seen for ngram in grams) / len(grams))
        seen.update(grams)
    return sum(shares) / len(shares) if shares else None


def repeated_sentences(sentences: Sequence[Tokens]) -> Optional[float]:
    """Compute the share of the second and later sentences that equal an earlier sentence.

    Empty sentences are ignored. The result is None if there are fewer than two sentences.
    """
    texts = [tuple(sentence) for sentence in sentences if sentence]
    # the first sentence has nothing that it could repeat
    repeats = [sentence in texts[:number] for number, sentence in enumerate(texts)][1:]
    return sum(repeats) / len(repeats) if repeats else None


def _diversity(items: TokenizedItems) -> list[Row]:
    texts = items.hypotheses
    figures = {
        "distinct1": distinct_n(texts, 1),
        "distinct2": distinct_n(texts, 2),
        "vocabulary": len({token for tokens in texts for token in tokens}),
        "length": sum(map(len, texts)) / len(texts),
    }
    return [Row(x, value, items.sign(x, refs=False), len(texts)) for x, value in figures.items()]


def _novelty(items: TokenizedItems) -> list[Row]:
    training: Any = items.training_texts
    texts = [tuple(tokens) for tokens in items.hypotheses]
    # only training texts that equal a generated text: a set of all would be large
    known = set(texts).intersection(map(tuple, training))
    sign = items.sign("novelty", refs=False, training=f"{len(training)}-texts")
    share = sum(text not in known for text in texts) / len(texts)
    return [Row("novelty", share, sign, len(texts))]


def _novel_ngrams(items: TokenizedItems) -> list[Row]:
    sources: Any = items.sources

    def count(texts: Sequence[Tokens]) -> np.ndarray:
        # n-grams of each text that its source lacks, and all of its n-grams (See et al. 2017,
        # section 6.2); items without a source count 0, since the comparison of two systems needs
        # equal items
        counts = np.zeros((len(texts), NGRAMS, 2))
        for i, (tokens, source) in enumerate(zip(texts, sources)):
            for n in range(1, NGRAMS + 1) if source is not None else ():
                known, grams = set(ngrams(source, n)), ngrams(tokens, n)
                counts[i, n - 1] = sum(ngram not in known for ngram in grams), len(grams)
        return counts

    sums, reference_sums = count(items.hypotheses), count(_first_references(items))
    scored = sum(source is not None for source in sources)
    rows = []
    for order in range(NGRAMS):
        name = f"novel{order + 1}"
        sign = items.sign(name, refs=False, source="transcript", mean="ngrams")
        note = f"references: {mean_from_sums(reference_sums[:, order].sum(0)):.5f}"
        if scored < len(sources):
            note += f"; {len(sources) - scored} without a transcript left out"
        row = ratio_row(name, sums[:, order], sign, note, scored=scored)
        rows.append(row if scored else Row(name, None, sign, 0, "no item has a transcript"))
    return rows


def _copying(items: TokenizedItems) -> list[Row]:
    runs: Any = items.copied_runs
    lengths = [run.length for run in runs]
    # an empty text has a share of 0
    shares = [x / max(1, len(words)) for x, words in zip(lengths, items.hypotheses)]
    notes = {"copied_words": f"{min(lengths)} to {max(lengths)}", "copied_share": ""}
    training = f"{items.training_words}-words"
    return [
        mean_row(x, values, items.sign(x, refs=False, run="contiguous", training=training), note)
        for (x, note), values in zip(notes.items(), (lengths, shares))
    ]


_REPETITIONS: dict[str, Callable[[Sequence[Tokens]], Optional[float]]] = {
    "repeated_words": partial(repeated_share, n=1),
    "repeated_trigrams": partial(repeated_share, n=3),
    "repeated_sentences": repeated_sentences,
}


def _sentences(items: TokenizedItems) -> list[Row]:
    def count_words(stories: Sequence[Sequence[Tokens]]) -> np.ndarray:
        return np.array([[sum(map(len, s)), len(s)] for s in stories], dtype=float).reshape(-1, 2)

    stories: Any = items.sentences
    written = items.written_sentences or ()
    sums = count_words(stories)
    note = f"{sums[:, 1].min():.0f} to {sums[:, 1].max():.0f} sentences a story"
    if written:
        note += f", people: {mean_from_sums(count_words(written).sum(0)):.2f}"
    sign = items.sign("words_per_sentence", refs=False)
    per_item = [mean_from_sums(story) for story in sums]
    rows = [ratio_row("words_per_sentence", sums, sign, note, per_item=per_item)]
    for name, measure in _REPETITIONS.items():
        values = [measure(sentences) for sentences in stories]
        sign = items.sign(name, refs=False, of="earlier-sentences-of-its-story")
        reason = "needs stories of several sentences"
        rows.append(_beside_people(name, values, map(measure, written), sign, reason))
    # with trigrams, the aggregate "inter-story repetition" of Yao et al. 2019; it grows with the
    # amount of text: compare equal numbers of stories
    sentences = [sentence for story in stories for sentence in story]
    shared = 1 - distinct_n(sentences, 3) if any(len(x) >= 3 for x in sentences) else 0.0
    sign = items.sign("shared_trigrams", refs=False, of="all-stories")
    return [*rows, Row("shared_trigrams", shared, sign, len(stories))]


def _beside_people(
    name: str,
    values: Sequence[Optional[float]],
    people: Iterable[Optional[float]],
    sign: str,
    reason: str,
) -> Row:
    """Build the table line of a mean, with the mean over texts that people wrote as a note;
    ``reason`` is the note if there is no value."""
    row = mean_row(name, values, sign, reason)
    if row.value is not None:
        written = [value for value in people if value is not None]
        row.note = f"people: {sum(written) / len(written):.5f}" if written else ""
    return row


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
        return [Row("self_bleu", None, sign, 0, "needs two texts or more")]
    scores = self_bleu(texts)
    people = _first_references(items)
    note = f"people: {np.mean(self_bleu(people)):.5f}" if people else ""
    # no sums: a resampled corpus has equal texts, so the bootstrap would raise the value
    value = float(np.mean(scores))
    return [Row("self_bleu", value, sign, len(scores), note, per_item=scores)]


def _seq_rep(items: TokenizedItems) -> list[Row]:
    people = [text for texts in items.references for text in texts]
    rows = []
    for n in range(1, NGRAMS + 1):
        sign = items.sign(f"seq_rep{n}", refs=False, of="its-text", mean="texts")
        values = [repeated_ngrams(tokens, n) for tokens in items.hypotheses]
        written = (repeated_ngrams(tokens, n) for tokens in people)
        reason = f"needs texts of {n} words or more"
        rows.append(_beside_people(f"seq_rep{n}", values, written, sign, reason))
    return rows


def _first_distinct(items: TokenizedItems) -> list[Row]:
    length = items.first_words
    # distinct-n falls with the length of texts: all are cut to one length, shorter ones left out
    texts, people = (
        [tokens[:length] for tokens in texts if len(tokens) >= length]
        for texts in (items.hypotheses, _first_references(items))
    )
    rows = []
    for n in (1, 2):
        name = f"first_distinct{n}"
        sign = items.sign(name, refs=False, words=f"first-{length}")
        notes = [f"people: {distinct_n(people, n):.5f} ({len(people)} texts)"] if people else []
        if len(texts) < len(items.hypotheses):
            notes.append(f"{len(items.hypotheses) - len(texts)} shorter texts left out")
        row = Row(name, distinct_n(texts, n), sign, len(texts), "; ".join(notes))
        rows.append(row if texts else Row(name, None, sign, 0, f"no text has {length} words"))
    return rows


def _first_references(items: TokenizedItems) -> list[Tokens]:
    # one reference of each item: the value of people is over as many texts as the system's
    return [texts[0] for texts in items.references]


class Metric(NamedTuple):
    """Metric of ``fairseq-mm score``."""

    # function that computes the scores; None for a metric that :func:`score_texts` does not compute
    compute: Any
    figures: tuple[str, ...] = ()  # names of the scores, if they differ from the metric's name
    # what must be given for a value: ``references``, a field of :class:`.TokenizedItems` that is a
    # key of :data:`LACKING`, or an option of the command
    needs: tuple[str, ...] = ()


_REFERENCES = ("references",)
METRICS: dict[str, Metric] = {
    "bleu": Metric(_bleu, ("bleu1", "bleu2", "bleu3", "bleu4"), _REFERENCES),
    "meteor": Metric(_meteor, needs=_REFERENCES),
    "meteor_vist": Metric(_meteor_vist, tuple(_VIST_TASKS), _REFERENCES),
    "rouge": Metric(_rouge, tuple(_ROUGE), _REFERENCES),
    "rouge_l": Metric(_rouge_l, needs=_REFERENCES),
    "cider": Metric(_cider, needs=_REFERENCES),
    "content_f1": Metric(_content_f1, needs=_REFERENCES),
    "diversity": Metric(_diversity, ("distinct1", "distinct2", "vocabulary", "length")),
    "novelty": Metric(_novelty, needs=("training_texts",)),
    "novel_ngrams": Metric(
        _novel_ngrams, ("novel1", "novel2", "novel3", "novel4"), ("references", "sources")
    ),
    "copying": Metric(_copying, ("copied_words", "copied_share"), ("copied_runs",)),
    "sentences": Metric(
        _sentences, ("words_per_sentence", *_REPETITIONS, "shared_trigrams"), ("sentences",)
    ),
    "self_bleu": Metric(_self_bleu),
    "seq_rep": Metric(_seq_rep, tuple(f"seq_rep{n}" for n in range(1, NGRAMS + 1))),
    "first_distinct": Metric(_first_distinct, ("first_distinct1", "first_distinct2")),
}
# field of TokenizedItems -> note of the rows that lack it
LACKING = {
    "training_texts": "needs --data with a training split",
    "copied_runs": "needs --data with a training split",
    "sources": "needs --data with transcripts",
    "sentences": "needs separators between sentences",
}


def names_of_figures(name: str, table: Mapping[str, Metric] = METRICS) -> tuple[str, ...]:
    return table[name].figures or (name,)


def score_texts(items: TokenizedItems, metrics: Sequence[str]) -> list[Row]:
    """Compute the table lines of the scores of each metric, in the order of ``metrics``, which are
    keys of :data:`METRICS`."""
    rows: list[Row] = []
    for name in metrics:
        metric = METRICS[name]
        notes = [LACKING[x] for x in metric.needs if x in LACKING and getattr(items, x) is None]
        try:
            rows += [] if notes else metric.compute(items)
        except UserError as error:  # without METEOR's tables, other metrics are still computed
            notes = [str(error)]
        if notes:
            rows += [Row(x, None, signature(x), 0, notes[0]) for x in names_of_figures(name)]
    return rows
