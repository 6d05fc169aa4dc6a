"""Makes page sections with gates, likelihood and attention at each word of a story."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.report.html_page import Section, section

NEWLINE = "<newline>"
_BAR_HEIGHT = 44
_COLUMNS = 32  # number of words in a strip of the heat map


class ShownWord(NamedTuple):
    """Word of a story as the page shows it.

    Attributes:
        text: Plain text.
        is_known: False to underline the word, because the dictionary does not contain it.
        title: Text that is shown on hover.
        bars: Heights in pixels of the bars above the word.
        share: Darkness of the word's background, from 0 (light) to 1; None for no background.
    """

    text: str
    is_known: bool
    title: str
    bars: Sequence[float] = ()
    share: Optional[float] = None


def gates_section(words: Sequence[str], is_known: Sequence[bool], gates: np.ndarray) -> Section:
    """Return a page section with two bars above each word: the values of the two fusion gates.

    Figure 8 of Fan et al. 2018 shows the same values as two curves.

    Args:
        words: T words.
        is_known: [T] False to underline the word, because the dictionary does not contain it.
        gates: [2, T] mean values of the gates g1 and g2 at each word, 0 to 1.
    """
    # not from 0 to 1: means over channels differ little, and the bars would look alike
    low, high = float(gates.min()), float(gates.max())
    heights = 3 + (gates - low) / max(high - low, 1e-6) * _BAR_HEIGHT
    shown = [
        ShownWord(word, known, f"g1 {g1:.3f}, g2 {g2:.3f}", bars)
        for word, known, (g1, g2), bars in zip(words, is_known, gates.T, heights.T.tolist())
    ]
    legend = (
        f"g1, of the model in training (mean {gates[0].mean():.3f})",
        f"g2, of the pretrained model (mean {gates[1].mean():.3f}). Means over channels where the "
        f"word is written; bars go from {low:.3f} to {high:.3f}.",
    )
    return _words("Fusion gates", shown, legend=legend)


def likelihood_section(
    words: Sequence[str], is_known: Sequence[bool], log_probs: np.ndarray
) -> Section:
    """Return a page section with the words on a background that is darker for less likely words.

    Args:
        words: T words.
        is_known: [T] False to underline the word, because the dictionary does not contain it.
        log_probs: [T] natural logarithms of the words' probabilities.
    """
    bits = np.abs(log_probs) / np.log(2)  # abs: a probability of 1 would read as -0.0 bits
    strongest = max(float(bits.max()), 1e-6)
    shown = [
        ShownWord(word, known, f"{value:.1f} bits", share=value / strongest)
        for word, known, value in zip(words, is_known, bits.tolist())
    ]
    note = (
        f"Mean {bits.mean():.2f} bits a word (perplexity {2 ** bits.mean():.1f}); the darkest has "
        f"{strongest:.1f}. Underlined words are not in the dictionary."
    )
    return _words("Likelihood", shown, note=note)


def _words(
    heading: str, shown: Sequence[ShownWord], *, legend: Sequence[str] = (), note: str = ""
) -> Section:
    return section(
        heading, "story_words.html", words=shown, legend=legend, note=note, newline=NEWLINE
    )


def prompt_section(words: Sequence[str], prompt: Sequence[str], weights: np.ndarray) -> Section:
    """Return a page section with a heat map of the attention of a story's words to its prompt.

    Args:
        words: T words of the story.
        prompt: S words of the story's prompt.
        weights: [T, S] attention weights.
    """
    strongest = max(float(weights.max()), 1e-9)
    # a table as wide as a story would need scrolling, and hide the words of the prompt on its left
    strips = [
        (words[i : i + _COLUMNS], (weights[i : i + _COLUMNS] / strongest).tolist())
        for i in range(0, len(words), _COLUMNS)
    ]
    return section(
        "Attention to the prompt",
        "story_prompt.html",
        strongest=strongest,
        strips=strips,
        prompt=prompt,
    )


def past_section(rows: Sequence[Mapping[str, Optional[float]]]) -> Section:
    """Return a page section with a table of self-attention, one row per layer and head.

    Args:
        rows: Result of :meth:`fairseq_mm.analysis.story_inspection.Inspection.head_figures`.
    """
    return section("Attention to the story so far", "story_past.html", rows=rows)
