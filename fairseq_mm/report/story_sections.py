"""One story's words with gates, likelihood and attention, as sections of a page."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Optional

import numpy as np

from fairseq_mm.report.html_page import Section

NEWLINE = "<newline>"
_BAR_HEIGHT = 44
_COLUMN, _ROW, _LABELS, _TOP = 26, 18, 130, 74  # pixels of the heat map
_COLUMNS = 32
_FAINT = 0.02  # cells of less than this share of the strongest are left out

_FLOW_STYLE = """
.flow { display: flex; flex-wrap: wrap; gap: .5rem .15rem; align-items: flex-end; }
.flow .break { flex-basis: 100%; height: 0; }
.flow .word { display: inline-flex; flex-direction: column; align-items: center;
  padding: 0 .15rem; border-radius: .2rem; }
.flow .unknown b { text-decoration: underline dotted; }
.flow .word b { font-weight: 400; white-space: nowrap; }
.flow .newline b { color: var(--quiet); }
.flow .bars { display: flex; gap: 2px; align-items: flex-end; border-bottom: 1px solid var(--line);
  min-width: 20px; justify-content: center; }
.flow .bars i { width: 8px; display: block; }
.first { background: var(--second); } .second { background: var(--accent); }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; }
.legend i:first-child { margin-left: 0; }
"""
_HEAT_STYLE = """
.heat { overflow-x: auto; }
.heat svg { display: block; margin-bottom: .75rem;
  font: 12px system-ui, "DejaVu Sans", sans-serif; }
