"""Visual stories: the images side by side, and under each its sentence of every story.

One story reads as a strip of images. Several of the same images, by different systems and by
people, are the table of Figure 6 of Li et al. 2020, Transtory-XL (section 5.3): a row a system, a
column a sentence.
"""

from collections.abc import Sequence
from typing import NamedTuple, Optional

from fairseq_mm.report.html_page import Section, section


class StoryRow(NamedTuple):
    """A row of the table.

    Attributes:
        name: of the system, or what people's stories are called; empty for a story alone.
        sentences: as people read them, one an image.
        note: plain text under the name.
        by_people: written by people.
    """

    name: str
    sentences: Sequence[str]
    note: str = ""
    by_people: bool = False


class Strip(NamedTuple):
    """Images and their stories.

    Attributes:
        title: plain text.
        keys: names of the images.
        images: their data URIs; None where there is none to show.
        rows: at least one.
        note: plain text beside the title.
    """

    title: str
    keys: Sequence[str]
    images: Sequence[Optional[str]]
    rows: Sequence[StoryRow]
    note: str = ""


def stories_section(strips: Sequence[Strip], *, heading: str = "") -> Section:
    """The strips, one below the other.

    Args:
        strips: in the order of the page.
        heading: plain text.
    """
    return section(heading, "visual_stories.html", strips=strips)
