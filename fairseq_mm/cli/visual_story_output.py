"""``fairseq-mm tell``: visual stories as text, as JSONL, as a table of several systems, and as
one HTML page with the images."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli.image_albums import Album
from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.inference.visual_storyteller import Story
    from fairseq_mm.report.visual_story_table import Strip

PEOPLE = "people"
# of the table where the output is no terminal, or a narrow one
_WIDE, _NARROWEST = 160, 12
SIDE = 400  # pixels of an image on the page


class Told(NamedTuple):
    """An album and its story by each system."""

    album: Album
    stories: "list[Story]"


def text_of(told: Told, *, has_heading: bool) -> str:
    """A sentence a line."""
    (story,) = told.stories
    return f"{_heading(told.album)}\n{story.text}\n" if has_heading else story.text


def table_of(told: Told, systems: Sequence[str], *, has_heading: bool) -> str:
    """A row a system and a column a sentence (Li et al. 2020, Figure 6); what people told first."""
    rows = [(PEOPLE, _as_read(reference)) for reference in told.album.references]
    rows += [(name, story.sentences) for name, story in zip(systems, told.stories)]
    table = _table(rows, _width_of_output())
    return f"{_heading(told.album)}\n{table}\n" if has_heading else table


def _heading(album: Album) -> str:
    return f"=== {album.item}: {' '.join(album.id.split())} ===\n"


def _as_read(sentences: Sequence[Sequence[str]]) -> list[str]:
    return [detokenize_story(list(words)).strip() for words in sentences]


def _width_of_output() -> int:
    is_screen = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size((_WIDE, 24)).columns if is_screen else _WIDE


def _table(rows: Sequence[tuple[str, Sequence[str]]], width: int) -> str:
    """
    Args:
        rows: name and sentences.
        width: of a line, in characters.
    """
    first = max(len(name) for name, _ in rows)
    count = max(len(sentences) for _, sentences in rows)
    column = max(_NARROWEST, (width - first) // count - 2)
    blocks = []
    for name, sentences in rows:
        cells = [[name]] + [textwrap.wrap(sentence, column) or [""] for sentence in sentences]
        height = max(map(len, cells))
        lines = []
        for line in range(height):
            words = [cell[line] if line < len(cell) else "" for cell in cells]
            padded = [words[0].ljust(first)] + [word.ljust(column) for word in words[1:]]
            lines.append("  ".join(padded).rstrip())
        blocks.append("\n".join(lines))
    rule = "-" * (first + count * (column + 2))
    return f"\n{rule}\n".join(blocks)


def entries_of(
    told: Told, systems: Sequence[str], facts: Sequence[Mapping[str, Any]], *, is_compared: bool
) -> list[str]:
    """JSON of each story. ``hypothesis`` is the story as the model wrote it, which
    ``fairseq-mm score`` reads.

    Args:
        told: the stories.
        systems: their names.
        facts: of each system.
        is_compared: entries name their system, and people's stories are entries, too.
    """
    album = told.album
    head = {"id": album.id, "item": album.item, "images": album.names}
    entries: list[dict[str, Any]] = []
    if is_compared:
        entries += [
            {**head, "system": PEOPLE, "sentences": _as_read(reference)}
            for reference in album.references
        ]
    for name, story, known in zip(systems, told.stories, facts):
        entry: dict[str, Any] = {**head, "system": name} if is_compared else dict(head)
        entry["sentences"] = story.sentences
        entry["hypothesis"] = story.line
        entry["words"] = sum(map(len, story.words))
        entry["score"] = round(story.score, 4)
        entries.append({**entry, **known})
    return [json.dumps(entry, ensure_ascii=False) for entry in entries]


class Page:
    """One HTML page with the images and their stories.

    Args:
        path: file to write.
        systems: names of the systems; their stories are shown with them where there are several.
        thumbnails: of images whose features are in a store; None where they are not known.
        card: what was run, name and value.
    """

    def __init__(
        self,
        path: Path,
        systems: Sequence[str],
        thumbnails: Optional[Any],
        card: Iterable[tuple[str, str]],
    ) -> None:
        self.path = path
        self.systems = systems
        self.thumbnails = thumbnails
        self.card = list(card)
        self._strips: list[Strip] = []
        self._uris: dict[str, str] = {}
        self.num_absent = 0

    def add(self, told: Told) -> None:
        """
        Raises:
            UserError: if an image cannot be read.
        """
        from fairseq_mm.report.visual_story_table import Strip, Telling

        album = told.album
        has_names = len(self.systems) > 1 or bool(album.references)
        tellings = [
            Telling(PEOPLE, _as_read(reference), by_people=True) for reference in album.references
        ]
        for name, story in zip(self.systems, told.stories):
            note = f"{story.score:.3f} a word" if has_names else ""
            tellings.append(Telling(name if has_names else "", story.sentences, note))
        title = "" if "\t" in album.id else album.id
        uris = [self._uri(album, place) for place in range(len(album.keys))]
        self._strips.append(Strip(title, [Path(x).name for x in album.names], uris, tellings))

    def _uri(self, album: Album, place: int) -> Optional[str]:
        from fairseq_mm.report.thumbnails import thumbnail_uri

        key = album.keys[place]
        if key is None:
            return None
        if key not in self._uris:
            image = album.images[place] if album.images else None
            if image is not None:
                self._uris[key] = thumbnail_uri(image, SIDE)
            elif self.thumbnails is not None and key in self.thumbnails:
                self._uris[key] = self.thumbnails.data_uri(key)
            else:
                self.num_absent += 1
                return None
        return self._uris[key]

    def check_images(self, names: str) -> None:
        """
        Raises:
            UserError: if images were given (``names``), but are none of the stories'.
        """
        if self.thumbnails is not None and not self._uris:
            raise UserError(f"--images {names}: has none of the stories' images.")

    def write(self) -> None:
        """
        Raises:
            UserError: if the file cannot be written.
        """
        from fairseq_mm.report.html_page import render_page, section, write_page
        from fairseq_mm.report.visual_story_table import stories_section

        number = len(self._strips)
        title = "A story of five images" if number == 1 else f"{number:,} visual stories"
        sections = [stories_section(self._strips), section("", "run.html", rows=self.card)]
        subtitle = f"told by {', '.join(self.systems)}"
        write_page(self.path, render_page(title, sections, subtitle=subtitle))
