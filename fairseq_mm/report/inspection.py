"""Makes the page sections of ``fairseq-mm inspect`` from :mod:`fairseq_mm.analysis`' results."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.metrics.gate_scores import Histogram
from fairseq_mm.report.gate_histogram import apart_section, histogram_section, statistics_section
from fairseq_mm.report.grid_arrows import WHOLE, Drawing, arrows_section, seen_box
from fairseq_mm.report.html_page import Section, section
from fairseq_mm.report.story_sections import (
    gates_section,
    likelihood_section,
    past_section,
    prompt_section,
)
from fairseq_mm.report.video_attention import Times, frames_section
from fairseq_mm.report.visual_story_sections import (
    EmbeddedImage,
    SentenceAttention,
    StoryRow,
    Strip,
    images_section,
    slices_section,
    stories_section,
    story_section,
)

# for annotations alone: these modules import torch and fairseq, which a page does not need
if TYPE_CHECKING:
    from fairseq_mm.analysis.story_inspection import Inspection
    from fairseq_mm.analysis.video_inspection import LineAttention
    from fairseq_mm.analysis.visual_story_inspection import VisualStoryInspection


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
        sections.append(past_section(story.head_figures()))
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

    Args:
        story: Inspection of the story.
        sentences: Words of each of the five sentences.
        images: Five images; None for an image that is not shown.
        names: Names of the images.
        title: Title of the section, plain text; empty for no title.
        shape: Rows and columns of the images' feature grids, on which arrows are drawn; None if
            the model has no non-local block.
        identity: Attributes of the feature store that describe the extractor.
    """
    texts = [detokenize_story(list(words)).strip() for words in sentences]
    uris = [None if image is None else image.uri for image in images]
    parts = [stories_section([Strip("", names, uris, [StoryRow("", texts)])])]
    if story.image_weights is not None:
        mask = story.image_padding_mask.tolist()
        attention = _split_by_sentence(texts, story, story.image_weights)
        parts.append(images_section(attention, images, image_padding_mask=mask))
    if story.slice_weights is not None:
        attention = _split_by_sentence(texts, story, story.slice_weights)
        parts.append(slices_section(attention, images))
    if shape is not None:
        drawings = [
            _drawing(place, similarities, names[place], images[place], shape, identity)
            for place, similarities in story.grids
        ]
        parts.append(arrows_section(drawings))
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


def _drawing(
    place: int,
    similarities: Any,
    name: str,
    image: Optional[EmbeddedImage],
    shape: tuple[int, int],
    identity: Mapping[str, Any],
) -> Drawing:
    from fairseq_mm.analysis.visual_story_inspection import most_varied, top_positions

    box = WHOLE if image is None else seen_box(identity, image.width, image.height)
    targets = [top_positions(similarities, start) for start in range(len(similarities))]
    start = most_varied(similarities)
    return Drawing(place, name, image, box, *shape, similarities, targets, start)


def make_video_section(
    attention: "LineAttention", transcript: str, facts: Mapping[str, Any], times: Times
) -> Section:
    """Return the page section of a video: its texts, and heat maps of the attention to its frames.

    Args:
        attention: Attention that was recorded for the video.
        transcript: Transcript of the video.
        facts: Dict with ``transcript_available`` (True if the video has a transcript) and, if they
            exist, ``reference`` (reference summary) and ``hypothesis`` (generated summary).
        times: Times of the frames.
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
    """Return page sections about the forget gate scores of videos: histogram and tables.

    Args:
        result: JSON object that ``fairseq-mm inspect --gates`` writes to the file of ``--json``.
    """
    edges, counts = result["histogram"]["edges"], result["histogram"]["counts"]
    available, apart = (
        Histogram(edges, counts[f"transcript {x}"]) for x in ("available", "not available")
    )
    sections = [histogram_section(available, apart), statistics_section(result["statistics"])]
    if len(result["layers"]) > 1:  # one gate has the figures of the first table
        sections.append(statistics_section(result["layers"], heading="By layer"))
    total = int(result["statistics"]["all"]["count"])
    return [*sections, apart_section(result["transcript not available"], total)]
