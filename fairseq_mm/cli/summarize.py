"""Generate summaries of videos with transcripts, or only of transcripts.

  fairseq-mm summarize a.mp4 --transcript a.srt --checkpoint checkpoints/vg_bart
  fairseq-mm summarize a.mp4 b.mp4 --transcript a.srt --transcript b.txt \\
      --checkpoint best.pt --weights r3d.pth
  fairseq-mm summarize data.jsonl --checkpoint best.pt --output summaries.jsonl
  fairseq-mm summarize test.transcripts.jsonl --features features.h5 \\
      --checkpoint checkpoints/vg_t5
  fairseq-mm summarize --transcript a.srt --checkpoint checkpoints/t5
  fairseq-mm summarize --transcript a.srt --checkpoint bart --data data-bin/own

Prints one line per video, the path, a tab and the summary, in input order. A
JSONL file has one object per line: either as fairseq-mm prepare videos reads
them, {"video": "a.mp4", "transcript": text or file}, or as in a data folder's
SPLIT.transcripts.jsonl, {"id": ..., "transcript": ...}. If a video has no
transcript, the model reads "transcript not available".

Video features are extracted with the network that the checkpoint was trained
on; its weights file is searched next to the checkpoint and verified by its
SHA-256 digest. Transcripts and videos are truncated as in training, which is
reported on stderr. Unreadable videos and transcripts are also reported on stderr
and skipped, and the exit status is then 2.

fairseq-generate prints the same summaries. Indexed OOV tokens are replaced by
the words of the transcript for which they stand. With --sampling, a
summary depends only on --seed and the position of its video among the inputs.
--tokenizer splits the text into words before it is split into subwords (default:
the tokenizer of the training data, if the checkpoint records it). How2's text is
already in lower case and split; --tokenizer words does this for other text.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rule
from fairseq_mm.cli.generate import Input, TextRun, read_jsonl_inputs, remove_name
from fairseq_mm.cli.records import counted, json_line
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.transcript_text import NOT_AVAILABLE, TOKENIZERS
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SUMMARIES
from fairseq_mm.prepare.jsonl import KEYS, make_visual_key

# maximum number of videos that a remark names
MAX_NAMED = 3
# number of frames of a video on the page
PAGE_IMAGES = 6
_NO_TRANSCRIPT = f'no transcript ("{NOT_AVAILABLE}" is read)'
_RULES = (Rule("features", excludes=("weights",), because="no video is read"),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="VIDEO",
        help="Video, folder (with its subfolders) or .tar of videos, or .jsonl with their "
        "transcripts; with --features an id of the store or .jsonl.",
    )
    parser.add_argument(
        "--transcript",
        action="append",
        default=[],
        metavar="FILE",
        help="Transcript of a video: .srt, .vtt, or text; once for each video, in their order.",
    )
    arguments.add(
        parser,
        *("checkpoint", "weights", "features", "data"),
        data={
            "help": "Data folder with the dictionary and subwords of a checkpoint of fairseq's own "
            "models, such as --arch bart_base; other checkpoints contain them."
        },
    )
    parser.add_argument(
        "--ids",
        choices=KEYS,
        help="Name of a video in the output, and its id in --features: the name of its file, with "
        "or without its ending, or its path (default: path; name in .jsonl).",
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
            "help": "Write one JSON object per line: id, hypothesis, score, transcript_tokens, "
            "transcript_tokens_cut, frames (clips that were read), frames_cut, extractor, "
            "checkpoint (SHA-256), options."
        },
        html={"help": "Write a page of the summaries, with frames of the videos."},
    )
    arguments.add(parser.add_argument_group("run"), "device", "batch_size")


def run(args: argparse.Namespace) -> int:
    arguments.check(args, _RULES)
    if not args.inputs and not args.transcript and not args.features:
        raise UserError("no videos: give files, or transcripts (--transcript), or --features.")
    lists = [path for path in args.inputs if path.lower().endswith(".jsonl")]
    if lists and args.transcript:
        raise UserError(f"--transcript: {lists[0]} brings its own; leave one of the two out.")
    if args.features and args.transcript and not args.inputs:
        raise UserError("--transcript: name the item of --features that each belongs to.")
    options = arguments.generation_options(args)
    paths = {"weights": args.weights, "data": args.data, "device": args.device}
    register_quietly()
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.inference.pretrained import from_checkpoints

    checkpoints = Checkpoint.open_all(args.checkpoint, data=args.data, command="summarize")
    model: Any = from_checkpoints(checkpoints, **paths)
    config, reader = model.config(**options), model.processor.reader
    inputs = _list_inputs(args, model.processor)
    has_video = any(item.value.get("video") is not None for item in inputs if item.value)
    store: Any = None
    if args.features:
        store, inputs = _open_store(args.features, reader, inputs)
    elif has_video and not reader.reads_video:
        print(f"{reader.name} reads no video: transcripts alone are summarised", file=sys.stderr)
    elif has_video:
        # an extractor that cannot be rebuilt is reported before any video is read
        reader.load_extractor()
    return _write_summaries(args, model, config, inputs, store)


def _list_inputs(args: argparse.Namespace, processor: Any) -> list[Input]:
    """Return the inputs that the command line names.

    The ``value`` of each input is a dictionary with ``video``, ``transcript`` or both.
    """
    inputs: list[Input] = []
    for path in args.inputs:
        if path.lower().endswith(".jsonl"):
            inputs += _read_jsonl(path, processor, args.ids)
        elif args.features:
            inputs.append(Input(path, 0, {}))
        else:
            inputs += _list_videos(path, args.ids or "path")
    if args.transcript:
        inputs = inputs or [Input(path, 0, {}) for path in args.transcript]
        if len(inputs) != len(args.transcript):
            raise UserError(
                f"there must be a transcript for each video, in their order, but there are "
                f"{len(args.transcript)} transcripts and {len(inputs)} videos."
            )
        inputs = [_add_transcript(*pair) for pair in zip(inputs, args.transcript)]
    return [item._replace(index=index) for index, item in enumerate(inputs)]


def _read_jsonl(path: str, processor: Any, ids: Optional[str]) -> Iterator[Input]:
    seen: dict[str, str] = {}
    for item, entry in read_jsonl_inputs(path, processor):
        name, where = item.name, str(item.where)
        if entry["id"] is None:
            if not isinstance(entry.get("video"), str):
                raise UserError(f'{where}: must have "video" (a path) or "id".')
            name = make_visual_key(entry["video"], ids or "name")
        if seen.setdefault(name, where) != where:
            raise UserError(
                f"{where}: video {name} was given before, at {seen[name]}; --ids path tells "
                "files of one name apart."
            )
        yield item._replace(name=name, where=None if item.error is None else where)


def _open_store(features: str, reader: Any, inputs: list[Input]) -> tuple[Any, list[Input]]:
    """Open the feature store; return the store and the inputs.

    If ``inputs`` is empty, every video of the store becomes an input; else their names must be ids
    of the store.
    """
    from fairseq_mm.data.feature_store import open_features

    reader.check_reads_video("--features:")
    store = open_features(features.split(os.pathsep))
    reader.check_features(store.attributes, store.dim, store.path)
    for item in inputs:
        # reports an id that is not in the store, before summaries are generated
        store.count_rows(item.name)
    return store, inputs or [Input(key, index, {}) for index, key in enumerate(store.ids)]


class _Reading(NamedTuple):
    """Result of reading one input.

    Attributes:
        example: Example for the model.
        is_cut: True if the video was truncated.
        images: Frames of the video, [height, width, 3] uint8, that the page of ``--html`` shows;
            empty without ``--html``.
    """

    example: Any
    is_cut: bool
    images: Sequence[Any]


def _read_video(args: argparse.Namespace, processor: Any, item: Input, store: Any) -> _Reading:
    value, is_cut, images, reader = dict(item.value), False, (), processor.reader
    if store is not None:
        value["video"] = store.read(item.name)
        is_cut = len(value["video"]) > reader.max_frames
    elif not reader.reads_video:
        value.pop("video", None)
    elif value.get("video") is not None:
        value["video"], is_cut, images = reader.read_video(
            value["video"],
            batch_size=args.batch_size,
            num_images=PAGE_IMAGES if args.html else 0,
        )
    (example,) = processor.examples([value], tokenizer=args.tokenizer)
    if isinstance(example, UserError):
        raise example
    return _Reading(example, is_cut, images)


def _write_summaries(
    args: argparse.Namespace, model: Any, config: Any, inputs: Sequence[Input], store: Any
) -> int:
    """Generate and write summaries; return the exit status.

    If ``store`` is None, features are extracted from the video files.
    """
    reader = model.processor.reader
    texts = TextRun("summarize", args, [model], [config], inputs)
    (facts,) = texts.provenance()
    if facts:
        facts["options"]["tokenizer"] = args.tokenizer or model.processor.encoder.tokenizer
    # an entry is removed when its summary is written, so that frames do not pile up
    readings: dict[int, _Reading] = {}
    truncated: dict[str, list[str]] = {}
    cards: list[tuple[Any, ...]] = []

    def read(inputs: Sequence[Input]) -> Iterator[Any]:
        for item in inputs:
            try:
                readings[item.index] = _read_video(args, model.processor, item, store)
            except UserError as error:
                yield error
            else:
                yield [readings[item.index].example]

    # read one batch at a time: features of videos are large, and reading takes long
    size = model.processor.batch_sizes[model.device.type != "cpu"]
    with texts.open_outputs():
        for item, _, (hypotheses,) in texts.generate(read, size=size):
            example, is_cut, images = readings.pop(item.index)
            transcript = example.origin
            fields: dict[str, Any] = {
                "transcript_tokens": transcript.num_tokens,
                "transcript_tokens_cut": transcript.num_cut,
            }
            if example.features is not None:
                fields.update(frames=len(example.features), frames_cut=is_cut)
            if texts.form == "jsonl":
                lines = [json_line(item.name, hypotheses, {**fields, **facts})]
            else:
                lines = [f"{item.name}\t{hypothesis.text}" for hypothesis in hypotheses]
            texts.write(lines, len(hypotheses))
            if not transcript.is_available:
                truncated.setdefault(_NO_TRANSCRIPT, []).append(item.name)
            if transcript.num_cut:
                remark = f"transcript truncated to {model.processor.encoder.limit} tokens"
                name = f"{item.name} (of {transcript.num_tokens})"
                truncated.setdefault(remark, []).append(name)
            if is_cut:
                remark = f"video truncated to {reader.max_frames} frames (clips)"
                truncated.setdefault(remark, []).append(item.name)
            if args.html:
                best = hypotheses[0]
                shown = {"score": round(best.score, 4), **fields}
                cards.append((item.name, best.text, transcript.text, shown, images))
    page = ""
    if args.html:
        _write_page(args.html, model, cards)
        # counted by card, because --nbest writes more summaries than the page has
        page = counted(len(cards), *texts.text_names)
    remarks = []
    for remark, names in truncated.items():
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        remarks.append(f"{remark}: {', '.join(names[:MAX_NAMED])}{more}")
    return texts.finish(remarks, page)


def _write_page(path: str, model: Any, cards: Sequence[tuple[Any, ...]]) -> None:
    from PIL import Image

    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section
    from fairseq_mm.report.thumbnails import jpeg_uri

    items = []
    for name, summary, transcript, facts, frames in cards:
        uris = [jpeg_uri(Image.fromarray(pixels)) for pixels in frames]
        images = {f"frame {n} of {name}": uri for n, uri in enumerate(uris, 1)}
        items.append(Item(name, [ItemText(summary, facts)], images, transcript=transcript))
    sections = [gallery_section(items, heading="")]
    subtitle = ", ".join([os.pathsep.join(model.files), *model.architectures])
    write_page(Path(path), render_page("Summaries", sections, subtitle=subtitle))


def _list_videos(path: str, ids: str) -> Iterator[Input]:
    from fairseq_mm.extract.media_list import VIDEOS, list_images
    from fairseq_mm.prepare.subtitles import TRANSCRIPT_SUFFIXES

    try:
        if path.lower().endswith(TRANSCRIPT_SUFFIXES):
            raise UserError("is no video, but a transcript: --transcript FILE.")
        videos = list_images([path], ids=ids, kind=VIDEOS)
    except UserError as error:
        yield Input(path, 0, error=remove_name(error, path))
    else:
        for video in videos:
            yield Input(video.name if ids == "path" else video.key, 0, {"video": video})


def _add_transcript(item: Input, path: str) -> Input:
    from fairseq_mm.prepare.subtitles import read_transcript

    if item.error is not None:
        return item
    try:
        return item._replace(value={**item.value, "transcript": read_transcript(Path(path))})
    except UserError as error:
        return item._replace(error=remove_name(error, item.name))
