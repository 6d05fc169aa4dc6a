"""Shows generated texts as HTML pages, and the stories of several systems as tables."""

import argparse
import itertools
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from PIL import Image

from fairseq_mm.cli.records import PEOPLE, Result, counted
from fairseq_mm.extract.data_uris import jpeg_uri
from fairseq_mm.extract.media import MediaFile
from fairseq_mm.inference.checkpoint_files import compute_checkpoint_digest
from fairseq_mm.report.html_page import render_page, section, write_page
from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section
from fairseq_mm.report.thumbnails import Thumbnails, thumbnail_uri
from fairseq_mm.report.visual_story_sections import StoryRow, Strip, stories_section

# width of a table if the output is no terminal, and least width of its columns
_WIDE, _NARROWEST = 160, 12
SIDE = 400  # pixels of an image on the page


def compare_stories(result: Result, names: Sequence[str]) -> str:
    """Return a table with a row per reference and story of an image sequence, and a column per
    sentence (Li et al. 2020, Figure 6)."""
    rows = [(PEOPLE, sentences) for sentences in result.item.record.get("references", ())]
    for name, stories in zip(names, result.hypotheses):
        rows += [(name, story.sentences) for story in stories]
    is_screen = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size((_WIDE, 24)).columns if is_screen else _WIDE
    first = max(len(name) for name, _ in rows)
    count = max(len(sentences) for _, sentences in rows)
    column = max(_NARROWEST, (width - first) // count - 2)
    blocks = []
    for name, sentences in rows:
        cells = [[name], *(textwrap.wrap(sentence, column) or [""] for sentence in sentences)]
        lines = []
        for words in itertools.zip_longest(*cells, fillvalue=""):
            padded = [words[0].ljust(first), *(word.ljust(column) for word in words[1:])]
            lines.append("  ".join(padded).rstrip())
        blocks.append("\n".join(lines))
    rule = "-" * (first + count * (column + 2))
    return f"\n{rule}\n".join(blocks)


class Page:
    """HTML page of the option ``--html``, with one section per image sequence or per video."""

    def __init__(self, args: argparse.Namespace, systems: Mapping[str, Any]) -> None:
        self.args = args
        self.systems = systems
        self.folders: list[str] = args.images or []
        self.thumbnails = Thumbnails(self.folders, SIDE) if self.folders else None
        self._strips: list[Strip] = []
        self._cards: list[Item] = []
        self._uris: dict[str, str] = {}
        self._num_absent = self._num_texts = 0

    def add(self, result: Result) -> None:
        """Add the texts of an input."""
        record, example = result.item.record, result.examples[0]
        if "sentences" not in self._to_record(result):
            best = result.hypotheses[0][0]
            shown = {"score": round(best.score, 4), **example.fields}
            name = str(record["id"])
            images = {
                f"frame {n} of {name}": jpeg_uri(Image.fromarray(pixels))
                for n, pixels in enumerate(example.images, 1)
            }
            texts = [ItemText(best.text, shown)]
            self._cards.append(Item(name, texts, images, transcript=example.origin.text))
            self._num_texts += 1
            return
        references = record.get("references", ())
        has_names = len(self.systems) > 1 or bool(references)
        rows = [StoryRow(PEOPLE, sentences, by_people=True) for sentences in references]
        for name, hypotheses in zip(self.systems, result.hypotheses):
            for best in hypotheses:
                note = f"{best.score:.3f} a word" if has_names else ""
                rows.append(StoryRow(name if has_names else "", best.sentences, note))
            self._num_texts += len(hypotheses)
        names = self._to_record(result)["images"]
        uris = [None if image is None else self._find_image(image) for image in record["images"]]
        self._strips.append(Strip("", [Path(name).name for name in names], uris, rows))

    def _to_record(self, result: Result) -> dict[str, Any]:
        (model, *_), best = self.systems.values(), result.hypotheses[0][0]
        return model.processor.to_record(result.item.record, result.examples[0], best)

    def _find_image(self, key: str) -> Optional[str]:
        if key not in self._uris:
            if self.thumbnails is not None and key in self.thumbnails:
                self._uris[key] = self.thumbnails.data_uri(key)
            elif self.thumbnails is None and os.path.isfile(key):
                self._uris[key] = thumbnail_uri(MediaFile(key, key), SIDE)
            else:
                self._num_absent += 1
                return None
        return self._uris[key]

    def write(self, configs: Sequence[Any]) -> str:
        """Write the page, and return a short description of its content for a message."""
        task = next(iter(self.systems.values())).task
        number = counted(self._num_texts, *task.text_names)
        if self._strips:
            sections = [stories_section(self._strips)]
            title = counted(len(self._strips), "visual story", "visual stories")
        else:
            sections = [gallery_section(self._cards, heading="")]
            title = task.text_names[1].capitalize()
        sections.append(section("", "run.html", rows=self._describe_run(configs)))
        subtitle = f"generated by {', '.join(self.systems)}"
        write_page(Path(self.args.html), render_page(title, sections, subtitle=subtitle))
        absent = counted(self._num_absent, "image") if self.folders else ""
        return f"{number}; {absent} not found" if self._num_absent and absent else number

    def _describe_run(self, configs: Sequence[Any]) -> list[tuple[str, str]]:
        """Return (name, value) rows: command, options of the first system, checkpoints."""
        options = {k: v for k, v in configs[0].to_dict().items() if v is not None}
        rows = [
            ("command", shlex.join(["fairseq-mm", *sys.argv[1:]])),
            ("generation", ", ".join(f"{name} {value}" for name, value in options.items())),
        ]
        for name, model in self.systems.items():
            digests = [f"{x}, sha256 {compute_checkpoint_digest(x)[:16]}" for x in model.files]
            rows.append((name, ", ".join(digests)))
        identities = [x.processor.extractor_identity or {} for x in self.systems.values()]
        extractors = {str(x.get("extractor", "not recorded")) for x in identities}
        return [*rows, ("extractor", ", ".join(sorted(extractors)))]
