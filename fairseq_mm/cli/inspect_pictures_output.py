"""``fairseq-mm inspect`` of models that tell stories of five pictures: what was seen, as JSON and
as one HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli.picture_albums import Album
from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.extract.picture_list import Picture
    from fairseq_mm.picture_story_inspection import PictureStoryInspection
    from fairseq_mm.report.grid_arrows import Drawing
    from fairseq_mm.report.html_page import Section
    from fairseq_mm.report.picture_story_attention import LookingSentence, Photograph

SIDE = 480  # pixels of a photograph on the page


class Subject(NamedTuple):
    """A story to look at.

    Attributes:
        album: its pictures.
        sentences: words of each; None where the model is to tell them.
        title: of its part of the page; empty where it is the only story there can be.
    """

    album: Album
    sentences: Optional[list[list[str]]]
    title: str


class Inspected(NamedTuple):
    """A story with what was seen."""

    subject: Subject
    sentences: list[list[str]]
    inspection: "PictureStoryInspection"


class Chosen(NamedTuple):
    """Which positions of grids are shown.

    Attributes:
        places: of the pictures, from 0.
        position: row and column; None for that whose similarities vary most.
        shape: rows and columns of the grids.
    """

    places: list[int]
    position: Optional[tuple[int, int]]
    shape: tuple[int, int]


def story_entry(story: Inspected, chosen: Optional[Chosen]) -> dict[str, Any]:
    """An object a story, see the docstring of ``fairseq_mm.cli.inspect``."""
    album, inspection = story.subject.album, story.inspection
    words = []
    for t, word in enumerate(inspection.words):
        entry: dict[str, Any] = {
            "word": word,
            "sentence": inspection.sentences[t] + 1,
            "known": inspection.is_known[t],
            "log_prob": _rounded(inspection.log_probs[t]),
        }
        for name, weights in (
            ("picture_weights", inspection.picture_weights),
            ("slice_weights", inspection.slice_weights),
        ):
            if weights is not None:
                entry[name] = [_rounded(weight) for weight in weights[t]]
        words.append(entry)
    result: dict[str, Any] = {
        "id": album.id,
        "item": album.item,
        "pictures": album.names,
        "told": story.subject.sentences is None,
        "sentences": [" ".join(sentence) for sentence in story.sentences],
        "words": words,
    }
    if chosen is not None:
        result["positions"] = _position_entries(inspection, chosen)
    return result


def _rounded(value: float) -> float:
    return round(float(value), 6)


def _position_entries(inspection: "PictureStoryInspection", chosen: Chosen) -> list[dict[str, Any]]:
    from fairseq_mm.picture_story_inspection import top_positions

    columns = chosen.shape[1]
    entries = []
    for place, similarities in _grids(inspection, chosen):
        start = _start(similarities, chosen)
        tops = [
            {
                "position": list(divmod(j, columns)),
                "similarity": _rounded(similarities[start, j]),
            }
            for j in top_positions(similarities, start)
        ]
        entries.append(
            {
                "picture": place + 1,
                "grid": list(chosen.shape),
                "position": list(divmod(start, columns)),
                "top": tops,
            }
        )
    return entries


def _grids(inspection: "PictureStoryInspection", chosen: Chosen) -> list[tuple[int, Any]]:
    """Place and similarities of the pictures whose grids are shown; missing ones have none."""
    grids = inspection.similarities
    assert grids is not None
    return [(place, grids[place]) for place in chosen.places if not inspection.is_missing[place]]


def _start(similarities: Any, chosen: Chosen) -> int:
    from fairseq_mm.picture_story_inspection import most_varied

    if chosen.position is None:
        return most_varied(similarities)
    return chosen.position[0] * chosen.shape[1] + chosen.position[1]


def page_of(
    inspected: Sequence[Inspected],
    chosen: Optional[Chosen],
    identity: Mapping[str, Any],
    images: list[str],
    about: str,
) -> str:
    """The page.

    Args:
        inspected: the stories.
        chosen: of a model with a non-local block.
        identity: of the extractor of the features.
        images: folders and archives of photographs whose features are in a store.
        about: the model, under the title.

    Raises:
        UserError: if a photograph cannot be read, or ``images`` have none of the stories'.
    """
    from fairseq_mm.report.html_page import render_page

    shelf = _Shelf(images)
    sections = []
    for story in inspected:
        photographs = shelf.of_album(story.subject.album)
        sections.append(_section(story, photographs, chosen, identity))
    shelf.check()
    number = len(inspected)
    title = "What a story of pictures looks at"
    if number > 1:
        title = f"What {number} stories of pictures look at"
    return render_page(title, sections, subtitle=about)


class _Shelf:
    """Photographs of the stories, each read once."""

    def __init__(self, images: list[str]) -> None:
        from fairseq_mm.report.thumbnails import Thumbnails

        self.images = images
        self.thumbnails = Thumbnails(images, SIDE) if images else None
        self._read: dict[str, Optional[Photograph]] = {}

    def of_album(self, album: Album) -> "list[Optional[Photograph]]":
        pictures = album.pictures or [None] * len(album.keys)
        return [
            None if key is None else self._of(key, picture)
            for key, picture in zip(album.keys, pictures)
        ]

    def _of(self, key: str, picture: "Optional[Picture]") -> "Optional[Photograph]":
        from fairseq_mm.report.picture_story_attention import read_photograph

        if key not in self._read:
            if picture is None and self.thumbnails is not None and key in self.thumbnails:
                picture = self.thumbnails.picture(key)
            self._read[key] = None if picture is None else read_photograph(picture, SIDE)
        return self._read[key]

    def check(self) -> None:
        """
        Raises:
            UserError: if folders of photographs were given, but have none of the stories'.
        """
        if self.images and not any(self._read.values()):
            raise UserError(f"--images {' '.join(self.images)}: has none of the stories' pictures.")


def _section(
    story: Inspected,
    photographs: "Sequence[Optional[Photograph]]",
    chosen: Optional[Chosen],
    identity: Mapping[str, Any],
) -> "Section":
    from fairseq_mm.report.grid_arrows import arrows_section
    from fairseq_mm.report.picture_story_attention import (
        pictures_section,
        slices_section,
        story_section,
    )
    from fairseq_mm.report.picture_story_table import Strip, Telling, stories_section

    album, inspection = story.subject.album, story.inspection
    names = [Path(name).name for name in album.names]
    sentences = [detokenize_story(words).strip() for words in story.sentences]
    uris = [None if photograph is None else photograph.uri for photograph in photographs]
    note = "" if story.subject.sentences is not None else "told by the model"
    parts = [stories_section([Strip("", names, uris, [Telling("", sentences)], note)])]
    if inspection.picture_weights is not None:
        looking = _looking(sentences, inspection, inspection.picture_weights)
        parts.append(
            pictures_section(
                looking,
                photographs,
                is_missing=inspection.is_missing.tolist(),
                heading="Attention to the pictures",
            )
        )
    if inspection.slice_weights is not None:
        looking = _looking(sentences, inspection, inspection.slice_weights)
        heading = "Attention to the slices of a picture's vector"
        parts.append(slices_section(looking, photographs, heading=heading))
    if chosen is not None:
        drawings = [
            _drawing(place, similarities, names[place], photographs[place], chosen, identity)
            for place, similarities in _grids(inspection, chosen)
        ]
        if drawings:
            heading = "What the non-local block relates"
            parts.append(arrows_section(drawings, heading=heading))
    return story_section(story.subject.title, photographs, parts)


def _looking(
    sentences: Sequence[str], inspection: "PictureStoryInspection", weights: Any
) -> "list[LookingSentence]":
    from fairseq_mm.report.picture_story_attention import LookingSentence

    looking = []
    for number, text in enumerate(sentences):
        first = inspection.sentences.index(number)
        here = slice(first, first + inspection.sentences.count(number))
        looking.append(
            LookingSentence(
                text,
                inspection.words[here],
                inspection.is_known[here],
                inspection.log_probs[here],
                weights[here],
            )
        )
    return looking


def _drawing(
    place: int,
    similarities: Any,
    name: str,
    photograph: "Optional[Photograph]",
    chosen: Chosen,
    identity: Mapping[str, Any],
) -> "Drawing":
    from fairseq_mm.picture_story_inspection import top_positions
    from fairseq_mm.report.grid_arrows import WHOLE, Drawing, seen_box

    box = WHOLE
    if photograph is not None:
        box = seen_box(identity, photograph.width, photograph.height)
    return Drawing(
        place,
        name,
        photograph,
        box,
        *chosen.shape,
        similarities,
        [top_positions(similarities, start) for start in range(len(similarities))],
        _start(similarities, chosen),
    )
