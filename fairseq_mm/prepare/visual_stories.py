"""Makes a data folder of visual stories, each of five images and five sentences.

The data is JSON lines, one story per line (this one is broken to fit):

  {"images": ["1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"],
   "sentences": ["We got up early .", "...", "...", "...", "We slept late ."]}

Optional fields: "id"; "album", whose stories are references for each other and stay in one split;
"split" (train, valid or test). The folder gets one story per line, with <sent> between its
sentences, the ids of images, story and album of each line, and as references the stories with the
same images and the stories of the same album. Its features come from

  fairseq-mm extract data.jsonl --model resnet152 --output DIR/features.h5

This names unreadable images in DIR/features.h5.unreadable.tsv. Prepare again with
--features DIR/features.h5 --missing drop (or keep) --overwrite to leave out their stories, or to
keep them without those images, which missing_images.txt lists.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.data.split_files import MISSING_IMAGES
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR, join_sentences
from fairseq_mm.prepare.corpus import Corpus, Example, Field, FieldTable
from fairseq_mm.prepare.writer import FolderWriter, json_line, write_lines

TABLE = FieldTable(
    kind="visual stories",
    noun="story",
    nouns="stories",
    groups="albums",
    texts=(Field("sentences", many=True, length=NUM_IMAGES),),
    visual=Field("images", many=True, length=NUM_IMAGES),
    uniform=("id", "album"),
)


class VisualStoryWriter(FolderWriter):
    """Writer of ``text/<split>.txt`` with one story per line, sentences joined by ``<sent>``."""

    table = TABLE
    endings = ("jsonl", "visual_ids", "references.jsonl", "album_references.jsonl", "stories.jsonl")
    extra_files = frozenset([MISSING_IMAGES])
    counts = ("stories", "albums", "image_sequences", "images", "words")
    left_out = "stories left out, a sentence has no word"
    required = frozenset([SEPARATOR])

    def begin(self) -> None:
        self._examples: list[Example] = []
        self._masked: dict[str, None] = {}

    def lines(self, example: Example, counts: dict[str, int]) -> Optional[dict[str, list[str]]]:
        sentences = self.tokenize_field(example, "sentences")
        if not all(sentences):
            return None
        self._examples.append(example)
        counts["words"] += sum(map(len, sentences))
        counts["stories"] += 1
        story = {"story_id": example.id, "album_id": example.group}
        return {
            "txt": [join_sentences([" ".join(words) for words in sentences])],
            # check_id refuses tabs in ids
            "visual_ids": ["\t".join(example.visual)],
            "stories.jsonl": [json_line(story)],
        }

    def finish_split(
        self, folder: Path, split: str, corpus: Corpus, counts: dict[str, int]
    ) -> None:
        """Write the references of each image sequence and of each album.

        The numbers of albums, image sequences and images are added to ``counts``.

        A story that is no example, because its images are missing, still serves as a reference.
        """
        # only now is it known which stories share an image sequence or an album
        examples, self._examples = self._examples, []
        album_by_sequence: dict[str, str] = {}
        for example in examples:
            album_by_sequence.setdefault("\t".join(example.visual), str(example.group))
        by_sequence: dict[str, list[str]] = {}
        by_album: dict[str, list[str]] = {}
        # stories without their images are still what people wrote about the album
        for example in [*corpus.splits[split], *corpus.further_references.get(split, [])]:
            story = " ".join(filter(None, map(str.strip, example.texts["sentences"])))
            if story:
                by_sequence.setdefault("\t".join(example.visual), []).append(story)
                by_album.setdefault(str(example.group), []).append(story)
        write_lines(
            folder / f"{split}.references.jsonl",
            (json_line({"id": key, "references": by_sequence[key]}) for key in album_by_sequence),
        )
        write_lines(
            folder / f"{split}.album_references.jsonl",
            (
                json_line({"id": key, "album": album, "references": by_album[album]})
                for key, album in album_by_sequence.items()
            ),
        )
        write_lines(folder / f"{split}.jsonl", self._records(split, corpus, examples))
        # a dict and not a set: the order in missing_images.txt must not differ between runs
        images = dict.fromkeys(image for example in examples for image in example.visual)
        self._masked.update((image, None) for image in images if image in corpus.missing)
        counts["albums"] = len({example.group for example in examples})
        counts["image_sequences"] = len(album_by_sequence)
        counts["images"] = len(images)

    def _records(self, split: str, corpus: Corpus, examples: list[Example]) -> Iterator[str]:
        """Yield the record of each story, in the order of the references. A story that is no
        example is marked ``reference_only``."""
        lines = {id(example) for example in examples}
        for example in [*corpus.splits[split], *corpus.further_references.get(split, [])]:
            record: dict[str, Any] = {
                "id": example.id,
                "album": example.group,
                "images": example.visual,
                "sentences": example.texts["sentences"],
            }
            missing = [key for key in dict.fromkeys(example.visual) if key in corpus.missing]
            if id(example) not in lines:
                record["reference_only"] = True
            elif missing:
                record["missing"] = missing
            yield json_line(record)

    def finish_text(self, folder: Path, corpus: Corpus, counts: dict[str, dict[str, int]]) -> None:
        """Write ``missing_images.txt``, which lists the missing images of the examples."""
        if self._masked:
            write_lines(folder / MISSING_IMAGES, self._masked)

    def remarks(self, corpus: Corpus) -> dict[str, object]:
        return {"missing": corpus.missing, "masked": list(self._masked)}
