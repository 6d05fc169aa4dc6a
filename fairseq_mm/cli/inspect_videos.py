"""``fairseq-mm inspect`` of summaries of videos: attention to the frames, and forget gates."""

import argparse
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from fairseq_mm.analysis import rounded
from fairseq_mm.analysis.video_inspection import GateScores, VideoInspection
from fairseq_mm.cli.inspect_output import Inspection, Part
from fairseq_mm.cli.records import progress_bar
from fairseq_mm.cli.score_alignment import check_generated_for
from fairseq_mm.cli.score_inputs import oov_words_by_video, read_sources, restored
from fairseq_mm.data.split_files import read_references
from fairseq_mm.data.transcript_text import is_not_available
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.metrics.gate_scores import (
    bin_edges,
    descending_ranks,
    gate_histogram,
    gate_statistics,
)
from fairseq_mm.metrics.hypotheses import read_hypotheses

ALL, AVAILABLE, APART = "all", "transcript available", "transcript not available"


def inspect(args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> Inspection:
    """
    Raises:
        UserError: if files or options do not fit, or the model has neither attention nor gates.
    """
    if args.data is None:
        given = " ".join(args.source) or "none"
        raise UserError(f"SOURCE must be a data folder for a model of videos, but is {given}.")
    if args.json and not args.gates:
        raise UserError("--json: is of the forget gates' scores (--gates).")
    if args.videos and (args.gates or not args.html):
        raise UserError("--videos: are shown on the page of the attention (--html FILE).")
    if args.layers and args.gates:
        raise UserError("--layers: scores of gates have their layers in any case; leave it out.")
    # PyTorch warns of the two kinds of masks that fairseq's layers pass
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
    split = args.split or "valid"
    inspection = VideoInspection.from_checkpoints(
        checkpoints,
        args.data,
        split,
        features=args.features,
        device=args.device,
        batch_size=args.batch_size,
    )
    about = f"{checkpoints[0].arch}, {checkpoints[0].path}; {split} of {args.data}"
    texts = _SplitTexts(args.hypotheses, inspection)
    if args.gates:
        return _gates(args, inspection, texts, about)
    lines = inspection.checked(args.lines or [0])
    of = "a summary of a video" if len(lines) == 1 else f"{len(lines)} summaries of videos"
    return Inspection(f"Attention of {of}", about, _attention(args, inspection, texts, lines))


class _SplitTexts:
    """Transcripts, references and generated summaries of a split.

    Args:
        path: Path of the generated summaries, or None.
        inspection: Inspection of the split.

    Attributes:
        hypotheses: Video -> generated summary; None without a file.

    Raises:
        UserError: if a file cannot be read, or has a summary of another video.
    """

    def __init__(self, path: Optional[str], inspection: VideoInspection) -> None:
        self.inspection = inspection
        self.data, self.split = inspection.task.cfg.data, inspection.split
        references = os.path.join(self.data, f"{self.split}.references.jsonl")
        self.references: dict[str, str] = {}
        if os.path.exists(references):
            self.references = {key: x[0] for key, x in read_references(references).items()}
        self.hypotheses = None if path is None else self._read_hypotheses(path)

    def _read_hypotheses(self, path: str) -> dict[str, str]:
        visual_ids = self.inspection.dataset.visual_ids
        ids = list(self.references) or list(dict.fromkeys(visual_ids))
        read = read_hypotheses(path, item_ids=ids, visual_ids=visual_ids, split=self.split)
        check_generated_for(path, read.output, self.data, self.split)
        found = read.texts
        strangers = found.keys() - set(visual_ids)
        if strangers:
            raise UserError(
                f"{path}: has a summary of {min(strangers)!r}, which is no video of "
                f"{os.path.join(self.data, self.split)}."
            )
        oov_words = oov_words_by_video(self.data, self.split, visual_ids)
        return {key: restored(text, oov_words.get(key)) for key, text in found.items()}

    def of(self, lines: Sequence[int]) -> list[dict[str, Any]]:
        """Return ``transcript_available``, and ``hypothesis`` and ``reference`` if they exist.

        The folder's file of transcripts decides whether there is a transcript; without the file,
        the model's input does.
        """
        inspection, ids = self.inspection, self.inspection.ids(lines)
        sources = read_sources(self.data, self.split, ids, str.split)
        if sources is None:
            have = [not is_not_available(inspection.transcript(line)) for line in lines]
        else:
            have = [words is not None for words in sources]
        facts = []
        for line, key, is_available in zip(lines, ids, have):
            fact: dict[str, Any] = {"transcript_available": is_available}
            if self.hypotheses and key in self.hypotheses:
                fact["hypothesis"] = self.hypotheses[key]
            fact["reference"] = self.references.get(key, inspection.reference(line))
            facts.append(fact)
        return facts


def _attention(
    args: argparse.Namespace, inspection: VideoInspection, texts: _SplitTexts, lines: list[int]
) -> Iterator[Part]:
    facts = dict(zip(lines, texts.of(lines)))
    videos = _Videos(args.videos, inspection.attributes)
    for found in inspection.frame_attention(lines, summaries=texts.hypotheses):
        fact, times = facts[found.line], videos.times_of(found.id, found.num_frames)
        record = {
            "id": found.id,
            "item": found.line,
            "frames": found.num_frames,
            "seconds_per_frame": None if times.step is None else rounded(times.step),
            **fact,
            "attention": [side.record(layers=args.layers) for side in found.maps],
        }
        if len(found.gates):
            record["gates"] = dict(zip(inspection.gate_layers, rounded(found.gates)))

        def draw(found: Any = found, fact: Any = fact, times: Any = times) -> list[Any]:
            from fairseq_mm.report.inspection import section_of_video

            return [section_of_video(found, inspection.transcript(found.line), fact, times)]

        yield Part([record], draw)
    if args.html:
        videos.check()


class _Videos:
    """Videos whose frames and seconds are shown.

    Args:
        paths: Folders or archives.
        attributes: Attributes of the feature store.
    """

    def __init__(self, paths: list[str], attributes: Mapping[str, Any]) -> None:
        self.paths = paths
        self.attributes = attributes
        self.by_key: dict[str, Any] = {}
        self.shown = 0
        if paths:
            from fairseq_mm.extract.media_list import VIDEOS, by_any_key, list_images
            from fairseq_mm.extract.videos import import_av

            import_av()
            self.by_key = by_any_key(list_images(paths, ids="path", kind=VIDEOS))

    def times_of(self, key: str, num_frames: int) -> Any:
        from fairseq_mm.report.video_attention import Times
        from fairseq_mm.report.video_thumbnails import clip_step, video_times

        if key not in self.by_key:
            return Times(clip_step(self.attributes))
        self.shown += 1
        return video_times(self.by_key[key], num_frames, self.attributes)

    def check(self) -> None:
        """Check that given folders have videos of the lines.

        Raises:
            UserError: if they have none.
        """
        if self.paths and not self.shown:
            raise UserError(f"--videos {' '.join(self.paths)}: has none of the lines' videos.")


def _gates(
    args: argparse.Namespace, inspection: VideoInspection, texts: _SplitTexts, about: str
) -> Inspection:
    lines = inspection.checked(args.lines)
    with progress_bar(len(lines), "videos", many=100) as bar:
        found = inspection.gate_scores(lines, summaries=texts.hypotheses, on_batch=bar.update)
    records = [{**record, **fact} for record, fact in zip(found.records(), texts.of(lines))]
    result = gate_result(found, records)

    def draw() -> list[Any]:
        from fairseq_mm.report.inspection import gate_sections

        return gate_sections(result)

    subtitle = (
        f"{about}. Each video's score is the mean of the gate over the text's tokens and the "
        "feature dimension: 0 nothing of what is read in the video gets through, 1 all of it."
    )
    parts = iter([Part(records, draw)])
    return Inspection("Forget gates", subtitle, parts, result, tuple(summary_lines(result)))


def gate_result(found: GateScores, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return statistics and histograms of all videos, of videos with and without a transcript, and
    the records of the videos without a transcript, with ranks.
    """
    scores = found.scores
    is_apart = np.array([not record["transcript_available"] for record in records])
    edges, ranks = bin_edges(scores), descending_ranks(scores)
    groups = {ALL: np.ones(len(scores), bool), AVAILABLE: ~is_apart, APART: is_apart}
    counts = {name: gate_histogram(scores[which], edges).counts for name, which in groups.items()}
    by_layer = zip(found.layers, found.by_layer.T)
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


def summary_lines(result: dict[str, Any]) -> list[str]:
    """Statistics, and the videos without a transcript, for a terminal."""
    rows = dict(result["statistics"])
    if len(result["layers"]) > 1:
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
