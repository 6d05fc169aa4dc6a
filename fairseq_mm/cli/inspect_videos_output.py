"""``fairseq-mm inspect`` of models that summarise videos: attention and gates as JSON and HTML."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.metrics.gate_scores import (
    bin_edges,
    descending_ranks,
    gate_histogram,
    gate_statistics,
)

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.analysis.video_inspection import AttentionMap, GateScores, LineAttention
    from fairseq_mm.report.html_page import Section
    from fairseq_mm.report.video_attention import Times

ALL, AVAILABLE, APART = "all", "transcript available", "transcript not available"


class Texts(NamedTuple):
    """What is known of a line.

    Attributes:
        is_available: there is a transcript.
        hypothesis: generated summary, or None.
        reference: what people wrote, or None.
    """

    is_available: bool
    hypothesis: Optional[str]
    reference: Optional[str]


def _rounded(x: Any) -> Any:
    """Floats of nested lists to six digits after the point."""
    if isinstance(x, list):
        return [_rounded(part) for part in x]
    return round(float(x), 6)


def gate_entries(found: "GateScores", texts: Sequence[Texts]) -> list[dict[str, Any]]:
    """An object a video, see the docstring of ``fairseq_mm.cli.inspect``."""
    by_layer = [dict(zip(found.layers, _rounded(scores.tolist()))) for scores in found.by_layer]
    return [
        {
            "id": found.ids[i],
            "item": int(found.lines[i]),
            "transcript_available": texts[i].is_available,
            "score": _rounded(found.scores[i]),
            "layers": by_layer[i],
            **_given(texts[i]),
        }
        for i in range(len(found.ids))
    ]


def _given(texts: Texts) -> dict[str, str]:
    named = {"hypothesis": texts.hypothesis, "reference": texts.reference}
    return {name: text for name, text in named.items() if text is not None}


def gate_result(
    found: "GateScores", texts: Sequence[Texts], entries: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Statistics and histograms of all videos, of those with a transcript and of the others, and
    the others themselves, of which ``entries`` are :func:`gate_entries`."""
    import numpy as np

    scores = found.scores
    is_apart = np.array([not text.is_available for text in texts])
    edges = bin_edges(scores)
    groups = {
        ALL: np.ones(len(scores), bool),
        AVAILABLE: ~is_apart,
        APART: is_apart,
    }
    ranks = descending_ranks(scores)
    return {
        "statistics": {
            name: _figures(scores[chosen]) for name, chosen in groups.items() if chosen.any()
        },
        "layers": {name: _figures(found.by_layer[:, i]) for i, name in enumerate(found.layers)},
        "histogram": {
            "edges": edges,
            "counts": {
                name: gate_histogram(scores[chosen], edges).counts
                for name, chosen in groups.items()
            },
        },
        APART: [{**entries[i], "rank": ranks[i]} for i in np.flatnonzero(is_apart).tolist()],
    }


def _figures(scores: "np.ndarray") -> dict[str, float]:
    figures = gate_statistics(scores)
    return {name: x if name == "count" else _rounded(x) for name, x in figures.items()}


def summary_lines(result: dict[str, Any]) -> list[str]:
    """Statistics, and the videos without a transcript, for a terminal."""
    rows = dict(result["statistics"])
    if len(result["layers"]) > 1:
        rows.update(result["layers"])
    width = max(map(len, rows))
    lines = [" ".join([" " * width, *(f"{name:>7}" for name in rows[ALL])])]
    for group, figures in rows.items():
        cells = (f"{x:>7d}" if name == "count" else f"{x:>7.4f}" for name, x in figures.items())
        lines.append(" ".join([f"{group:<{width}}", *cells]))
    total = rows[ALL]["count"]
    for entry in sorted(result[APART], key=lambda entry: entry["rank"]):
        lines.append(
            f"{entry['id']}: {APART}, score {entry['score']:.4f}, rank {entry['rank']} of {total}"
        )
        lines += [
            f"  {name}: {entry[name]}" for name in ("hypothesis", "reference") if name in entry
        ]
    return lines


