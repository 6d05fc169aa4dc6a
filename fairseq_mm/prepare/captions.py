"""Makes a data folder of images with captions.

The data is JSON lines, one image per line:

  {"image": "photo.jpg", "captions": ["A dog runs .", "A brown dog on grass ."]}

Optional fields: "split" (train, valid or test) and "id", the image's key in the feature store
(default: see --keys). The folder gets <split>.jsonl, with the images of a split as such lines, and
the binarised text; its features come from `fairseq-mm extract` or `fairseq-mm store import`.

With --without-images the folder has only text: the data is the same lines, whose images are
ignored, or .txt files with one sentence per line. SC-NLM and n-gram models are trained on such a
folder.
"""

from typing import ClassVar, Optional

from fairseq_mm.data.caption_text import TOKENIZERS
from fairseq_mm.data.feature_store import STORE_LIST
from fairseq_mm.data.record_split import CAPTIONS, Record
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Example
from fairseq_mm.prepare.writer import FolderWriter

# captions without images, for the training of SC-NLM
TEXTS = CAPTIONS._replace(noun="text", nouns="texts", groups="texts", visual=None)


def captioned_image(key: str, captions: list[str], where: str) -> Example:
    return Example({"captions": captions}, where, key, [key])


class CaptionWriter(FolderWriter):
    """Writer of a data folder of captioned images; each caption is a line."""

    kind = CAPTIONS
    # a joined folder lists its stores: `prepare --overwrite` must remove this file too
    extra_files = frozenset({STORE_LIST})
    counts = ("images", "captions", "words", "empty_captions_skipped")
    left_out: ClassVar[Optional[str]] = "images without a caption"

    def encode(
        self, example: Example, counts: dict[str, int]
    ) -> Optional[tuple[Record, dict[str, list[str]]]]:
        captions = example.texts["captions"]
        tokens = self.tokenize_field(example, "captions")
        non_empty = [caption for caption, words in zip(captions, tokens) if words]
        tokens = list(filter(None, tokens))
        counts["empty_captions_skipped"] += len(captions) - len(non_empty)
        if not non_empty and not self.skip_empty:
            named = "" if example.id is None else f"{self.kind.noun} {example.id} "
            raise UserError(f"{example.where}: {named}has no caption.")
        if not non_empty:
            return None
        counts[self.counts[0]] += 1
        counts["captions"] += len(non_empty)
        counts["words"] += sum(map(len, tokens))
        text = [" ".join(words) for words in tokens]
        record = {**self.record(example), "captions": non_empty}
        if self.needs_tokens(non_empty, tokens):
            record["tokens"] = text
        return record, {"txt": text}

    def needs_tokens(self, captions: list[str], tokens: list[list[str]]) -> bool:
        """Return True if records must contain tokens, because no tokenizer gives the same."""
        return self.settings.get("tokenizer") not in TOKENIZERS


class TextWriter(CaptionWriter):
    """Writer of a data folder of captions without images."""

    kind = TEXTS
    counts = ("texts", "captions", "words", "empty_captions_skipped")
    left_out = None

    def record(self, example: Example) -> Record:
        return {"captions": example.texts["captions"]}
