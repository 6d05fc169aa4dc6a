"""``fairseq-mm inspect`` of models that tell stories of five images: what was seen, as JSON and
as one HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli.tell_inputs import ImageSequence
from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.analysis.visual_story_inspection import VisualStoryInspection
    from fairseq_mm.extract.media_list import MediaFile
    from fairseq_mm.report.grid_arrows import Drawing
    from fairseq_mm.report.html_page import Section
    from fairseq_mm.report.visual_story_attention import EmbeddedImage, LookingSentence

SIDE = 480  # pixels of an image on the page


class Subject(NamedTuple):
    """A story to look at.

    Attributes:
        sequence: its images.
        sentences: words of each; None where the model generates them.
        title: of its part of the page; empty where it is the only story there can be.
    """

    sequence: ImageSequence
    sentences: Optional[list[list[str]]]
    title: str


class Inspected(NamedTuple):
    """A story with what was seen."""

    subject: Subject
    sentences: list[list[str]]
    inspection: "VisualStoryInspection"


class Chosen(NamedTuple):
    """Which positions of grids are shown.

    Attributes:
        places: of the images, from 0.
        position: row and column; None for that whose similarities vary most.
        shape: rows and columns of the grids.
    """

    places: list[int]
    position: Optional[tuple[int, int]]
    shape: tuple[int, int]


def story_entry(story: Inspected, chosen: Optional[Chosen]) -> dict[str, Any]:
    """An object a story, see the docstring of ``fairseq_mm.cli.inspect``."""
    sequence, inspection = story.subject.sequence, story.inspection
    words = []
    for t, word in enumerate(inspection.words):
        entry: dict[str, Any] = {
            "word": word,
            "sentence": inspection.sentences[t] + 1,
            "known": inspection.is_known[t],
            "log_prob": _rounded(inspection.log_probs[t]),
        }
        for name, weights in (
            ("image_weights", inspection.image_weights),
            ("slice_weights", inspection.slice_weights),
        ):
            if weights is not None:
                entry[name] = [_rounded(weight) for weight in weights[t]]
        words.append(entry)
    result: dict[str, Any] = {
        "id": sequence.id,
        "item": sequence.index,
        "images": sequence.names,
        "generated": story.subject.sentences is None,
        "sentences": [" ".join(sentence) for sentence in story.sentences],
        "words": words,
    }
    if chosen is not None:
        result["positions"] = _position_entries(inspection, chosen)
    return result


def _rounded(value: float) -> float:
    return round(float(value), 6)


def _position_entries(inspection: "VisualStoryInspection", chosen: Chosen) -> list[dict[str, Any]]:
    from fairseq_mm.analysis.visual_story_inspection import top_positions

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
                "image": place + 1,
                "grid": list(chosen.shape),
                "position": list(divmod(start, columns)),
                "top": tops,
            }
        )
    return entries


def _grids(inspection: "VisualStoryInspection", chosen: Chosen) -> list[tuple[int, Any]]:
    """Place and similarities of the images whose grids are shown; missing ones have none."""
    grids = inspection.similarities
    assert grids is not None
    return [(place, grids[place]) for place in chosen.places if not inspection.is_missing[place]]


def _start(similarities: Any, chosen: Chosen) -> int:
    from fairseq_mm.analysis.visual_story_inspection import most_varied

    if chosen.position is None:
        return most_varied(similarities)
    return chosen.position[0] * chosen.shape[1] + chosen.position[1]


def page_of(
    inspected: Sequence[Inspected],
    chosen: Optional[Chosen],
    identity: Mapping[str, Any],
    folders: list[str],
    about: str,
) -> str:
    """The page.

    Args:
        inspected: the stories.
        chosen: of a model with a non-local block.
        identity: of the extractor of the features.
        folders: folders and archives of images whose features are in a store.
        about: the model, under the title.

    Raises:
        UserError: if an image cannot be read, or ``folders`` have none of the stories'.
    """
    from fairseq_mm.report.html_page import render_page

    shelf = _Shelf(folders)
    sections = []
    for story in inspected:
        images = shelf.of_sequence(story.subject.sequence)
        sections.append(_section(story, images, chosen, identity))
    shelf.check()
    number = len(inspected)
    title = "What a visual story looks at"
    if number > 1:
        title = f"What {number} visual stories look at"
    return render_page(title, sections, subtitle=about)


class _Shelf:
    """Images of the stories, each read once."""

    def __init__(self, folders: list[str]) -> None:
        from fairseq_mm.report.thumbnails import Thumbnails

        self.folders = folders
        self.thumbnails = Thumbnails(folders, SIDE) if folders else None
        self._read: dict[str, Optional[EmbeddedImage]] = {}

    def of_sequence(self, sequence: ImageSequence) -> "list[Optional[EmbeddedImage]]":
        images = sequence.images or [None] * len(sequence.keys)
        return [
            None if key is None else self._of(key, image)
            for key, image in zip(sequence.keys, images)
        ]

    def _of(self, key: str, image: "Optional[MediaFile]") -> "Optional[EmbeddedImage]":
        from fairseq_mm.report.visual_story_attention import embed_image

        if key not in self._read:
            if image is None and self.thumbnails is not None and key in self.thumbnails:
                image = self.thumbnails.image(key)
            self._read[key] = None if image is None else embed_image(image, SIDE)
        return self._read[key]

    def check(self) -> None:
        """
        Raises:
            UserError: if folders of images were given, but have none of the stories'.
        """
        if self.folders and not any(self._read.values()):
            raise UserError(f"--images {' '.join(self.folders)}: has none of the stories' images.")


def _section(
    story: Inspected,
    images: "Sequence[Optional[EmbeddedImage]]",
    chosen: Optional[Chosen],
    identity: Mapping[str, Any],
) -> "Section":
    from fairseq_mm.report.grid_arrows import arrows_section
    from fairseq_mm.report.visual_story_attention import (
        images_section,
        slices_section,
        story_section,
    )
    from fairseq_mm.report.visual_story_table import Strip, Telling, stories_section

    sequence, inspection = story.subject.sequence, story.inspection
    names = [Path(name).name for name in sequence.names]
    sentences = [detokenize_story(words).strip() for words in story.sentences]
    uris = [None if image is None else image.uri for image in images]
    note = "" if story.subject.sentences is not None else "generated by the model"
    parts = [stories_section([Strip("", names, uris, [Telling("", sentences)], note)])]
    if inspection.image_weights is not None:
        looking = _looking(sentences, inspection, inspection.image_weights)
        parts.append(
            images_section(
                looking,
                images,
                is_missing=inspection.is_missing.tolist(),
                heading="Attention to the images",
            )
        )
    if inspection.slice_weights is not None:
        looking = _looking(sentences, inspection, inspection.slice_weights)
        heading = "Attention to the slices of an image's vector"
        parts.append(slices_section(looking, images, heading=heading))
    if chosen is not None:
        drawings = [
            _drawing(place, similarities, names[place], images[place], chosen, identity)
            for place, similarities in _grids(inspection, chosen)
        ]
        if drawings:
            heading = "What the non-local block relates"
            parts.append(arrows_section(drawings, heading=heading))
    return story_section(story.subject.title, images, parts)


def _looking(
    sentences: Sequence[str], inspection: "VisualStoryInspection", weights: Any
) -> "list[LookingSentence]":
    from fairseq_mm.report.visual_story_attention import LookingSentence

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
    image: "Optional[EmbeddedImage]",
    chosen: Chosen,
    identity: Mapping[str, Any],
) -> "Drawing":
    from fairseq_mm.analysis.visual_story_inspection import top_positions
    from fairseq_mm.report.grid_arrows import WHOLE, Drawing, seen_box

    box = WHOLE
    if image is not None:
        box = seen_box(identity, image.width, image.height)
    return Drawing(
        place,
        name,
        image,
        box,
        *chosen.shape,
        similarities,
        [top_positions(similarities, start) for start in range(len(similarities))],
        _start(similarities, chosen),
    )
