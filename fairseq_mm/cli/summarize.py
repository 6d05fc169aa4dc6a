"""Generate summaries of videos with transcripts, or of transcripts alone.

  fairseq-mm summarize a.mp4 --transcript a.srt --checkpoint checkpoints/vg_bart
  fairseq-mm summarize a.mp4 b.mp4 --transcripts a.srt b.txt \\
      --checkpoint best.pt --weights r3d.pth
  fairseq-mm summarize data.jsonl --checkpoint best.pt --output summaries.jsonl
  fairseq-mm summarize test.transcripts.jsonl --features features.h5 \\
      --checkpoint checkpoints/vg_t5
  fairseq-mm summarize --transcript a.srt --checkpoint checkpoints/t5
  fairseq-mm summarize --transcript a.srt --checkpoint bart --data data-bin/own

Writes one line per video (path, tab, summary) in the order of the inputs. A JSONL
file has an object a line as fairseq-mm prepare videos reads them, {"video":
"a.mp4", "transcript": text or file}, or those of a data folder's
SPLIT.transcripts.jsonl, {"id": ..., "transcript": ...}. A video without a
transcript has "transcript not available". The extractor is the one that the
model was trained with; its weights file is looked for beside the checkpoint,
and known by its content. Transcripts and videos are truncated as in training,
and what is truncated is said on stderr. A video or transcript that cannot be
read is named there too, the others are summarised all the same, and the exit
status is 2.

The summaries are those of fairseq-generate: indexed OOV tokens are replaced by
the words of the transcript that they stand for, and with --sampling the draws
of a video depend on --seed and its position among the inputs alone. Text goes
through --tokenizer before it becomes the model's subwords; by default as the
training data did, as far as that is known. How2's text is lower-cased and split
already, which other text is by --tokenizer words.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rule
from fairseq_mm.cli.generate import Flow, Input, inputs_of_jsonl, without_name
from fairseq_mm.cli.records import counted
from fairseq_mm.cli.run_set_up import load_generator
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SUMMARIES
from fairseq_mm.prepare.jsonl import KEYS, make_visual_key

# names of videos that a remark has
MAX_NAMED = 3
# middle frames of a video on the page
PAGE_IMAGES = 6
_RULES = (Rule("features", excludes=("weights", "keep_damaged"), because="no video is read"),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_mm.data.transcript_text import TOKENIZERS

    parser.add_argument(
        "inputs",
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
    arguments.add(
        parser,
        *("checkpoint", "weights", "features", "data"),
        data={
            "help": "Data folder whose dictionary and subwords a checkpoint of fairseq's own has, "
            "such as --arch bart_base; other checkpoints carry theirs."
        },
    )
    parser.add_argument(
        "--ids",
        choices=KEYS,
        help="What is printed of a video, and its id in --features: its file's name, the same "
        "without the ending, or its path (default: path; name in .jsonl).",
    )
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help="Tokenizer of the transcripts, as in fairseq-mm prepare videos: none, lower, or words "
        "(lower case, split into words and punctuation).",
    )
    arguments.add_generation(parser, SUMMARIES)
    arguments.add(
        parser.add_argument_group("output"),
        *("jsonl", "output", "html"),
        jsonl={
            "help": "Write a JSON object a line: id, hypothesis, score, transcript_tokens, "
            "transcript_tokens_cut, frames (clips that were read), frames_cut, extractor, "
            "checkpoint (SHA-256), options."
        },
        html={"help": "Write a page of the summaries, with frames of the videos."},
    )
    run_options = parser.add_argument_group("run")
    arguments.add(run_options, "device", "batch_size", "max_pixels")
    run_options.add_argument(
        "--keep-damaged",
        action="store_true",
        help="Take what can be decoded of truncated and damaged videos.",
    )


def run(args: argparse.Namespace) -> int:
    arguments.check(args, _RULES)
    if not args.inputs and not args.transcripts and not args.features:
        raise UserError("no videos: give files, or transcripts (--transcript), or --features.")
    lists = [path for path in args.inputs if path.lower().endswith(".jsonl")]
    if lists and args.transcripts:
        raise UserError(f"--transcript: {lists[0]} brings its own; leave one of the two out.")
    if args.features and args.transcripts and not args.inputs:
        raise UserError("--transcript: name the item of --features that each belongs to.")
    options = arguments.generation_options(args)
    paths = {"weights": args.weights, "data": args.data, "device": args.device}
    model = load_generator("summarize", args.checkpoint, **paths)
    return Summaries(args, model, model.config(**options)).run()


class Summaries(Flow):
    """Summaries of videos with transcripts.

    Args:
        args: of the command line.
        model: that generates.
        config: of generation.

    Raises:
        UserError: if an input is not understood, or is none of the model's.
    """

    command = "summarize"

    def __init__(self, args: argparse.Namespace, model: Any, config: Any) -> None:
        from fairseq_mm.data.transcript_text import NOT_AVAILABLE

        self.args = args
        self.processor = model.processor
        self.reader = model.processor.reader
        inputs = self._inputs()
        self.store: Any = None
        has_video = any(item.value.get("video") is not None for item in inputs if item.value)
        if args.features:
            self.reader.check_reads_video("--features:")
            inputs = self._open_store(inputs)
        elif has_video and not self.reader.reads_video:
            print(
                f"{self.reader.name} reads no video: transcripts alone are summarised",
                file=sys.stderr,
            )
        elif has_video:
            self.reader.extractor  # noqa: B018  one that cannot be rebuilt is named first
        super().__init__(args, [model], [config], inputs)
        self.size = self.processor.batch_sizes[model.device.type != "cpu"]
        # index of an input -> whether its video has more frames, and some of them for the page
        self.details: dict[int, tuple[bool, Sequence[Any]]] = {}
        self.cards: list[Any] = []
        self.truncated: dict[str, list[str]] = {}
        self.remark_of = {
            "transcript": f'no transcript ("{NOT_AVAILABLE}" is read)',
            "tokens": f"transcript truncated to {self.processor.encoder.limit} tokens",
            "frames": f"video truncated to {self.reader.max_frames} frames (clips)",
        }

    def facts_of(self, model: Any, config: Any) -> dict[str, Any]:
        facts = super().facts_of(model, config)
        facts["options"]["tokenizer"] = self.args.tokenizer or self.processor.encoder.tokenizer
        return facts

    def _inputs(self) -> list[Input]:
        """In the order of the command line; their values are as of :class:`.Video`.

        Raises:
            UserError: if there are not as many transcripts as videos, or two videos of a file have
                one name.
        """
        args = self.args
        found: list[Input] = []
        for path in args.inputs:
            if path.lower().endswith(".jsonl"):
                found += self._of_jsonl(path)
            elif args.features:
                found.append(Input(path, 0, {}))
            else:
                found += _of_videos(path, args.ids or "path")
        if args.transcripts:
            found = found or [Input(path, 0, {}) for path in args.transcripts]
            if len(found) != len(args.transcripts):
                raise UserError(
                    f"there must be a transcript for each video, in their order, but there are "
                    f"{len(args.transcripts)} transcripts and {len(found)} videos."
                )
            found = [_with_transcript(*pair) for pair in zip(found, args.transcripts)]
        return [item._replace(index=index) for index, item in enumerate(found)]

    def _of_jsonl(self, path: str) -> Iterator[Input]:
        seen: dict[str, str] = {}
        for item, entry in inputs_of_jsonl(path, self.processor):
            name, where = item.name, str(item.where)
            if entry["id"] is None:
                if not isinstance(entry.get("video"), str):
                    raise UserError(f'{where}: must have "video" (a path) or "id".')
                name = make_visual_key(entry["video"], self.args.ids or "name")
            if seen.setdefault(name, where) != where:
                raise UserError(
                    f"{where}: video {name} was given before, at {seen[name]}; --ids path tells "
                    "files of one name apart."
                )
            yield item._replace(name=name, where=None if item.error is None else where)

    def _open_store(self, inputs: list[Input]) -> list[Input]:
        from fairseq_mm.data.feature_store import open_features

        self.store = open_features(self.args.features.split(os.pathsep))
        self.reader.check_features(self.store.attributes, self.store.dim, self.store.path)
        for item in inputs:
            self.store.count_rows(item.name)  # one that it lacks is named before the work begins
        return inputs or [Input(key, index, {}) for index, key in enumerate(self.store.ids)]

    def read(self, inputs: Sequence[Input]) -> Iterator[Any]:
        for item in inputs:
            try:
                yield [self._example_of(item)]
            except UserError as error:
                yield error

    def _example_of(self, item: Input) -> Any:
        value, is_cut, images = dict(item.value), False, ()
        if self.store is not None:
            value["video"] = self.store.read(item.name)
            is_cut = len(value["video"]) > self.reader.max_frames
        elif not self.reader.reads_video:
            value.pop("video", None)
        elif value.get("video") is not None:
            value["video"], is_cut, images = self.reader.read_video(
                value["video"],
                batch_size=self.args.batch_size,
                keep_damaged=self.args.keep_damaged,
                max_pixels=self.args.max_pixels,
                num_images=PAGE_IMAGES if self.args.html else 0,
            )
        (example,) = self.processor.examples([value], tokenizer=self.args.tokenizer)
        if isinstance(example, UserError):
            raise example
        self.details[item.index] = (is_cut, images)
        return example

    def others(self, item: Input, example: Any, found: Any) -> tuple[dict[str, Any], list[str]]:
        """How much was read."""
        transcript, is_cut = example.origin, self.details[item.index][0]
        figures = {
            "transcript_tokens": transcript.num_tokens,
            "transcript_tokens_cut": transcript.num_cut,
        }
        if example.features is not None:
            figures.update(frames=len(example.features), frames_cut=is_cut)
        return figures, []

    def show(self, item: Input, examples: Sequence[Any], found: Sequence[Any]) -> None:
        transcript = examples[0].origin
        is_cut, images = self.details[item.index]
        for kind, name in (
            ("transcript", "" if transcript.is_available else item.name),
            ("tokens", transcript.num_cut and f"{item.name} (of {transcript.num_tokens})"),
            ("frames", is_cut and item.name),
        ):
            if name:
                self.truncated.setdefault(self.remark_of[kind], []).append(name)
        if self.args.html:
            from fairseq_mm.report.summary_cards import SummaryCard

            best = found[0][0]
            facts = {"score": round(best.score, 4), **self.others(item, examples[0], found)[0]}
            self.cards.append(SummaryCard(item.name, best.text, transcript.text, facts, images))

    def remarks(self) -> Iterator[str]:
        for remark, names in self.truncated.items():
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            yield f"{remark}: {', '.join(names[:MAX_NAMED])}{more}"

    def write_page(self, number: str) -> str:
        from fairseq_mm.report.html_page import render_page, write_page
        from fairseq_mm.report.summary_cards import cards_section

        (model,) = self.models
        subtitle = ", ".join([os.pathsep.join(model.files), *model.architectures])
        page = render_page("Summaries", [cards_section(self.cards)], subtitle=subtitle)
        write_page(Path(self.args.html), page)
        return counted(len(self.cards), *self.text_names)  # the best of each video


def _of_videos(path: str, ids: str) -> Iterator[Input]:
    from fairseq_mm.extract.media_list import VIDEOS, list_images
    from fairseq_mm.prepare.subtitles import TRANSCRIPT_SUFFIXES

    try:
        if path.lower().endswith(TRANSCRIPT_SUFFIXES):
            raise UserError("is no video, but a transcript: --transcript FILE.")
        videos = list_images([path], ids=ids, kind=VIDEOS)
    except UserError as error:
        yield Input(path, 0, error=without_name(error, path))
    else:
        for video in videos:
            yield Input(video.name if ids == "path" else video.key, 0, {"video": video})


def _with_transcript(item: Input, path: str) -> Input:
    from fairseq_mm.prepare.subtitles import read_transcript

    if item.error is not None:
        return item
    try:
        return item._replace(value={**item.value, "transcript": read_transcript(Path(path))})
    except UserError as error:
        return item._replace(error=without_name(error, item.name))
