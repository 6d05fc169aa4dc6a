"""Makes the page sections of ``fairseq-mm inspect`` from :mod:`fairseq_mm.analysis`' results."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.report.figures import COLORS, Titles, draw
from fairseq_mm.report.html_page import Section, section
from fairseq_mm.report.video_attention import Times, frames_section
from fairseq_mm.report.visual_story_sections import (
    WHOLE,
    Drawing,
    EmbeddedImage,
    SentenceAttention,
    StoryRow,
    Strip,
    arrows_section,
    attention_section,
    seen_box,
    stories_section,
    story_section,
)

# for annotations alone: these modules import torch and fairseq, which a page does not need
if TYPE_CHECKING:
    from fairseq_mm.analysis.story_inspection import Inspection
    from fairseq_mm.analysis.video_inspection import LineAttention
    from fairseq_mm.analysis.visual_story_inspection import VisualStoryInspection

NEWLINE = "<newline>"
_BAR_HEIGHT = 44
_COLUMNS = 32  # number of words in a strip of the heat map


def make_story_sections(story: "Inspection") -> list[Section]:
    """Return page sections with gates, likelihood and attention at each word of a text."""
    words, is_known = story.words, story.is_known
    sections = []
    if story.gates is not None:
        sections.append(gates_section(words, is_known, story.gates))
    sections.append(likelihood_section(words, is_known, story.log_probs))
    if story.prompt_attention is not None:
        sections.append(prompt_section(words, story.prompt, story.prompt_attention))
    if story.past:
        heading = "Attention to the story so far"
        sections.append(section(heading, "story_past.html", rows=story.head_figures()))
    return sections


def make_visual_story_section(
    story: "VisualStoryInspection",
    sentences: Sequence[Sequence[str]],
    images: Sequence[Optional[EmbeddedImage]],
    names: Sequence[str],
    *,
    title: str,
    shape: Optional[tuple[int, int]],
    identity: Mapping[str, Any],
) -> Section:
    """Return the page section of a visual story.

    ``sentences`` are the words of the five sentences, ``names`` the names of the images. Arrows are
    drawn on feature grids of ``shape`` (rows and columns; None without a non-local block);
    ``identity`` are the attributes of the feature store that describe the extractor.
    """
    texts = [detokenize_story(list(words)).strip() for words in sentences]
    uris = [None if image is None else image.uri for image in images]
    parts = [stories_section([Strip("", names, uris, [StoryRow("", texts)])])]
    if story.image_weights is not None:
        mask = story.image_padding_mask.tolist()
        attention = _split_by_sentence(texts, story, story.image_weights)
        parts.append(attention_section(attention, images, image_padding_mask=mask))
    if story.slice_weights is not None:
        attention = _split_by_sentence(texts, story, story.slice_weights)
        parts.append(attention_section(attention, images))
    if shape is not None:
        parts.append(arrows_section(_draw_grids(story, images, names, shape, identity)))
    return story_section(title, images, parts)


def _split_by_sentence(
    texts: Sequence[str], story: "VisualStoryInspection", weights: Any
) -> list[SentenceAttention]:
    sentences = []
    for number, text in enumerate(texts):
        # a sentence has at least its end, so that each number occurs
        start = story.sentences.index(number)
        span = slice(start, start + story.sentences.count(number))
        sentences.append(
            SentenceAttention(
                text, story.words[span], story.is_known[span], story.log_probs[span], weights[span]
            )
        )
    return sentences


def _draw_grids(
    story: "VisualStoryInspection",
    images: Sequence[Optional[EmbeddedImage]],
    names: Sequence[str],
    shape: tuple[int, int],
    identity: Mapping[str, Any],
) -> list[Drawing]:
    from fairseq_mm.analysis.visual_story_inspection import most_varied, top_positions

    drawings = []
    for place, similarities in story.grids:
        image = images[place]
        box = WHOLE if image is None else seen_box(identity, image.width, image.height)
        targets = [top_positions(similarities, start) for start in range(len(similarities))]
        start = most_varied(similarities)
        drawings.append(
            Drawing(place, names[place], image, box, *shape, similarities, targets, start)
        )
    return drawings


def make_video_section(
    attention: "LineAttention", transcript: str, facts: Mapping[str, Any], times: Times
) -> Section:
    """Return the page section of a video: its texts, and heat maps of the attention to its frames.

    ``facts`` has ``transcript_available`` and, if they exist, ``reference`` and ``hypothesis``.
    """
    said = transcript if facts["transcript_available"] else "transcript not available"
    rows = [("transcript", said)]
    for name, label in (("reference", "reference"), ("hypothesis", "generated")):
        if name in facts:
            rows.append((label, facts[name]))
    if len(attention.gates):
        rows.append(("forget gate", f"{attention.gates.mean():.4f}"))
    # layers are averaged on the page; the JSON of --layers has every layer
    maps = []
    for side in attention.maps:
        part = frames_section(
            side.words,
            side.weights.mean(axis=0),
            times,
            is_known=side.is_known,
            sums_over_words=side.sums_over_words,
            video_shares=side.video_shares,
        )
        maps.append((f"Words of the {side.side}, {', '.join(side.layers)}", part))
    title = f"Line {attention.line}: {attention.id}, {attention.num_frames} frames"
    return section(title, "video_line.html", "video_attention.js", rows=rows, maps=maps)


def gate_sections(result: Mapping[str, Any]) -> list[Section]:
    """Return page sections with a histogram and tables of the videos' forget gate scores.
    ``result`` is the JSON object of ``fairseq-mm inspect --gates``."""
    edges, counts = result["histogram"]["edges"], result["histogram"]["counts"]
    both = counts["transcript available"], counts["transcript not available"]
    sections = [histogram_section(edges, *both), statistics_section(result["statistics"])]
    if len(result["layers"]) > 1:  # one gate has the figures of the first table
        sections.append(statistics_section(result["layers"], heading="By layer"))
    total = int(result["statistics"]["all"]["count"])
    rows = sorted(result["transcript not available"], key=lambda row: -row["score"])
    return [
        *sections,
        section("Transcript not available", "gate_apart.html", rows=rows, total=total),
    ]


class ShownWord(NamedTuple):
    """Word of a story, as the page shows it."""

    text: str  # plain text
    is_known: bool  # False to underline the word, because the dictionary does not contain it
    title: str  # text that is shown on hover
    bars: Sequence[float] = ()  # heights in pixels of the bars above the word
    # darkness of the word's background, from 0 (light) to 1; None for no background
    share: Optional[float] = None


def gates_section(words: Sequence[str], is_known: Sequence[bool], gates: np.ndarray) -> Section:
    """Return a page section with two bars above each of T words: the mean values ``[2, T]`` of the
    fusion gates. Figure 8 of Fan et al. 2018 shows the same values as two curves."""
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
    """Return a page section with the words on a background that is darker for less likely words."""
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
    """Return a page section with a heat map ``[T, S]`` of a story's attention to its prompt."""
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