.heat text { fill: var(--text); } .heat rect { fill: var(--accent); }
.heat .frame { fill: none; stroke: var(--line); }
"""


def gates_section(words: Sequence[str], is_known: Sequence[bool], gates: np.ndarray) -> Section:
    """Two bars over each word, as Figure 8 of Fan et al. 2018 has two curves.

    Args:
        words: T.
        is_known: unknown words are underlined.
        gates: ``[2, T]``.
    """
    low, high = float(gates.min()), float(gates.max())
    span = max(high - low, 1e-6)

    def bars(place: int) -> str:
        heights = 3 + (gates[:, place] - low) / span * _BAR_HEIGHT
        return "".join(
            f'<i class="{name}" style="height:{height:.0f}px"></i>'
            for name, height in zip(("first", "second"), heights)
        )

    titles = [f"g1 {g1:.3f}, g2 {g2:.3f}" for g1, g2 in gates.T]
    body = [f'<span class="bars">{bars(place)}</span>' for place in range(len(words))]
    legend = (
        f'<p class="legend quiet"><i class="first"></i>g1, of the model in training (mean '
        f'{gates[0].mean():.3f})<i class="second"></i>g2, of the pretrained model (mean '
        f"{gates[1].mean():.3f}). Means over channels where the word is written; bars go from "
        f"{low:.3f} to {high:.3f}.</p>"
    )
    return Section("Fusion gates", legend + _flow(words, is_known, titles, body), _FLOW_STYLE)


def likelihood_section(
    words: Sequence[str], is_known: Sequence[bool], log_probs: np.ndarray
) -> Section:
    """Words, the darker the less likely.

    Args:
        words: T.
        is_known: unknown words are underlined.
        log_probs: ``[T]`` natural.
    """
    bits = np.abs(log_probs) / np.log(2)
    strongest = max(float(bits.max()), 1e-6)
    titles = [f"{value:.1f} bits" for value in bits]
    styles = [
        f"background:color-mix(in srgb, var(--second) {100 * value / strongest * 0.7:.0f}%, "
        "transparent)"
        for value in bits
    ]
    note = (
        f'<p class="quiet">Mean {bits.mean():.2f} bits a word (perplexity '
        f"{2 ** bits.mean():.1f}); the darkest has {strongest:.1f}. Underlined words are not in "
        "the dictionary.</p>"
    )
    body = _flow(words, is_known, titles, [""] * len(words), styles)
    return Section("Likelihood", note + body, _FLOW_STYLE)


def prompt_section(words: Sequence[str], prompt: Sequence[str], weights: np.ndarray) -> Section:
    """Heat maps: words of the prompt by words of the story.

    Args:
        words: T.
        prompt: S.
        weights: ``[T, S]``.
    """
    strongest = max(float(weights.max()), 1e-9)
    maps = [
        _heat_map(words[i : i + _COLUMNS], prompt, weights[i : i + _COLUMNS] / strongest)
        for i in range(0, len(words), _COLUMNS)
    ]
    note = (
        '<p class="quiet">Mean over layers and heads; the darkest cell is '
        f"{strongest:.2f} of a word's attention.</p>"
    )
    return Section(
        "Attention to the prompt", f'{note}<div class="heat">{"".join(maps)}</div>', _HEAT_STYLE
    )


def past_section(rows: Sequence[Mapping[str, Optional[float]]]) -> Section:
    """Table of self-attention.

    Args:
        rows: ``layer``, ``head``, ``stride``, ``zero``, ``distance`` (None where a head never
            leaves the zero slot).
    """
    head = "".join(
        f'<th class="number">{name}</th>'
        for name in ("layer", "head", "sees every", "nothing", "distance")
    )
    body = ""
    for row in rows:
        distance = row["distance"]
        cells = (
            f"{row['layer']:.0f}",
            f"{row['head']:.0f}",
            f"{row['stride']:.0f}",
            f"{row['zero']:.1%}",
            "-" if distance is None else f"{distance:.1f}",
        )
        body += "<tr>" + "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>"
    note = (
        '<p class="quiet">Means over words: the share of the slot that holds nothing, and how '
        "many words back the rest lies.</p>"
    )
    return Section("Attention to the story so far", f"{note}<table><tr>{head}</tr>{body}</table>")


def _shown(word: str) -> str:
    return escape("↵ " + word if word == NEWLINE else word)


def _flow(
    words: Sequence[str],
    is_known: Sequence[bool],
    titles: Sequence[str],
    above: Sequence[str],
    styles: Optional[Sequence[str]] = None,
) -> str:
    parts = []
    for i, word in enumerate(words):
        kind = "word" + ("" if is_known[i] else " unknown")
        kind += " newline" if word == NEWLINE else ""
        style = "" if styles is None else f' style="{styles[i]}"'
        title = escape(f"{word}: {titles[i]}")
        parts.append(
            f'<span class="{kind}" title="{title}"{style}>{above[i]}<b>{_shown(word)}</b></span>'
        )
        if word == NEWLINE:
            parts.append('<span class="break"></span>')
    return f'<div class="flow">{"".join(parts)}</div>'


def _heat_map(words: Sequence[str], prompt: Sequence[str], shares: np.ndarray) -> str:
    """One strip; ``shares`` is ``[words, prompt]`` between 0 and 1."""
    width, height = _LABELS + _COLUMN * len(words) + 60, _TOP + _ROW * len(prompt)
    parts = [f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}">']
    for s, word in enumerate(prompt):
        y = _TOP + _ROW * s + 13
        parts.append(
            f'<text x="{_LABELS - 6}" y="{y}" text-anchor="end">{_clipped(word, 18)}</text>'
        )
    for t, word in enumerate(words):
        x = _LABELS + _COLUMN * t
        turned = f"translate({x + 15} {_TOP - 6}) rotate(-50)"
        parts.append(f'<text transform="{turned}">{_clipped(word, 13)}</text>')
        for s in np.flatnonzero(shares[t] >= _FAINT).tolist():
            parts.append(
                f'<rect x="{x + 1}" y="{_TOP + _ROW * s + 1}" width="{_COLUMN - 2}" '
                f'height="{_ROW - 2}" fill-opacity="{shares[t, s]:.2f}"/>'
            )
    parts.append(
        f'<rect class="frame" x="{_LABELS}" y="{_TOP}" width="{_COLUMN * len(words)}" '
        f'height="{_ROW * len(prompt)}"/></svg>'
    )
    return "".join(parts)


def _clipped(word: str, length: int) -> str:
    return escape(word if len(word) <= length else word[: length - 1] + "…")
