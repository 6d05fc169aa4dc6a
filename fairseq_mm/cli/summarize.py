"""Generate summaries of videos with transcripts, or of transcripts alone.

  fairseq-mm summarize a.mp4 --transcript a.srt --checkpoint checkpoints/vg_bart
  fairseq-mm summarize a.mp4 b.mp4 --transcripts a.srt b.txt --checkpoint best.pt --weights r3d.pth
  fairseq-mm summarize data.jsonl --checkpoint checkpoints/vg_bart --output summaries.jsonl
  fairseq-mm summarize test.transcripts.jsonl --features features.h5 --checkpoint checkpoints/vg_t5
  fairseq-mm summarize --transcript a.srt --checkpoint checkpoints/t5
  fairseq-mm summarize --transcript a.srt --checkpoint checkpoints/bart --data data/videos

Writes a line a video, path, tab, summary, in the order of the inputs. A JSONL file has an object a
line as fairseq-mm prepare videos reads them, {"video": "a.mp4", "transcript": text or file}, or
those of a data folder's SPLIT.transcripts.jsonl, {"id": ..., "transcript": ...}. A video without a
transcript has "transcript not available". The extractor is the one that the model was trained with;
its weights file is looked for beside the checkpoint, and known by its content. Transcripts and
videos are truncated as in training, and what is truncated is said on stderr. A video or transcript
that cannot be read is named there too, the others are summarised all the same, and the exit status
is 2.

The summaries are those of fairseq-generate: indexed OOV tokens are replaced by the words of the
transcript that they stand for, and with --sampling the draws of a video depend on --seed and its
position among the inputs alone. Text goes through --tokenizer before it becomes the model's
subwords; by default as the training data did, as far as that is known. How2's text is lower-cased
and split already, which other text is by --tokenizer words.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.progress import progress_bar
from fairseq_mm.cli.records import Record, model_facts, opened
from fairseq_mm.cli.run_set_up import load_generator
from fairseq_mm.errors import EXIT_STATUS, UserError
from fairseq_mm.generation.defaults import SUMMARIES

# names of videos that a remark has
MAX_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_mm.data.transcript_text import TOKENIZERS
    from fairseq_mm.extract.images import MAX_PIXELS
    from fairseq_mm.prepare.jsonl import KEYS

    parser.add_argument(
        "videos",
        nargs="*",
        metavar="VIDEO",
        help="Video, folder (with its subfolders) or .tar of videos, or .jsonl with their "
        "transcripts; with --features an id of the store or .jsonl.",
    )
    transcripts: dict[str, Any] = {"dest": "transcripts", "metavar": "FILE"}
    parser.add_argument(
        "--transcript",
        action="append",
        default=[],
        help="What is said in a video: .srt, .vtt, or text; once for each video, in their order.",
        **transcripts,
    )
    parser.add_argument(
        "--transcripts",
        action="extend",
        nargs="+",
        help="The same, several at once.",
        **transcripts,
    )
    arguments.add(parser, "checkpoint", "weights", "features")
    parser.add_argument(
        "--ids",
        choices=KEYS,
        help="What is printed of a video, and its id in --features: its file's name, the same "
        "without the ending, or its path (default: path; name in .jsonl).",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="Data folder whose dictionary and subwords a checkpoint of fairseq's own has, such as "
        "--arch bart_base; other checkpoints carry theirs.",
    )
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help="Tokenizer of the transcripts, as in fairseq-mm prepare videos: none, lower, or words "
        "(lower case, split into words and punctuation).",
    )
    arguments.add_generation(parser, SUMMARIES)
    output = parser.add_argument_group("output")
    arguments.add(
        output,
        *("jsonl", "output", "html"),
        jsonl={
            "help": "Write a JSON object a line: id, hypothesis, score, transcript_tokens, "
            "transcript_tokens_cut, frames (clips that were read), frames_cut, extractor, "
            "checkpoint (SHA-256), options."
        },
        output={"help": "Write to this file; .jsonl means --jsonl (default: standard output)."},
        html={"help": "Write a page of the summaries, with frames of the videos."},
    )
    run_options = parser.add_argument_group("run")
    arguments.add(
        run_options,
        *("device", "batch_size"),
        batch_size={
            "help": "Clips that the extractor gets at a time (default: 8 on a CPU, 64 elsewhere)."
        },
    )
    run_options.add_argument(
        "--keep-damaged",
        action="store_true",
        help="Take what can be decoded of truncated and damaged videos.",
    )
    run_options.add_argument(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        metavar="N",
        help="Videos with larger frames are refused (default: %(default)s).",
    )


def run(args: argparse.Namespace) -> int:
    _check_arguments(args)
    options = arguments.generation_options(args)
    paths = {"weights": args.weights, "data": args.data, "device": args.device}
    model = load_generator("summarize", args.checkpoint, **paths)
    config = model.config(**options)

    from fairseq_mm.cli.summarize_inputs import VideoInputs

    videos = VideoInputs(args, model)
    total = len(videos.inputs)
    record = Record(_facts(args, model, config), config.nbest)
    remarks, failed = _Remarks(model), 0
    cards: list[Any] = []
    size = model.processor.batch_sizes[model.device.type != "cpu"]
    with opened(args.output) as file, progress_bar(total, "videos", many=20) as bar:
        for start in range(0, total, size):
            found = []
            for index in range(start, min(start + size, total)):
                try:
                    found.append(videos.read(index))
                except UserError as error:
                    failed += 1
                    name = videos.inputs[index].name
                    if total == 1:
                        raise UserError(f"{name}: {error}") from None
                    bar.clear()
                    print(f"fairseq-mm summarize: {name}: {error}", file=sys.stderr)
                bar.update()
            generated = model.stream(
                [item.example for item in found], config, indices=[item.index for item in found]
            )
            for item, hypotheses in zip(found, generated):
                remarks.add(item)
                line = record.line(item.name, hypotheses, item.figures())
                print(line, file=file, flush=True)
                if args.html:
                    cards.append(_card_of(item, hypotheses[0]))
        if failed == total:
            raise UserError(f"none of the {failed} could be read.")
    if args.html:
        _write_page(args.html, model, cards)
    for line in remarks.lines():
        print(line, file=sys.stderr)
    done = f"{total - failed} " + ("summary" if total - failed == 1 else "summaries")
    for path in (args.output, args.html):
        if path:
            print(f"wrote {path}: {done}", file=sys.stderr)
    if failed:
        print(f"{failed} of {total} could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _check_arguments(args: argparse.Namespace) -> None:
    if not args.videos and not args.transcripts and not args.features:
        raise UserError("no videos: give files, or transcripts (--transcript), or --features.")
    lists = [path for path in args.videos if path.lower().endswith(".jsonl")]
    if lists and args.transcripts:
        raise UserError(f"--transcript: {lists[0]} brings its own; leave one of the two out.")
    if args.features:
        if args.transcripts and not args.videos:
            raise UserError("--transcript: name the item of --features that each belongs to.")
        for name in ("weights", "keep_damaged", "batch_size"):
            if getattr(args, name):
                raise UserError(
                    f"--{name.replace('_', '-')}: with --features no video is read; leave one of "
                    "the two out."
                )
    arguments.check_batch_size(args)
    for option, path in (("--output", args.output), ("--html", args.html)):
        arguments.check_writable(option, path)
    if args.html and args.html == args.output:
        raise UserError("--html and --output name one file; give two.")


def _facts(args: argparse.Namespace, model: Any, config: Any) -> Any:
    """What made the summaries, for records; None for text."""
    if not args.jsonl and not (args.output or "").lower().endswith(".jsonl"):
        return None
    processor, facts = model.processor, model_facts(model, config)
    facts["options"]["tokenizer"] = args.tokenizer or processor.encoder.tokenizer
    if processor.reader.reads_video:
        facts["extractor"] = processor.reader.identity
    return facts


class _Remarks:
    """What is said at the end of videos that were not read as they are.

    Args:
        model: that reads them.
    """

    def __init__(self, model: Any) -> None:
        from fairseq_mm.data.transcript_text import NOT_AVAILABLE

        limit, frames = model.processor.encoder.limit, model.processor.reader.max_frames
        self.without = f'no transcript ("{NOT_AVAILABLE}" is read)'
        self.cut_transcript = f"transcript truncated to {limit} tokens"
        self.cut_video = f"video truncated to {frames} frames (clips)"
        self.names: dict[str, list[str]] = {}

    def add(self, item: Any) -> None:
        transcript = item.example.origin
        if not transcript.is_available:
            self.names.setdefault(self.without, []).append(item.name)
        if transcript.num_cut:
            name = f"{item.name} (of {transcript.num_tokens})"
            self.names.setdefault(self.cut_transcript, []).append(name)
        if item.is_cut:
            self.names.setdefault(self.cut_video, []).append(item.name)

    def lines(self) -> list[str]:
        return [
            f"{remark}: {', '.join(names[:MAX_NAMED])}"
            + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
            for remark, names in self.names.items()
        ]


def _card_of(item: Any, best: Any) -> Any:
    from fairseq_mm.report.summary_cards import SummaryCard

    facts = {"score": round(best.score, 4), **item.figures()}
    return SummaryCard(item.name, best.text, item.example.origin.text, facts, item.images)


def _write_page(path: str, model: Any, cards: list[Any]) -> None:
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.summary_cards import cards_section

    subtitle = ", ".join([os.pathsep.join(model.files), *model.architectures])
    write_page(Path(path), render_page("Summaries", [cards_section(cards)], subtitle=subtitle))
