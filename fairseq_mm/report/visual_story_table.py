"""Visual stories: the images side by side, and under each its sentence of every story.

One story reads as a strip of images. Several of the same images, by different systems and by
people, are the table of Figure 6 of Li et al. 2020, Transtory-XL (section 5.3): a row a system, a
column a sentence.
"""

from collections.abc import Sequence
from typing import NamedTuple, Optional

from fairseq_mm.report.html_page import Section, section


class StoryRow(NamedTuple):
    """Row of the table.

    Attributes:
        name: Name of the system, or of people's stories; empty for a single story.
        sentences: Detokenized sentences, one per image.
        note: Plain text under the name.
        by_people: True if people wrote the story.
    """

    name: str
    sentences: Sequence[str]
    note: str = ""
    by_people: bool = False


class Strip(NamedTuple):
    """Images and their stories.

    Attributes:
        title: Plain text.
        keys: Names of the images.
        images: Data URIs of the images; None for an image that is not shown.
        rows: One row or more.
        note: Plain text beside the title.
    """

    title: str
    keys: Sequence[str]
    images: Sequence[Optional[str]]
    rows: Sequence[StoryRow]
    note: str = ""


def stories_section(strips: Sequence[Strip], *, heading: str = "") -> Section:
    """Return the strips, one below the other.

    Args:
        strips: Strips in the order of the page.
        heading: Plain text.
    """
    return section(heading, "visual_stories.html", strips=strips)
