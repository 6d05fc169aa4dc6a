"""Rows of what only stories are measured by: copies of training text, repetition of sentences."""

from collections.abc import Sequence
from functools import partial
from typing import Callable, Optional

import numpy as np

from fairseq_mm.metrics.score_rows import Row, TokenizedItems, Tokens, mean_of_sums, mean_row
from fairseq_mm.metrics.sentence_repetition import (
    repeated_sentences,
    repeated_share,
    shared_between_stories,
)


def copying_rows(items: TokenizedItems) -> list[Row]:
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
        mean_row("copied_words", lengths, signs["copied_words"], note),
        mean_row("copied_share", shares, signs["copied_share"]),
    ]


_REPETITIONS: dict[str, Callable[[Sequence[Tokens]], Optional[float]]] = {
    "repeated_words": partial(repeated_share, n=1),
    "repeated_trigrams": partial(repeated_share, n=3),
    "repeated_sentences": repeated_sentences,
}


def sentence_rows(items: TokenizedItems) -> list[Row]:
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
        name,
        mean_of_sums(sums.sum(0)),
        sign,
        scored,
        note,
        sums=sums,
        statistic=mean_of_sums,
        per_item=values,
    )


def _sentence_length(
    stories: Sequence[Sequence[Tokens]], written: Sequence[Sequence[Tokens]], sign: str
) -> Row:
    def sums_of(stories: Sequence[Sequence[Tokens]]) -> np.ndarray:
        return np.array([[sum(map(len, s)), len(s)] for s in stories], dtype=float).reshape(-1, 2)

    sums = sums_of(stories)
    counts = f"{sums[:, 1].min():.0f} to {sums[:, 1].max():.0f} sentences a story"
    people = f", people: {mean_of_sums(sums_of(written).sum(0)):.2f}" if written else ""
    return Row(
        "words_per_sentence",
        mean_of_sums(sums.sum(0)),
        sign,
        len(sums),
        counts + people,
        sums=sums,
        statistic=mean_of_sums,
        per_item=[mean_of_sums(story) for story in sums],
    )
