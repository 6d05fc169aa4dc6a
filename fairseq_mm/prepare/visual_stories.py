"""Makes a data folder of visual stories, each of five images and five sentences.

The data is JSON lines, one story per line (this one is broken to fit):

  {"images": ["1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"],
   "sentences": ["We got up early .", "...", "...", "...", "We slept late ."]}

Optional fields: "id"; "album", whose stories are references for each other and stay in one split;
"split" (train, valid or test). The folder gets <split>.jsonl, with the stories of a split as such
lines, and the binarised text, with <sent> between the sentences of a story. The references of a
story are the stories with the same images, or those of the same album. The features come from

  fairseq-mm extract data.jsonl --model resnet152 --output DIR/features.h5

This names unreadable images in DIR/features.h5.unreadable.tsv. Prepare again with
--features DIR/features.h5 --missing drop (or keep) --overwrite to leave out their stories, or to
keep them without those images, which the field "missing" lists.
"""

from typing import Optional

from fairseq_mm.data.record_split import VISUAL_STORIES, Record
from fairseq_mm.data.story_text import SEPARATOR, join_sentences
from fairseq_mm.prepare.corpus import Example
from fairseq_mm.prepare.writer import FolderWriter


class VisualStoryWriter(FolderWriter):
    """Writer of a data folder of visual stories; a line is a story, its sentences joined by
    ``<sent>``."""

    kind = VISUAL_STORIES
    counts = ("stories", "albums", "image_sequences", "images", "words")
    left_out = "stories left out, a sentence has no word"
    required = frozenset([SEPARATOR])

    def begin_split(self, split: str) -> None:
        self._found: dict[str, set[str]] = {
            name: set() for name in ("albums", "image_sequences", "images")
        }

    def encode(
        self, example: Example, counts: dict[str, int]
    ) -> Optional[tuple[Record, dict[str, list[str]]]]:
        sentences = self.tokenize_field(example, "sentences")
        if not all(sentences):
            return None
        counts["words"] += sum(map(len, sentences))
        counts["stories"] += 1
        self._found["albums"].add(str(example.group))
        self._found["image_sequences"].add("\t".join(example.visual))
        self._found["images"].update(example.visual)
        line = join_sentences([" ".join(words) for words in sentences])
        return self.record(example), {"txt": [line]}

    def finish_split(self, counts: dict[str, int]) -> None:
        counts.update((name, len(found)) for name, found in self._found.items())
