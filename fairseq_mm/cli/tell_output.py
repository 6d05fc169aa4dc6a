"""``fairseq-mm tell``: stories as text, as records, as a table of several systems, and as one HTML
page with the images."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli.records import scored
from fairseq_mm.cli.tell_inputs import ImageSequence
from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.data.visual_story_text import SEPARATOR
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.inference.hypothesis import Hypothesis
    from fairseq_mm.inference.prompt_processor import Prompt
    from fairseq_mm.report.visual_story_table import Strip

PEOPLE = "people"
# of the table where the output is no terminal, or a narrow one
_WIDE, _NARROWEST = 160, 12
SIDE = 400  # pixels of an image on the page


def heading(index: int, title: str) -> str:
    title = " ".join(title.split())
    return f"=== {index}{': ' if title else ''}{title} ===\n"


def _record(
    name: Any,
    hypotheses: "Sequence[Hypothesis]",
    others: Mapping[str, Any],
    *,
    as_line: bool = False,
) -> dict[str, Any]:
    """``id``, ``hypothesis``, ``score`` and, of several, ``hypotheses``; then the others.

    Args:
        name: of the input.
        hypotheses: the best first.
        others: fields of the task.
        as_line: ``hypothesis`` is not detokenised.
    """
    found = [
        {**scored(best), **({"hypothesis": best.line} if as_line else {})} for best in hypotheses
    ]
    several = {"hypotheses": found} if len(found) > 1 else {}
    return {"id": name, **found[0], **several, **others}


def prompt_entry(prompt: "Prompt") -> dict[str, Any]:
    """What a record of a story says of its prompt."""
    entry: dict[str, Any] = {"prompt": prompt.text, "prompt_tokens": " ".join(prompt.words)}
    if prompt.score is None:
        return {**entry, "unknown_words": prompt.unknown, "prompt_words_cut": prompt.num_truncated}
    return {**entry, "prompt_score": round(prompt.score, 4)}


def story_lines(
    hypotheses: "Sequence[Hypothesis]", form: str, facts: Mapping[str, Any], *, has_heading: bool
) -> list[str]:
    """
    Args:
        hypotheses: of one prompt, or of none.
        form: ``raw``, ``jsonl`` or ``text``.
        facts: of all records.
        has_heading: of text: id and prompt stand before it.
    """
    best = hypotheses[0]
    if form == "raw":
        return [hypothesis.line for hypothesis in hypotheses]
    if form == "jsonl":
        others: dict[str, Any] = {"tokens": best.line, "words": len(best.line.split())}
        if best.source is not None:
            others.update(prompt_entry(best.source))
        record = _record(best.index, hypotheses, others)
        return [json.dumps({**record, **facts}, ensure_ascii=False)]
    if not has_heading:
        return [hypothesis.text for hypothesis in hypotheses]
    title = "" if best.source is None else best.source.text
    return [f"{heading(best.index, title)}\n{hypothesis.text}\n" for hypothesis in hypotheses]


class VisualStoryFormatter:
    """Lines of the stories of image sequences.

    Args:
        form: ``raw``, ``jsonl`` or ``text``.
        systems: names of the systems that are compared; empty where there is one.
        facts: of the records of each system.
        has_heading: of text: index and id stand before it.
    """

    def __init__(
        self,
        form: str,
        systems: Sequence[str],
        facts: Sequence[Mapping[str, Any]],
        *,
        has_heading: bool,
    ) -> None:
        self.form = form
        self.systems = systems
        self.facts = facts
        self.has_heading = has_heading

    def lines(
        self, sequence: ImageSequence, stories: "Sequence[Sequence[Hypothesis]]"
    ) -> list[str]:
        """
        Args:
            sequence: the images.
            stories: of each system, the best first.
        """
        if self.form == "raw":
            return [hypothesis.line for found in stories for hypothesis in found]
        if self.form == "jsonl":
            records = self._records(sequence, stories)
            return [json.dumps(record, ensure_ascii=False) for record in records]
        if self.systems:
            rows = [(PEOPLE, as_read(reference)) for reference in sequence.references]
            rows += [
                (name, hypothesis.sentences)
                for name, found in zip(self.systems, stories)
                for hypothesis in found
            ]
            texts = [_table(rows, _width_of_output())]
        else:
            texts = ["\n".join(hypothesis.sentences) for hypothesis in stories[0]]
        if not self.has_heading:
            return texts
        return [f"{heading(sequence.index, sequence.id)}\n{text}\n" for text in texts]

    def _records(
        self, sequence: ImageSequence, stories: "Sequence[Sequence[Hypothesis]]"
    ) -> Iterator[dict[str, Any]]:
        """``hypothesis`` has the tokens of the story, which ``fairseq-mm score`` reads."""
        about: dict[str, Any] = {"item": sequence.index, "images": sequence.names}
        if self.systems:
            for reference in sequence.references:
                sentences = as_read(reference)
                yield {"id": sequence.id, **about, "system": PEOPLE, "sentences": sentences}
        for number, (found, facts) in enumerate(zip(stories, self.facts)):
            words = found[0].line.split()
            others = {
                **about,
                **({"system": self.systems[number]} if self.systems else {}),
                "sentences": found[0].sentences,
                "words": len(words) - words.count(SEPARATOR),
            }
            yield {**_record(sequence.id, found, others, as_line=True), **facts}


def as_read(sentences: Sequence[Sequence[str]]) -> list[str]:
    return [detokenize_story(list(words)).strip() for words in sentences]


def _width_of_output() -> int:
    is_screen = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size((_WIDE, 24)).columns if is_screen else _WIDE


def _table(rows: Sequence[tuple[str, Sequence[str]]], width: int) -> str:
    """A row a system and a column a sentence (Li et al. 2020, Figure 6).

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


