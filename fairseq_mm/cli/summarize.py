"""Generate summaries of videos with transcripts, or only of transcripts.

  fairseq-mm summarize a.mp4 --transcript a.srt --checkpoint checkpoints/vg_bart
  fairseq-mm summarize a.mp4 b.mp4 --transcript a.srt --transcript b.txt \\
      --checkpoint best.pt --weights r3d.pth
  fairseq-mm summarize data.jsonl --checkpoint best.pt --output summaries.jsonl
  fairseq-mm summarize data-bin/how2 --split test --checkpoint checkpoints/vg_t5
  fairseq-mm summarize --transcript a.srt --checkpoint checkpoints/t5

Prints one line per video, the path, a tab and the summary, in input order. A line
of FILE.jsonl is {"video": "a.mp4", "transcript": text or file}. If a video has no
transcript, the model reads "transcript not available".

Transcripts and videos are truncated as in training, which is reported on stderr.
Unreadable inputs are reported, too, and skipped; the exit status is then 2.
"""

import argparse

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rule
from fairseq_mm.cli.generate import run_task
from fairseq_mm.cli.records import Item
from fairseq_mm.data.transcript_text import TOKENIZERS
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SUMMARIES

_RULES = (
    Rule("checkpoint", needs=("inputs", "transcript", "features"), because="it summarizes videos"),
    Rule("split", excludes=("transcript",)),
)
_ARGUMENTS: arguments.Rows = {
    "--transcript": (
        "Transcript of a video: .srt, .vtt, or text; once for each video, in their order.",
        {**arguments.REPEATED, "metavar": "FILE"},
    ),
    "--tokenizer": (
        "Tokenizer of the transcripts, as in fairseq-mm prepare videos (default: as in training).",
        {"choices": TOKENIZERS},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_inputs(parser, "Video, folder (with its subfolders) or .tar of videos")
    arguments.add_rows(parser, _ARGUMENTS)
    arguments.add(parser, "checkpoint", "weights", "split", "features", "data")
    arguments.add_generation(parser, SUMMARIES)
    arguments.add_output(parser, "jsonl", "output", "html")


def run(args: argparse.Namespace) -> int:
    def add_transcripts(items: list[Item]) -> list[Item]:
        paths = args.transcript
        if not paths:
            return items
        if not args.inputs:
            items = [Item(index, {"id": path}) for index, path in enumerate(paths)]
        if len(items) != len(paths):
            raise UserError(
                f"there must be a transcript for each video, in their order, but there are "
                f"{len(paths)} transcripts and {len(items)} videos."
            )
        return [
            item._replace(record={**item.record, "transcript_file": path})
            for item, path in zip(items, paths)
        ]

    return run_task(args, "summarize", rules=_RULES, change=add_transcripts)
