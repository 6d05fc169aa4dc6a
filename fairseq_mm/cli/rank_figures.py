"""Figures of a ranking, as JSON and as a table."""

from typing import Any

# name in ranks.json -> title in the table
TITLES = {
    "image_retrieval": "images for a sentence",
    "sentence_retrieval": "sentences for an image",
    "sentence_retrieval_shortlist": "sentences for an image, shortlist",
}


def figures_of(summary: Any) -> dict[str, Any]:
    """As JSON, of a ``RankSummary``."""
    return {
        "recall_at": {str(k): value for k, value in summary.recall_at.items()},
        "median_rank": summary.median_rank,
        "mean_rank": summary.mean_rank,
        "queries": summary.queries,
        "candidates": summary.candidates,
    }


def print_figures(figures: dict[str, dict[str, Any]], rsum: float) -> None:
    """The table on stdout, a task a line."""
    width = max(len(TITLES[name]) for name in figures)
    print(f"{'':{width}}    R@1    R@5   R@10   Med r  mean r  queries  candidates")
    for name, entry in figures.items():
        recall = " ".join(f"{value:6.1f}" for value in entry["recall_at"].values())
        print(
            f"{TITLES[name]:{width}} {recall} {entry['median_rank']:7.4g} "
            f"{entry['mean_rank']:7.1f} {entry['queries']:8} {entry['candidates']:11.6g}"
        )
    print(f"rsum {rsum:.1f}")