class Page:
    """One HTML page with the images and their stories.

    Args:
        path: file to write.
        systems: names of the systems; their stories are shown with them where there are several.
        folders: of images whose features are in a store.
        card: what was run, name and value.
    """

    def __init__(
        self,
        path: str,
        systems: Sequence[str],
        folders: list[str],
        card: Iterable[tuple[str, str]],
    ) -> None:
        from fairseq_mm.report.thumbnails import Thumbnails

        self.path = path
        self.systems = systems
        self.folders = folders
        self.thumbnails = Thumbnails(folders, SIDE) if folders else None
        self.card = list(card)
        self._strips: list[Strip] = []
        self._uris: dict[str, str] = {}
        self.num_absent = 0

    def add(self, sequence: ImageSequence, stories: "Sequence[Sequence[Hypothesis]]") -> None:
        """
        Raises:
            UserError: if an image cannot be read.
        """
        from fairseq_mm.report.visual_story_table import Strip, Telling

        has_names = len(self.systems) > 1 or bool(sequence.references)
        rows = [
            Telling(PEOPLE, as_read(reference), by_people=True) for reference in sequence.references
        ]
        for name, found in zip(self.systems, stories):
            for hypothesis in found:
                note = f"{hypothesis.score:.3f} a word" if has_names else ""
                rows.append(Telling(name if has_names else "", hypothesis.sentences, note))
        title = "" if "\t" in sequence.id else sequence.id
        uris = [self._uri(sequence, place) for place in range(len(sequence.keys))]
        self._strips.append(Strip(title, [Path(x).name for x in sequence.names], uris, rows))

    def _uri(self, sequence: ImageSequence, place: int) -> Optional[str]:
        from fairseq_mm.report.thumbnails import thumbnail_uri

        key = sequence.keys[place]
        if key is None:
            return None
        if key not in self._uris:
            image = sequence.images[place] if sequence.images else None
            if image is not None:
                self._uris[key] = thumbnail_uri(image, SIDE)
            elif self.thumbnails is not None and key in self.thumbnails:
                self._uris[key] = self.thumbnails.data_uri(key)
            else:
                self.num_absent += 1
                return None
        return self._uris[key]

    def write(self) -> None:
        """
        Raises:
            UserError: if the file cannot be written, or folders of images were given that have none
                of the stories'.
        """
        from fairseq_mm.report.html_page import render_page, section, write_page
        from fairseq_mm.report.visual_story_table import stories_section

        if self.folders and not self._uris:
            raise UserError(f"--images {' '.join(self.folders)}: has none of the stories' images.")
        number = len(self._strips)
        title = "A story of five images" if number == 1 else f"{number:,} visual stories"
        sections = [stories_section(self._strips), section("", "run.html", rows=self.card)]
        subtitle = f"generated by {', '.join(self.systems)}"
        write_page(Path(self.path), render_page(title, sections, subtitle=subtitle))
