"""The table of metrics, and the figures that each makes."""

import sys

from fairseq_mm.metrics._meteor_tables import load_tables
from fairseq_mm.metrics.score_rows import TokenizedItems
from fairseq_mm.metrics.text_scores import FIGURES, METRICS


def test_the_table_names_the_figures_that_each_metric_makes(monkeypatch):
    load_tables.cache_clear()
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)  # METEOR's rows have no value
    items = TokenizedItems(
        hypotheses=[["a", "dog"], ["cats"]],
        references=[[["a", "dog"], ["dogs"]], [["a", "cat"]]],
        tokenization="none",
        texts=["a dog", "cats"],
        reference_texts=[["a dog", "dogs"], ["a cat"]],
    )
    for name, metric in METRICS.items():
        assert tuple(row.name for row in metric(items)) == FIGURES.get(name, (name,))
