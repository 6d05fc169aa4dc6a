"""Runs ``fairseq-mm inspect`` for summaries of videos: attention to frames, and forget gates."""

import argparse
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from fairseq_mm.analysis import rounded
from fairseq_mm.analysis.video_inspection import GateScores, VideoInspection
from fairseq_mm.cli.inspect import Inspection, Part, check_line
from fairseq_mm.cli.records import progress_bar
from fairseq_mm.cli.score_inputs import check_generated_for, get_oov_words, restored
from fairseq_mm.data.transcript_text import is_not_available
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import VIDEOS, MediaFile, by_any_key, list_images
from fairseq_mm.extract.videos import VideoReader, import_av
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.metrics.hypotheses import read_hypotheses
from fairseq_mm.report.inspection import gate_sections, make_video_section
from fairseq_mm.report.thumbnails import jpeg_uri
from fairseq_mm.report.video_attention import Times

MAX_THUMBNAILS = 12
_SIDE, _QUALITY = 160, 75
MOST_BINS = 40
ALL, AVAILABLE, APART = "all", "transcript available", "transcript not available"


def inspect(args: argparse.Namespace, checkpoint: Checkpoint) -> Inspection:
    """Inspect summaries of videos with one model: attention to the frames, or forget gates."""
    if args.data is None:
        raise UserError(f"{args.source}: must be a data folder for a model of videos.")
    # fairseq passes a bool padding mask together with a float mask of future tokens. PyTorch
    # accepts both, but warns that the types differ.
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
    inspection = VideoInspection.from_checkpoints(
        [checkpoint], args.data, args.split or "valid", features=args.features, device=args.device
    )
    split = inspection.split
    about = f"{checkpoint.arch}, {checkpoint.path}; {split.name} of {args.data}"
    for line in args.lines or ():
        check_line(line, len(inspection.dataset), split.path)
    summaries = None
    if args.hypotheses:
        items, ids = list(split.references()), split.items
        file = read_hypotheses(args.hypotheses, item_ids=items, visual_ids=ids, split=split.name)
        check_generated_for(args.hypotheses, file.output, split)
        oov_words = get_oov_words(split)
        summaries = {key: restored(text, oov_words.get(key)) for key, text in file.texts.items()}
    references, transcripts = split.references(), split.field("transcript")

    def get_fields(line: int) -> dict[str, Any]:
        """Return the fields about texts in the line's JSON record."""
        key, transcript = split.items[line], transcripts[line] or inspection.transcript(line)
        given = {"hypothesis": summaries[key]} if summaries and key in summaries else {}
        # How2 has one reference per video, and the page shows one.
        return {
            "transcript_available": bool(transcript.strip()) and not is_not_available(transcript),
            **given,
            "reference": references[key][0],
        }

    if args.gates:
        with progress_bar(len(inspection.dataset), "videos", many=100) as bar:
            scores = inspection.gate_scores(args.lines, summaries=summaries, on_batch=bar.update)
        records = [{**record, **get_fields(record["item"])} for record in scores.records()]
        result = _summarize_gates(scores, records)
        subtitle = (
            f"{about}. Each video's score is the mean of the gate over the text's tokens and the "
            "feature dimension: 0 nothing of what is read in the video gets through, 1 all of it."
        )
        part = Part(records, lambda: gate_sections(result))
        return Inspection("Forget gates", subtitle, iter([part]), result, tuple(_describe(result)))
    lines = args.lines or [0]
    what = "a summary of a video" if len(lines) == 1 else f"{len(lines)} summaries of videos"
    parts = _inspect_attention(args, inspection, summaries, get_fields, lines)
    return Inspection(f"Attention of {what}", about, parts)


def _inspect_attention(
    args: argparse.Namespace,
    inspection: VideoInspection,
    summaries: Optional[Mapping[str, str]],
    get_fields: Callable[[int], dict[str, Any]],
    lines: list[int],
) -> Iterator[Part]:
    videos: dict[str, Any] = {}
    if args.videos:
        import_av()  # reports a missing package before attention is computed
        videos = by_any_key(list_images(args.videos, ids="path", kind=VIDEOS))
    for attention in inspection.frame_attention(lines, summaries=summaries):
        fields = get_fields(attention.line)
        times = Times(clip_step(inspection.attributes))
        if attention.id in videos:
            video = videos[attention.id]
            try:
                times = video_times(video, attention.num_frames, inspection.attributes)
            except UserError as error:
                raise UserError(f"{video.name}: {error}") from None
        record = {
            "id": attention.id,
            "item": attention.line,
            "frames": attention.num_frames,
            "seconds_per_frame": None if times.step is None else rounded(times.step),
            **fields,
            "attention": [side.record(layers=args.layers) for side in attention.maps],
        }
        if len(attention.gates):
            record["gates"] = dict(zip(inspection.gate_layers, rounded(attention.gates)))

        # Default values bind this line's data; a closure would see the data of the last line.
        def draw(line: Any = attention, fields: Any = fields, times: Any = times) -> list[Any]:
            return [make_video_section(line, inspection.transcript(line.line), fields, times)]

        yield Part([record], draw)


def clip_step(attributes: Mapping[str, Any], frame_rate: Optional[float] = None) -> Optional[float]:
    """Return the seconds from one feature's clip to the next, by the store's ``stride`` and
    ``frame_rate``, or without it by the video file's ``frame_rate``. None if unknown."""
    stride = _number(attributes.get("stride"))
    rate = _number(attributes.get("frame_rate")) or frame_rate
    return stride / rate if stride and rate else None


