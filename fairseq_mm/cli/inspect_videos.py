"""``fairseq-mm inspect`` of models that summarise videos: the attention to the frames, and how much
of what is read in a video the forget gates let through."""

import argparse
import contextlib
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli.arguments import positive
from fairseq_mm.cli.inspect_videos_output import (
    Texts,
    attention_entry,
    gate_entries,
    gate_page,
    gate_result,
    line_section,
    summary_lines,
)
from fairseq_mm.cli.progress import progress_bar
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.analysis.video_inspection import VideoInspection

# options that only summaries of videos have, and those that they share with stories
OPTIONS = ("gates", "hypotheses", "videos", "json", "batch_size")
_SHARED = (
    *("source", "data", "checkpoint", "split", "line", "features", "device"),
    *("layers", "jsonl", "html"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("summaries of videos")
    group.add_argument(
        "--gates",
        action="store_true",
        help="Write the scores of the forget gates, of all videos of the split or of --lines, "
        "instead of the attention to the frames.",
    )
    group.add_argument(
        "--hypotheses",
        metavar="FILE",
        help="Generated summaries that take the place of the references: fairseq-generate's "
        "output, JSONL, or a line each.",
    )
    group.add_argument(
        "--videos",
        metavar="DIR",
        action="append",
        default=[],
        help="Folder or .tar of the videos, of which the page shows frames and seconds; may be "
        "given again.",
    )
    group.add_argument(
        "--json",
        metavar="FILE",
        help="With --gates: write statistics and histogram as JSON to this file.",
    )
    group.add_argument(
        "--batch-size",
        type=positive,
        metavar="N",
        help="Examples of a batch (default: 8 on a CPU, 32 elsewhere).",
    )


def given_options(args: argparse.Namespace) -> list[str]:
    """Options given that are of summaries of videos alone, as they are written."""
    return [f"--{name.replace('_', '-')}" for name in OPTIONS if getattr(args, name)]


def run(args: argparse.Namespace, states: Mapping[str, dict[str, Any]]) -> None:
    """
    Args:
        args: of ``fairseq-mm inspect``.
        states: the checkpoint, of :func:`.load_states`.

    Raises:
        UserError: if files or options do not fit, or the model has neither attention nor gates.
    """
    from fairseq_mm.analysis.video_inspection import VideoInspection

    _check_arguments(args)
    # of PyTorch, about the two kinds of masks that fairseq's layers give it
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
    (data,) = args.source
    split = args.split or "valid"
    inspection = VideoInspection.from_checkpoint(
        list(states),
        data,
        split,
        features=args.features,
        device=args.device,
        batch_size=args.batch_size,
        states=dict(states),
    )
    ((file, state),) = states.items()
    about = f"{state['cfg'].model._name}, {file}; {split} of {data}"
    texts = _SplitTexts(args.hypotheses, inspection)
    if args.gates:
        _write_gates(args, inspection, texts, about)
    else:
        _write_attention(args, inspection, texts, about)


def _check_arguments(args: argparse.Namespace) -> None:
    for name, value in vars(args).items():
        if name not in (*_SHARED, *OPTIONS) and value not in (None, False, []):
            option = name.replace("_", "-")
            raise UserError(f"--{option}: is no option of a model that summarises videos.")
    if len(args.source) != 1 or not os.path.isdir(args.source[0]):
        given = " ".join(args.source) or "none"
        raise UserError(
            f"SOURCE must be a data folder for a model that summarises videos, but is {given}."
        )
    if args.json and not args.gates:
        raise UserError("--json: is of the forget gates' scores (--gates).")
    if args.videos and (args.gates or not args.html):
        raise UserError("--videos: are shown on the page of the attention (--html FILE).")
    if args.layers and args.gates:
        raise UserError("--layers: scores of gates have their layers in any case; leave it out.")


class _SplitTexts:
    """Transcripts, references and generated summaries of a split.

    Args:
        path: file of generated summaries, or None.
        inspection: of the split.

    Attributes:
        hypotheses: video -> generated summary; None without a file of them.

    Raises:
        UserError: if a file cannot be read, or has a summary of another video.
    """

    def __init__(self, path: Optional[str], inspection: "VideoInspection") -> None:
        from fairseq_mm.data.references import read_references

        self.inspection = inspection
        self.data, self.split = inspection.task.cfg.data, inspection.split
        references = os.path.join(self.data, f"{self.split}.references.jsonl")
        self.references: dict[str, str] = {}
        if os.path.exists(references):
            self.references = {key: x[0] for key, x in read_references(references).items()}
        self.hypotheses = None if path is None else self._read_hypotheses(path)

    def _read_hypotheses(self, path: str) -> dict[str, str]:
        from fairseq_mm.cli.score_summaries import restored, unknowns_by_video
        from fairseq_mm.metrics.hypotheses import read_hypotheses

        visual_ids = self.inspection.dataset.visual_ids
        ids = list(self.references) or list(dict.fromkeys(visual_ids))
        found = read_hypotheses(path, item_ids=ids, visual_ids=visual_ids, split=self.split).texts
        strangers = found.keys() - set(visual_ids)
        if strangers:
            raise UserError(
                f"{path}: has a summary of {min(strangers)!r}, which is no video of "
                f"{os.path.join(self.data, self.split)}."
            )
        unknowns = unknowns_by_video(self.data, self.split, visual_ids)
        return {key: restored(text, unknowns.get(key)) for key, text in found.items()}

    def of(self, lines: Sequence[int]) -> list[Texts]:
        """Whether there is a transcript is known from the folder's file of them, or else from what
        the model reads."""
        from fairseq_mm.cli.score_summaries import read_sources
        from fairseq_mm.data.transcript_text import is_not_available

        inspection, ids = self.inspection, self.inspection.ids(lines)
        sources = read_sources(self.data, self.split, ids, str.split)
        if sources is None:
            have = [not is_not_available(inspection.transcript(line)) for line in lines]
        else:
            have = [words is not None for words in sources]
        return [
            Texts(
                is_available,
                (self.hypotheses or {}).get(key),
                self.references.get(key, inspection.reference(line)),
            )
            for line, key, is_available in zip(lines, ids, have)
        ]


def _write(path: Optional[str], text: str) -> None:
    from fairseq_mm.cli.score_output import write_file

    if path:
        write_file(path, text)
        print(f"wrote {path}", file=sys.stderr)


def _json_line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _write_gates(
    args: argparse.Namespace, inspection: "VideoInspection", texts: _SplitTexts, about: str
) -> None:
    lines = inspection.checked(args.line)
    with progress_bar(len(lines), "videos", many=100) as bar:
        found = inspection.gate_scores(lines, summaries=texts.hypotheses, on_batch=bar.update)
    described = texts.of(lines)
    objects = gate_entries(found, described)
    result = gate_result(found, described, objects)
    if args.html:
        _write(args.html, gate_page(found, result, about))
    _write(args.json, json.dumps(result, ensure_ascii=False, indent=1) + "\n")
    entries = "".join(map(_json_line, objects))
    _write(args.jsonl, entries)
    if args.jsonl or args.html or args.json:
        print("\n".join(summary_lines(result)))
    else:
        print(entries, end="")


def _write_attention(
    args: argparse.Namespace, inspection: "VideoInspection", texts: _SplitTexts, about: str
) -> None:
    from fairseq_mm.cli.records import opened
    from fairseq_mm.report.html_page import render_page

    lines = inspection.checked(args.line or [0])
    described = dict(zip(lines, texts.of(lines)))
    videos = _Videos(args.videos, inspection.attributes)
    sections: list[Any] = []
    # a line at a time: a whole split would not fit into memory
    writes = args.jsonl or not args.html
    with opened(args.jsonl) if writes else contextlib.nullcontext() as file:
        for found in inspection.frame_attention(lines, summaries=texts.hypotheses):
            text, times = described[found.line], videos.times_of(found.id, found.num_frames)
            if args.html:
                transcript = inspection.transcript(found.line)
                sections.append(line_section(found, transcript, text, times))
            if file is not None:
                entry = attention_entry(
                    found, inspection.gate_layers, text, times.step, layers=args.layers
                )
                file.write(_json_line(entry))
    if args.html:
        videos.check()
        number = len(sections)
        of = "a summary of a video" if number == 1 else f"{number} summaries of videos"
        _write(args.html, render_page(f"Attention of {of}", sections, subtitle=about))
    if args.jsonl:
        print(f"wrote {args.jsonl}", file=sys.stderr)


class _Videos:
    """Videos whose frames and seconds are shown.

    Args:
        paths: folders or archives.
        attributes: of the feature store.
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
        """
        Raises:
            UserError: if folders of videos were given, but have none of the lines'.
        """
        if self.paths and not self.shown:
            raise UserError(f"--videos {' '.join(self.paths)}: has none of the lines' videos.")
