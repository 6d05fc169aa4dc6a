"""``fairseq-mm tell``: visual stories as text, as records, as a table of several systems, and as an
HTML page with the images."""

import argparse
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli.generate import Flow, Input
from fairseq_mm.cli.records import counted, hashes_of, json_line, ranks_of
from fairseq_mm.cli.tell_inputs import ImageSequence
from fairseq_mm.data.story_text import SEPARATOR, detokenize_story
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.report.visual_story_table import Strip

PEOPLE = "people"
# of the table where the output is no terminal, or a narrow one
_WIDE, _NARROWEST = 160, 12
SIDE = 400  # pixels of an image on the page


def heading(index: int, title: str) -> str:
    title = " ".join(title.split())
    return f"=== {index}{': ' if title else ''}{title} ===\n"


class VisualStories(Flow):
    """Stories of image sequences by one system, or by several that are compared.

    Args:
        args: of the command line.
        systems: name of each system -> its generator.
        configs: of generation.
        sequences: of images.
        store: with their features; None where images are read.
    """

    command = "tell"

    def __init__(
        self,
        args: argparse.Namespace,
        systems: dict[str, Any],
        configs: Sequence[Any],
        sequences: Sequence[ImageSequence],
        store: Any = None,
    ) -> None:
        inputs = [Input(x.id, x.index, x, where=x.where) for x in sequences]
        super().__init__(args, list(systems.values()), configs, inputs)
        self.names = list(systems)
        self.store = store
        # sequences whose features are held at a time
        self.size = 16 if store is None else 256
        for model in self.models:
            reader = model.processor.reader
            if store is None:
                reader.extractor  # noqa: B018  one that cannot be built is named first
            else:
                reader.check_features(store.attributes, store.dim, store.path)
        self.copies = args.n or 1
        self.page_alone = not (args.output or args.jsonl or args.raw)
        self.page = Page(args.images) if args.html else None

    def read(self, inputs: Sequence[Input]) -> Iterator[Any]:
        sequences: list[ImageSequence] = [item.value for item in inputs]
        processors = [model.processor for model in self.models]
        keys = [json.dumps(x.extractor_identity, sort_keys=True) for x in processors]
        # an image of several sequences is read once, and once for all models of one extractor
        found: dict[str, dict[Any, Any]] = {}
        if self.store is None:
            images = list(dict.fromkeys(x for s in sequences for x in s.images if x is not None))
            for key, processor in zip(keys, processors):
                if key not in found:
                    found[key] = dict(zip(images, processor.reader.features_of(images)))
        for sequence in sequences:
            if self.store is None:
                rows = [[found[key].get(image) for image in sequence.images] for key in keys]
            else:
                rows = [[None if x is None else self.store.read(x) for x in sequence.keys]]
                rows *= len(keys)
            errors = [
                UserError(f"{image.name}: {value}")
                for values in rows
                for image, value in zip(sequence.images, values)
                if image is not None and isinstance(value, UserError)
            ]
            yield (
                errors[0]
                if errors
                else [
                    processor.example_of(sequence.index, values)
                    for processor, values in zip(processors, rows)
                ]
            )

    def lines(self, item: Input, examples: Sequence[Any], found: Sequence[Any]) -> list[str]:
        sequence: ImageSequence = item.value
        if self.form == "raw":
            return [hypothesis.line for best in found for hypothesis in best]
        if self.form == "jsonl":
            return list(self._records(sequence, found))
        if self.args.compare:
            rows = [(PEOPLE, as_read(reference)) for reference in sequence.references]
            rows += [
                (name, hypothesis.sentences)
                for name, best in zip(self.names, found)
                for hypothesis in best
            ]
            texts = [_table(rows, _width_of_output())]
        else:
            texts = ["\n".join(hypothesis.sentences) for hypothesis in found[0]]
        if len(self.inputs) == 1:
            return texts
        return [f"{heading(item.index, item.name)}\n{text}\n" for text in texts]

    def _records(self, sequence: ImageSequence, found: Sequence[Any]) -> Iterator[str]:
        """``hypothesis`` has the tokens of the story, which ``fairseq-mm score`` reads."""
        about: dict[str, Any] = {"item": sequence.index, "images": sequence.names}
        if self.args.compare:
            for reference in sequence.references:
                others = {"system": PEOPLE, "sentences": as_read(reference)}
                yield json.dumps({"id": sequence.id, **about, **others}, ensure_ascii=False)
        for name, best, facts in zip(self.names, found, self.facts):
            words = best[0].line.split()
            others = {
                **({"system": name} if self.args.compare else {}),
                "sentences": best[0].sentences,
                "words": len(words) - words.count(SEPARATOR),
            }
            yield json_line(
                *(sequence.id, best, {**about, **others, **facts}),
                as_line=True,
                each=ranks_of(self.args, best),
            )

    def show(self, item: Input, examples: Sequence[Any], found: Sequence[Any]) -> None:
        if self.page is not None:
            self.page.add(item.value, dict(zip(self.names, found)))

    def write_page(self, number: str) -> str:
        assert self.page is not None
        path = self.args.html
        self.page.write(path, f"generated by {', '.join(self.names)}", self._card())
        absent = ""
        if self.args.images and self.page.num_absent:
            absent = f"; {counted(self.page.num_absent, 'image')} not found"
        return f"{number}, {os.path.getsize(path) / 1e6:.1f} MB{absent}"

    def _card(self) -> list[tuple[str, str]]:
        """What was run, name and value."""
        options = {k: v for k, v in self.configs[0].to_dict().items() if v is not None}
        card = [
            ("command", shlex.join(["fairseq-mm", *sys.argv[1:]])),
            ("generation", ", ".join(f"{name} {value}" for name, value in options.items())),
        ]
        for name, model in zip(self.names, self.models):
            files = [f"{file}, sha256 {hashes_of([file])[:16]}" for file in model.files]
            card.append((name, ", ".join(files)))
        identities = [model.processor.reader.identity for model in self.models]
        extractors = {str(identity.get("extractor", "not recorded")) for identity in identities}
        return [*card, ("extractor", ", ".join(sorted(extractors)))]


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
        folders: of images whose features are in a store.
    """

    def __init__(self, folders: list[str]) -> None:
        from fairseq_mm.report.thumbnails import Thumbnails

        self.folders = folders
        self.thumbnails = Thumbnails(folders, SIDE) if folders else None
        self._strips: list[Strip] = []
        self._uris: dict[str, str] = {}
        self.num_absent = 0

    def add(self, sequence: ImageSequence, stories: dict[str, Any]) -> None:
        """
        Args:
            sequence: the images.
            stories: name of each system -> its hypotheses.

        Raises:
            UserError: if an image cannot be read.
        """
        from fairseq_mm.report.visual_story_table import StoryRow, Strip

        has_names = len(stories) > 1 or bool(sequence.references)
        rows = [
            StoryRow(PEOPLE, as_read(reference), by_people=True)
            for reference in sequence.references
        ]
        for name, found in stories.items():
            for hypothesis in found:
                note = f"{hypothesis.score:.3f} a word" if has_names else ""
                rows.append(StoryRow(name if has_names else "", hypothesis.sentences, note))
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

    def write(self, path: str, subtitle: str, card: Sequence[tuple[str, str]]) -> None:
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
        sections = [stories_section(self._strips), section("", "run.html", rows=card)]
        write_page(Path(path), render_page(title, sections, subtitle=subtitle))