def _number(value: Any) -> Optional[float]:
    try:
        number = float(value)
    except (TypeError, ValueError):  # "native" of stores that took every frame, or no attribute
        return None
    return number if math.isfinite(number) and number > 0 else None


def video_times(video: MediaFile, num_rows: int, attributes: Mapping[str, Any]) -> Times:
    """Return the times of a video's ``num_rows`` feature vectors, and thumbnails of its frames."""
    stride = _number(attributes.get("stride"))
    rate = _number(attributes.get("frame_rate"))
    if stride is None:
        return Times()
    count = min(MAX_THUMBNAILS, num_rows)
    # the middle of each thumbnail's part, in frames (of the store's frame rate) from the beginning
    middles = [stride * num_rows * (i + 0.5) / count for i in range(count)]
    # pages show the readable frames, even if the video was damaged after the extraction
    reader = VideoReader(video, keep_damaged=True)
    thumbnails: list[str] = []
    last_frame = None
    for number, (_, end, frame) in enumerate(reader.frames()):
        last_frame = frame
        while len(thumbnails) < count:
            middle = middles[len(thumbnails)]
            if (float(end) * rate if rate else number + 1) <= middle:
                break
            thumbnails.append(jpeg_uri(frame, side=_SIDE, quality=_QUALITY))
        # without a rate, all frames are decoded: the reader knows the rate at the end
        if len(thumbnails) == count and rate:
            break
    while last_frame is not None and len(thumbnails) < count:
        # clips of a short video are filled up with its last frame
        thumbnails.append(jpeg_uri(last_frame, side=_SIDE, quality=_QUALITY))
    return Times(clip_step(attributes, reader.frame_rate or None), thumbnails)


def gate_statistics(scores: np.ndarray) -> dict[str, float]:
    """Return statistics of one or more scores; ``std`` is the population standard deviation."""
    quartiles = np.quantile(scores, [0.25, 0.5, 0.75]).tolist()
    return {
        "count": len(scores),
        "mean": float(np.mean(scores)),
        "std": float(np.std(scores)),
        "min": float(np.min(scores)),
        **dict(zip(("q25", "median", "q75"), quartiles)),
        "max": float(np.max(scores)),
    }


def bin_edges(scores: np.ndarray, most: int = MOST_BINS) -> list[float]:
    """Compute the edges of at most ``most`` bins that include all scores. Their width is the
    smallest of 1, 2 or 5 times a power of ten; 0.001 if all scores are equal."""
    low, high = float(np.min(scores)), float(np.max(scores))
    exponent = -3 if high == low else math.floor(math.log10((high - low) / most))
    while True:
        # widths that people read easily on an axis
        for factor in (1, 2, 5):
            steps = [score / (factor * 10.0**exponent) for score in (low, high)]
            # 0.3 / 0.1 is a whole number but for its last digits: floor and ceil would add a bin
            first, last = (round(x) if abs(x - round(x)) < 1e-9 else x for x in steps)
            number = max(1, math.ceil(last) - math.floor(first))
            if number <= most:
                start = math.floor(first)
                # rounded, so that edges are 0.3 and not 0.30000000000000004
                return [round((start + i) * factor * 10.0**exponent, 12) for i in range(number + 1)]
        exponent += 1


def _summarize_gates(gates: GateScores, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a JSON object with statistics and histograms of the scores of all videos, of videos
    with a transcript, and of videos without, which are also listed with their ranks."""
    scores = gates.scores
    is_apart = np.array([not record["transcript_available"] for record in records])
    # All groups share the bins, because the page stacks their histograms.
    edges = bin_edges(scores)
    ranks = (np.searchsorted(np.sort(-scores), -scores) + 1).tolist()  # 1 + number of higher scores
    groups = {ALL: np.ones(len(scores), bool), AVAILABLE: ~is_apart, APART: is_apart}
    # rounding of the outer edges may exclude the extreme scores by their last digits
    inside = np.clip(scores, edges[0], edges[-1])
    counts = {
        name: np.histogram(inside[which], bins=np.asarray(edges))[0].tolist()
        for name, which in groups.items()
    }
    by_layer = zip(gates.layers, gates.by_layer.T)
    return {
        "statistics": {
            name: rounded(gate_statistics(scores[which]))
            for name, which in groups.items()
            if which.any()
        },
        "layers": {name: rounded(gate_statistics(values)) for name, values in by_layer},
        "histogram": {"edges": edges, "counts": counts},
        APART: [{**records[i], "rank": ranks[i]} for i in np.flatnonzero(is_apart).tolist()],
    }


def _describe(result: dict[str, Any]) -> list[str]:
    """Format the result of :func:`_summarize_gates` as lines for a terminal."""
    rows = dict(result["statistics"])
    if len(result["layers"]) > 1:  # a single layer's scores would repeat the row of all
        rows.update(result["layers"])
    width = max(map(len, rows))
    lines = [" ".join([" " * width, *(f"{name:>7}" for name in rows[ALL])])]
    for group, figures in rows.items():
        cells = (f"{x:>7d}" if name == "count" else f"{x:>7.4f}" for name, x in figures.items())
        lines.append(" ".join([f"{group:<{width}}", *cells]))
    total = rows[ALL]["count"]
    for entry in sorted(result[APART], key=lambda entry: entry["rank"]):
        lines.append(
            f"{entry['id']}: {APART}, score {entry['score']:.4f}, rank {entry['rank']} of {total}"
        )
        lines += [
            f"  {name}: {entry[name]}" for name in ("hypothesis", "reference") if name in entry
        ]
    return lines
