"""The table of metrics names the scores that each metric makes."""

import sys

from fairseq_mm.metrics._meteor_tables import load_tables
from fairseq_mm.metrics.score_rows import TokenizedItems
from fairseq_mm.metrics.text_scores import METRICS, names_of_figures, score_texts


def test_the_table_names_the_figures_that_each_metric_makes(monkeypatch):
    load_tables.cache_clear()
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    words = ["a", "dog", "runs", "on", "the", "green", "grass", "now"]
    sources = {"sources": [words], "training_texts": [words], "sentences": [[words, words]]}
    for given in ({}, sources):
        items = TokenizedItems([words], [[words]], "ptb", **given)
        for name in METRICS:
            rows = score_texts(items, [name])
            assert tuple(row.name for row in rows) == names_of_figures(name)
            assert all(row.value is not None or row.note for row in rows)
