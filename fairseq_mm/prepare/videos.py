r"""Makes a data folder of videos: their transcripts and their summaries.

The data is JSON lines, one video per line:

  {"video": "a.mp4", "transcript": "hi , i 'm ...", "summary": "learn to ..."}

"transcript" is the text itself, or the name of a file that ends in .srt, .vtt or .txt, relative to
the folder of data.jsonl. "transcript_file" in place of "transcript" names a file with any ending.
Times, numbers and marks of subtitles, and lines that automatic captions repeat, are removed. For a
video without a transcript write "transcript not available". Optional fields: "split" (train, valid
or test), and "id", the video's key in the feature store (default: its file name, see --keys).

For a pretrained model, the text must become the tokens that the model knows: give --pretrained with
the folder that fairseq-mm convert has written, or with fairseq's BART (dict.txt, encoder.json,
vocab.bpe in one folder). The folder's features come from

  fairseq-mm extract data.jsonl --model resnext101_3d --weights FILE \
      --output DIR/features.h5

This names unreadable videos in DIR/features.h5.unreadable.tsv. Prepare again with
--features DIR/features.h5 --missing drop --overwrite to leave them out.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, ClassVar, Optional

from fairseq_mm.data.indexed_oov import index_oov_words, index_with, oov_token
from fairseq_mm.data.record_split import VIDEOS, Record
from fairseq_mm.data.subwords import SUBWORD_FILES, Subwords
from fairseq_mm.data.transcript_text import SOURCE, TARGET, is_not_available
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Example
from fairseq_mm.prepare.writer import FolderWriter, Vocabulary, json_line

# Yu et al. 2021 truncate texts to these lengths, </s> included
MAX_TOKENS = {SOURCE: 512, TARGET: 64}
_FIELDS = {SOURCE: "transcript", TARGET: "summary"}
_PLURALS = {SOURCE: "transcripts", TARGET: "summaries"}
DICTIONARY = f"dict.{SOURCE}.txt"


class VideoWriter(FolderWriter):
    """Writer of a data folder of transcripts (side ``tran``) and summaries (``desc``).

    ``subwords`` encodes the text that ``tokenize`` returns; both sides share the dictionary.
    """

    kind = VIDEOS
    sides: ClassVar[dict[str, tuple[str, str]]] = {
        SOURCE: ("transcript_tokens", "unknown_transcript_tokens"),
        TARGET: ("summary_tokens", "unknown_summary_tokens"),
    }
    extra_files = SUBWORD_FILES
    counts = (
        "videos",
        "transcripts_not_available",
        "transcript_tokens",
        "summary_tokens",
        "transcripts_cut",
        "summaries_cut",
    )
    left_out = "videos left out, a text has no word"

    def __init__(
        self,
        tokenize: Callable[[str], str],
        vocabulary: Vocabulary,
        subwords: Subwords,
        **options: Any,
    ) -> None:
        super().__init__(
            lambda text: subwords.encode(tokenize(text)), {DICTIONARY: vocabulary}, **options
        )
        self.subwords = subwords
        self.vocabulary = vocabulary
        vocabulary.symbols = list(map(oov_token, range(subwords.indexed_oov)))
        # one symbol more than --indexed-oov, to notice a dictionary that has too many
        symbols = [*vocabulary.symbols, oov_token(subwords.indexed_oov)]
        own_symbols = [symbol for symbol in symbols if symbol in (vocabulary.words or ())]
        if own_symbols and own_symbols != vocabulary.symbols:
            raise UserError(
                f"--dictionary {vocabulary.dictionary}: has {own_symbols[-1]}, but --indexed-oov "
                f"is {subwords.indexed_oov}; give as many as the dictionary has."
            )

    def encode(
        self, example: Example, counts: dict[str, int]
    ) -> Optional[tuple[Record, dict[str, list[str]]]]:
        tokens = {side: self.tokenize_field(example, field)[0] for side, field in _FIELDS.items()}
        if not all(tokens.values()):
            return None
        (transcript,) = example.texts["transcript"]
        counts["videos"] += 1
        counts["transcripts_not_available"] += is_not_available(transcript)
        for side, (number, _) in self.sides.items():
            counts[number] += len(tokens[side])
            # a text of exactly MAX_TOKENS is cut as well, since </s> takes one place
            counts[f"{_PLURALS[side]}_cut"] += len(tokens[side]) >= MAX_TOKENS[side]
        return self.record(example), {side: [" ".join(x)] for side, x in tokens.items()}

    def describe(self, counts: dict[str, int]) -> str:
        """Return the counts of a split as text, with the average lengths of its texts."""
        transcript = counts["transcript_tokens"] / counts["videos"]
        summary = counts["summary_tokens"] / counts["videos"]
        return (
            f"{super().describe(counts)}; on average {transcript:.1f} tokens in a transcript and "
            f"{summary:.1f} in a summary"
        )

    def options(self) -> dict[str, object]:
        return {
            "subwords": self.subwords.kind,
            "subwords_fingerprint": self.subwords.fingerprint,
            "numbered_unknowns": self.subwords.indexed_oov,
            **super().options(),
        }

    def finish_text(self, folder: Path, known: set[str], counts: dict[str, dict[str, int]]) -> None:
        """Write the subword tokenizer's files, and replace unknown words by ``<unk-0>`` and so on
        if the options ask for it."""
        self.subwords.save(folder)
        if self.subwords.indexed_oov:
            for split in counts:
                counts[split].update(self._index_oov(folder, split, known))

    def _index_oov(self, folder: Path, split: str, known: set[str]) -> dict[str, int]:
        """Replace words that are not in ``known``, and list them as ``unknowns`` in the records.
        Return the numbers of replaced words, by the name of the count."""
        counts = dict.fromkeys((f"numbered_in_{plural}" for plural in _PLURALS.values()), 0)
        paths = [folder / f"{split}.jsonl", *(folder / f"text/{split}.{x}" for x in self.sides)]
        # not splitlines(), which also splits at \x0b, \x85 and the like within a line
        texts = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in paths]
        with ExitStack() as files:
            records, source, target = (
                files.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
                for path in paths
            )
            for record, transcript, summary in zip(*texts):
                number = self.subwords.indexed_oov
                # numbers are shared: the summary can name an unknown word of its transcript
                words, oov_words = index_oov_words(transcript.split(), known, number)
                summary_words = index_with(summary.split(), known, oov_words)
                symbols = {oov_token(k) for k in range(len(oov_words))}
                counts["numbered_in_transcripts"] += sum(word in symbols for word in words)
                counts["numbered_in_summaries"] += sum(word in symbols for word in summary_words)
                source.write(" ".join(words) + "\n")
                target.write(" ".join(summary_words) + "\n")
                records.write(json_line({**json.loads(record), "unknowns": oov_words}) + "\n")
        return counts

    def check_unknown(self, side: str, split: str, counts: dict[str, int]) -> None:
        total, unknown = (counts[name] for name in self.sides[side])
        # with the dictionary of other subwords nearly every token is unknown, and a model would
        # learn nothing
        if self.vocabulary.dictionary is not None and 2 * unknown > total:
            raise UserError(
                f"--dictionary {self.vocabulary.dictionary}: {unknown:,} of {total:,} tokens of "
                f"the {split} split's {_FIELDS[side]} texts are not in it; is it of other subwords "
                f"than {self.subwords.kind}?"
            )
