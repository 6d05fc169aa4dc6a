"""``fairseq-mm summarize``: what is printed of a summary, and said of what was not read."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.cli.tell_output import hashes_of
from fairseq_mm.data.transcript_text import NOT_AVAILABLE
from fairseq_mm.report.html_page import render_page, write_page
from fairseq_mm.report.summary_cards import SummaryCard, cards_section

# videos from which on a bar shows how far the work is
MANY = 20
# names that a remark has
MAX_NAMED = 3


class Entry(NamedTuple):
    """What the models read of a video.

    Attributes:
        name: what is printed.
        transcript: of :meth:`.VideoSummarizer.encode_transcript`.
        rows: ``[frames, D]``; None where no video is read.
        is_cut: the video has more frames.
        images: some of its frames, ``[height, width, 3]`` uint8.
    """

    name: str
    transcript: Any
    rows: Optional[np.ndarray] = None
    is_cut: bool = False
    images: tuple[np.ndarray, ...] = ()


class Description:
    """The line that is printed for a summary, and the page of all.

    Args:
        args: of the command line.
        summarizer: that makes the summaries.
        search: how.
    """

    def __init__(self, args: argparse.Namespace, summarizer: Any, search: Any) -> None:
        options = {
            **dataclasses.asdict(search),
            "max_len": summarizer.check_search(search),
            "tokenizer": args.tokenizer or summarizer.encoder.tokenizer,
        }
        self.subtitle = ", ".join([os.pathsep.join(summarizer.files), *summarizer.architectures])
        self.is_jsonl = args.jsonl or (args.output or "").lower().endswith(".jsonl")
        self.has_page = bool(args.html)
        self.cards: list[SummaryCard] = []
        self.facts: dict[str, Any] = {}
        if self.is_jsonl:
            if summarizer.reads_video:
                self.facts["extractor"] = summarizer.identity
            self.facts["checkpoint"] = hashes_of(summarizer.files)
            self.facts["options"] = options

    def of_summary(self, entry: Entry, summary: Any) -> str:
        facts = {"score": round(summary.score, 4), **_read_of(entry)}
        if self.has_page:
            text = entry.transcript.text
            self.cards.append(SummaryCard(entry.name, summary.text, text, facts, entry.images))
        if not self.is_jsonl:
            return f"{entry.name}\t{summary.text}"
        line = {"id": entry.name, "hypothesis": summary.text, **facts, **self.facts}
        return json.dumps(line, ensure_ascii=False)

    def write_page(self, path: str) -> None:
        """
        Raises:
            UserError: if the file cannot be written.
        """
        page = render_page("Summaries", [cards_section(self.cards)], subtitle=self.subtitle)
        write_page(Path(path), page)


def _read_of(entry: Entry) -> dict[str, Any]:
    read: dict[str, Any] = {
        "transcript_tokens": entry.transcript.num_tokens,
        "transcript_tokens_cut": entry.transcript.num_cut,
    }
    if entry.rows is not None:
        read["frames"] = len(entry.rows)
        read["frames_cut"] = entry.is_cut
    return read


class Notes:
    """What is said at the end of videos that were not read as they are.

    Args:
        summarizer: that reads them.
    """

    def __init__(self, summarizer: Any) -> None:
        self.summarizer = summarizer
        self.without: list[str] = []
        self.cut_transcripts: list[str] = []
        self.cut_videos: list[str] = []

    def add(self, entry: Entry) -> None:
        transcript = entry.transcript
        if not transcript.is_available:
            self.without.append(entry.name)
        if transcript.num_cut:
            self.cut_transcripts.append(f"{entry.name} (of {transcript.num_tokens})")
        if entry.is_cut:
            self.cut_videos.append(entry.name)

    def lines(self) -> list[str]:
        summarizer = self.summarizer
        noted = (
            (f'no transcript ("{NOT_AVAILABLE}" is read)', self.without),
            (f"transcript cut to {summarizer.encoder.limit} tokens", self.cut_transcripts),
            (f"video cut to {summarizer.max_frames} frames (clips)", self.cut_videos),
        )
        return [f"{what}: {_named(names)}" for what, names in noted if names]


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def progress_bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit=" videos", file=sys.stderr, disable=total < MANY or None)