def histogram_section(
    edges: Sequence[float], available: Sequence[int], unavailable: Sequence[int]
) -> Section:
    """Return a page section with a stacked histogram of forget gate scores, one score per video:
    videos with a transcript, and on top videos without."""

    def plot(axes: Any) -> Titles:
        titles = {}
        width = edges[1] - edges[0]
        for name, counts, bottom, color in (
            ("transcript available", available, [0] * len(edges), COLORS["accent"]),
            ("transcript not available", unavailable, available, COLORS["second"]),
        ):
            bins = [i for i, count in enumerate(counts) if count]
            bars = axes.bar(
                [edges[i] for i in bins],
                [counts[i] for i in bins],
                0.9 * width,
                [bottom[i] for i in bins],
                align="edge",
                color=color,
                edgecolor=color,  # a bar of one video among thousands is thinner than a pixel
                label=name if bins else "",  # no entry in the legend
            )
            # an id for each bar: the bars of one call are no group in the SVG
            for i, bar in zip(bins, bars):
                bar.set_gid(f"{color[1:]}-{i}")
                low, high = edges[i : i + 2]
                count, without = available[i] + unavailable[i], unavailable[i]
                title = f"{low:g} to {high:g}: {count:,} video{'s' * (count != 1)}"
                title += f", {without} without a transcript" if without else ""
                titles[bar.get_gid()] = [title]
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("mean of the forget gate")
        axes.set_ylabel("videos")
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y")
        if any(unavailable):
            axes.legend()
        return titles

    heading = "Forget gate scores"
    return section(heading, "figures.html", figures=[draw(plot, 10.5, 4.4, heading)], note="")


def statistics_section(
    groups: Mapping[str, Mapping[str, float]], *, heading: str = "In figures"
) -> Section:
    """Return a page section with a table of :func:`.gate_statistics`, a row per group or layer."""
    names = list(next(iter(groups.values())))
    return section(heading, "gate_statistics.html", names=names, groups=groups)