def gate_page(found: "GateScores", result: dict[str, Any], about: str) -> str:
    """The page of :func:`gate_result`."""
    from fairseq_mm.metrics.gate_scores import Histogram
    from fairseq_mm.report.gate_histogram import (
        ApartRow,
        apart_section,
        histogram_section,
        statistics_section,
    )
    from fairseq_mm.report.html_page import render_page

    edges, counts = result["histogram"]["edges"], result["histogram"]["counts"]
    sections = [
        histogram_section(Histogram(edges, counts[AVAILABLE]), Histogram(edges, counts[APART])),
        statistics_section(result["statistics"]),
    ]
    if len(result["layers"]) > 1:
        sections.append(statistics_section(result["layers"], heading="By layer"))
    rows = [ApartRow(*map(entry.get, ApartRow._fields)) for entry in result[APART]]
    sections.append(apart_section(rows, len(found.ids)))
    return render_page(
        "Forget gates",
        sections,
        subtitle=f"{about}. Each video's score is the mean of the gate over the text's tokens and "
        "the feature dimensions: 0 nothing of what is read in the video gets through, 1 all of it.",
    )


def attention_entry(
    found: "LineAttention",
    gate_layers: Sequence[str],
    texts: Texts,
    step: Optional[float],
    *,
    layers: bool,
) -> dict[str, Any]:
    """An object a line, see the docstring of ``fairseq_mm.cli.inspect``.

    Args:
        found: in it.
        gate_layers: names of its gates.
        texts: of it.
        step: seconds from one frame to the next, or None.
        layers: with each layer's weights.
    """
    result: dict[str, Any] = {
        "id": found.id,
        "item": found.line,
        "frames": found.num_frames,
        "seconds_per_frame": None if step is None else round(step, 6),
        "transcript_available": texts.is_available,
        **_given(texts),
        "attention": [
            {
                "of": side.side,
                "layers": side.layers,
                "sums_over": "words" if side.sums_over_words else "frames",
                "words": _word_entries(side, layers=layers),
            }
            for side in found.maps
        ],
    }
    if len(found.gates):
        result["gates"] = dict(zip(gate_layers, _rounded(found.gates.tolist())))
    return result


def _word_entries(side: "AttentionMap", *, layers: bool) -> list[dict[str, Any]]:
    mean = _rounded(side.weights.mean(axis=0).tolist())
    entries = []
    for w, word in enumerate(side.words):
        entry = {"word": word, "known": side.is_known[w], "weights": mean[w]}
        if side.video_shares is not None:
            entry["video_share"] = _rounded(side.video_shares[w])
        if layers:
            entry["layers"] = _rounded(side.weights[:, w].tolist())
        entries.append(entry)
    return entries


def line_section(
    found: "LineAttention", transcript: str, texts: Texts, times: "Times"
) -> "Section":
    """All that is shown of a line."""
    from fairseq_mm.report.html_page import section
    from fairseq_mm.report.video_attention import watching_section

    rows = [("transcript", transcript if texts.is_available else APART)]
    if texts.reference is not None:
        rows.append(("reference", texts.reference))
    if texts.hypothesis is not None:
        rows.append(("generated", texts.hypothesis))
    if len(found.gates):
        rows.append(("forget gate", f"{found.gates.mean():.4f}"))
    maps = []
    for side in found.maps:
        part = watching_section(
            side.words,
            side.weights.mean(axis=0),
            times,
            is_known=side.is_known,
            sums_over_words=side.sums_over_words,
            video_shares=side.video_shares,
        )
        maps.append((f"Words of the {side.side}, {', '.join(side.layers)}", part))
    return section(
        f"Line {found.line}: {found.id}, {found.num_frames} rows of features",
        "video_line.html",
        "video_attention.js",
        rows=rows,
        maps=maps,
    )
