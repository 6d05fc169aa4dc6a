"""A split of videos with transcripts and summaries, checked when read."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary

from fairseq_mm.data.binarised_text import load_binarised_text
from fairseq_mm.data.multimodal_dataset import check_line_counts, check_no_empty_line
from fairseq_mm.data.references import read_references
from fairseq_mm.data.unknowns_file import read_unknowns
from fairseq_mm.data.visual_ids import read_visual_ids
from fairseq_mm.errors import UserError


@dataclass(frozen=True)
class SummarySplit:
    """Lines of one split, as many of each kind.

    Args:
        base: path of its files, without their endings.
        text_path: of the summaries.
        transcripts: lines of tokens, each ending with ``</s>``.
        summaries: as ``transcripts``.
        visual_ids: the video of each line; None where the split has no such file.
    """

    base: str
    text_path: str
    transcripts: Any
    summaries: Any
    visual_ids: Optional[list[str]]

    @property
    def visual_path(self) -> str:
        return f"{self.base}.visual_ids"

    def read_unknowns(self) -> list[list[str]]:
        """Of each line the words that numbered unknowns stand for.

        Raises:
            UserError: if they are missing, or not as many as lines.
        """
        path = f"{self.base}.unknowns.jsonl"
        unknowns = read_unknowns(path)
        check_line_counts({self.text_path: len(self.summaries), path: len(unknowns)})
        return unknowns

    def read_references(self) -> tuple[dict[str, list[str]], str, list[str]]:
        """
        Returns:
            references: video -> its references.
            path: where they stand.
            visual_ids: the video of each line; without a file of them the references' order.

        Raises:
            UserError: if they are missing, or not as many as lines where no file names the videos.
        """
        path = f"{self.base}.references.jsonl"
        references = read_references(path)
        if self.visual_ids is not None:
            return references, path, self.visual_ids
        check_line_counts({self.text_path: len(self.summaries), path: len(references)})
        return references, path, list(references)


def read_summary_split(
    base: str, languages: Sequence[str], dictionary: Dictionary, *, needs_videos: bool
) -> SummarySplit:
    """
    Args:
        base: path of the split's files, without their endings.
        languages: endings of transcripts and summaries.
        dictionary: of both.
        needs_videos: the split must say which video belongs to each line.

    Raises:
        UserError: if files are missing or do not fit together, or a line is empty.
    """
    texts = {}
    for language in languages:
        path = f"{base}.{'-'.join(languages)}.{language}"
        text = load_binarised_text(path, num_types=len(dictionary), end=dictionary.eos())
        check_no_empty_line(f"{path}.idx", np.asarray(text.sizes))
        texts[f"{path}.idx"] = text
    counts = {path: len(text) for path, text in texts.items()}
    visual_path, visual_ids = f"{base}.visual_ids", None
    if needs_videos or os.path.exists(visual_path):
        visual_ids = read_visual_ids(visual_path)
        counts[visual_path] = len(visual_ids)
        for number, line in enumerate(visual_ids, start=1):
            if "\t" in line:
                raise UserError(
                    f"{visual_path}:{number}: must have one key, a video's, but is {line!r}."
                )
    check_line_counts(counts)
    transcripts, summaries = texts.values()
    return SummarySplit(base, list(texts)[1], transcripts, summaries, visual_ids)
