"""Shows visual stories as sections of a page (Li et al. 2020, Transtory-XL).

A table shows the images side by side. Each row below has one story, with the sentence of an image
below that image (Figure 6 there). Heat maps show the attention of each word to the five images
(Figure 5 there), or to the slices of an image: vectors that are computed from its feature vector.
"""

from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.report.html_page import Section, section

_LINE = 104  # width of a line of words, in letters
_LEAST = 5  # width of the column of a short word, in letters


class EmbeddedImage(NamedTuple):
    """Image inside a page."""

    uri: str  # data URI of a small JPEG
    width: int  # width of the original image in pixels
    height: int  # height of the original image in pixels


class StoryRow(NamedTuple):
    """Story, a row of a table whose columns are images."""

    name: str  # name of the system that wrote the story; empty if the table has a single story
    sentences: Sequence[str]  # detokenized sentences, one per image
    note: str = ""  # plain text beside the sentences
    by_people: bool = False  # True for a story that people wrote


class Strip(NamedTuple):
    """Table of one image sequence and its stories."""

    title: str  # title of the table, plain text
    keys: Sequence[str]  # names of the images
    images: Sequence[Optional[str]]  # data URIs of the images; None for an image that is not shown
    rows: Sequence[StoryRow]  # stories, at least one; each is a row of the table


def stories_section(strips: Sequence[Strip]) -> Section:
    """Return a page section with one table per image sequence (``strips``), one below the other."""
    return section("", "visual_stories.html", strips=strips)


class SentenceAttention(NamedTuple):
    """Sentence of W words and the attention of each word; the sentence's end counts as a word."""

    text: str  # detokenized sentence
    words: Sequence[str]  # W words; the last is ``<sent>`` or ``</s>``
    # [W] False to underline the word, because the dictionary does not contain it
    is_known: Sequence[bool]
    log_probs: np.ndarray  # [W] natural logarithms of the words' probabilities
    # [W, N] attention weights of the N images, or of the N slices of an image's vector
    weights: np.ndarray


def images_section(
    sentences: Sequence[SentenceAttention],
    images: Sequence[Optional[EmbeddedImage]],
    *,
    image_padding_mask: Sequence[bool],
) -> Section:
    """Return a page section with each word's attention to the images, one sentence per image;
    ``image_padding_mask`` is True for images that were missing in the model's input."""
    note = (
        "Per cent of a word's attention that an image gets, where the word is written (mean over "
        "heads, last layer). A blue frame marks the image of the sentence, dotted "
        "underlines words that are not in the dictionary."
    )
    heading = "Attention to the images"
    return _attention(heading, sentences, images, note, image_padding_mask=image_padding_mask)


def slices_section(
    sentences: Sequence[SentenceAttention], images: Sequence[Optional[EmbeddedImage]]
) -> Section:
    """Return a page section with each word's attention to the slices of its image's vector."""
    note = (
        "Per cent of a word's attention that a slice of its image's vector gets. The first word of "
        "a sentence attends to all alike; dotted underlines mark words that are not in the "
        "dictionary."
    )
    heading = "Attention to the slices of an image's vector"
    return _attention(heading, sentences, images, note)


def _attention(
    heading: str,
    sentences: Sequence[SentenceAttention],
    images: Sequence[Optional[EmbeddedImage]],
    note: str,
    *,
    image_padding_mask: Optional[Sequence[bool]] = None,
) -> Section:
    return section(
        heading,
        "image_attention.html",
        sentences=sentences,
        images=images,
        note=note,
        of_images=image_padding_mask is not None,
        image_padding_mask=image_padding_mask,
        # one scale of colours for all sentences, so that they can be compared
        strongest=max(float(sentence.weights.max()) for sentence in sentences),
        # a template cannot import functions
        lines_of_words=break_into_lines,
        exp=np.exp,
    )


def break_into_lines(words: Sequence[str]) -> list[range]:
    """Break words into lines that fit the page's width; return the words' indices in each line."""
    # lines are broken here because each has its own table, with a row per image
    lines, start, width = [], 0, 0
    for t, word in enumerate(words):
        letters = max(len(word), _LEAST) + 1
        if width + letters > _LINE and t > start:  # a word beyond the width has its own line
            lines.append(range(start, t))
            start, width = t, 0
        width += letters
    return [*lines, range(start, len(words))]


def story_section(
    title: str, images: Sequence[Optional[EmbeddedImage]], parts: Sequence[Section]
) -> Section:
    """Join the parts of one visual story to one section, in which each image's data is only
    once."""
    # a data URI is long: each image is in the page once, as a variable of the style sheet
    scripts = dict.fromkeys(name for part in parts for name in part.scripts)
    return section(title, "story_parts.html", *scripts, images=images, parts=parts)
