"""``fairseq-mm inspect`` of models that summarise videos: what words look at in a video, and how
much of it the forget gates let through."""

import argparse
import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli.inspect_videos_output import (
    Texts,
    attention_entry,
    gate_entries,
    gate_page,
    gate_result,
    line_section,
    summary_lines,
)
from fairseq_mm.cli.likelihood_options import positive
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.analysis.video_inspection import VideoInspection
    from fairseq_mm.report.html_page import Section

# options that only summaries of videos have
OPTIONS = ("gates", "hypotheses", "videos", "json", "batch_size")
# those of other kinds
_OTHERS = (
    *("side", "story", "story_file", "words", "part", "ids", "tell", "images", "weights"),
    *("image", "position", "grid"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("summaries of videos")
    group.add_argument(
        "--gates",
        action="store_true",
        help="scores of the forget gates, of all videos of the split or of --lines, instead of "
        "what words look at",
    )
    group.add_argument(
        "--hypotheses",
        metavar="FILE",
        help="generated summaries, in the references' place: fairseq-generate's output, JSONL or a "
        "line each",
    )
    group.add_argument(
        "--videos",
        metavar="DIR",
        action="append",
        default=[],
        help="folder or .tar of the videos, for images and seconds; may be given again",
    )
    group.add_argument(
        "--json", metavar="FILE", help="with --gates: write statistics and histogram as JSON"
    )
    group.add_argument(
        "--batch-size", type=positive, metavar="N", help="examples (default: 8 on a CPU, else 32)"
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
        UserError: if files or options do not fit, or there is nothing to see in the model.
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
        states=states,
    )
    ((file, state),) = states.items()
    about = f"{state['cfg'].model._name}, {file}; {split} of {data}"
    if args.gates:
        _gates(args, inspection, about)
    else:
        _attention(args, inspection, about)


def _check_arguments(args: argparse.Namespace) -> None:
    for name in _OTHERS:
        if getattr(args, name) not in (None, False, []):
            option = name.replace("_", "-")
            raise UserError(f"--{option}: a model that summarises videos has no such.")
    if len(args.source) != 1 or not os.path.isdir(args.source[0]):
        given = " ".join(args.source) or "none"
        raise UserError(
            f"SOURCE must be a data folder for a model that summarises videos, but is {given}."
        )
    if args.json and not args.gates:
        raise UserError("--json: is of the forget gates' scores (--gates).")
    if args.videos and (args.gates or not args.html):
        raise UserError("--videos: are shown on the page of what words look at (--html FILE).")
    if args.layers and args.gates:
        raise UserError("--layers: scores of gates have their layers in any case; leave it out.")


class _Generated(NamedTuple):
    """Texts of the split's videos.

    Attributes:
        hypotheses: video -> generated summary; None without a file of them.
        references: video -> what people wrote; empty where the folder has no file of it.
    """

    hypotheses: Optional[dict[str, str]]
    references: dict[str, str]


def _read_texts(args: argparse.Namespace, inspection: "VideoInspection") -> _Generated:
    from fairseq_mm.cli.score_summaries import restored, unknowns_by_video
    from fairseq_mm.data.references import read_references
    from fairseq_mm.metrics.hypotheses import read_hypotheses

    data, split = args.source[0], inspection.split
    path = os.path.join(data, f"{split}.references.jsonl")
    references = {}
    if os.path.exists(path):
        references = {key: texts[0] for key, texts in read_references(path).items()}
    if args.hypotheses is None:
        return _Generated(None, references)
    visual_ids = inspection.dataset.visual_ids
    ids = list(references) or list(dict.fromkeys(visual_ids))
    found = read_hypotheses(args.hypotheses, item_ids=ids, visual_ids=visual_ids, split=split)
    strangers = found.texts.keys() - set(visual_ids)
    if strangers:
        raise UserError(
            f"{args.hypotheses}: has a summary of {min(strangers)!r}, which is no video of "
            f"{os.path.join(data, split)}."
        )
    unknowns = unknowns_by_video(data, split, visual_ids)
    texts = {key: restored(text, unknowns.get(key)) for key, text in found.texts.items()}
    return _Generated(texts, references)


def _have_transcripts(inspection: "VideoInspection", lines: Sequence[int]) -> list[bool]:
    """Of each line whether there is a transcript, by the folder's file of them, or else by what the
    model reads."""
    from fairseq_mm.cli.score_summaries import read_sources
    from fairseq_mm.data.transcript_text import is_not_available

    data, ids = inspection.task.cfg.data, inspection.ids(lines)
    sources = read_sources(data, inspection.split, ids, str.split)
    if sources is not None:
        return [words is not None for words in sources]
    return [not is_not_available(inspection.transcript(line)) for line in lines]


def _gates(args: argparse.Namespace, inspection: "VideoInspection", about: str) -> None:
    from tqdm import tqdm

    from fairseq_mm.cli.score_output import write_file

    generated = _read_texts(args, inspection)
    lines = inspection.checked(args.line)
    total = len(lines)
    with tqdm(total=total, unit=" videos", file=sys.stderr, disable=total < 100 or None) as bar:
        found = inspection.gate_scores(lines, summaries=generated.hypotheses, on_batch=bar.update)
    texts = [
        Texts(
            is_available,
            (generated.hypotheses or {}).get(key),
            generated.references.get(key, inspection.reference(line)),
        )
        for line, key, is_available in zip(lines, found.ids, _have_transcripts(inspection, lines))
    ]
    objects = gate_entries(found, texts)
    result = gate_result(found, texts, objects)
    if args.html:
        write_file(args.html, gate_page(found, texts, result, about))
        print(f"wrote {args.html}", file=sys.stderr)
    if args.json:
        write_file(args.json, json.dumps(result, ensure_ascii=False, indent=1) + "\n")
        print(f"wrote {args.json}", file=sys.stderr)
    entries = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in objects)
    if args.jsonl:
        write_file(args.jsonl, entries)
        print(f"wrote {args.jsonl}", file=sys.stderr)
    if args.jsonl or args.html or args.json:
        print("\n".join(summary_lines(result)))
    else:
        print(entries, end="")


def _attention(args: argparse.Namespace, inspection: "VideoInspection", about: str) -> None:
    from fairseq_mm.cli.score_output import write_file
    from fairseq_mm.report.html_page import render_page

    generated = _read_texts(args, inspection)
    lines = inspection.checked(args.line or [0])
    are_available = dict(zip(lines, _have_transcripts(inspection, lines)))
    shelf = _Shelf(args, inspection.attributes)
    sections: list[Section] = []
    looked = inspection.frame_attention(lines, summaries=generated.hypotheses)
    with _entries_file(args) as write:
        for found in looked:
            texts = Texts(
                are_available[found.line],
                (generated.hypotheses or {}).get(found.id),
                generated.references.get(found.id, inspection.reference(found.line)),
            )
            times = shelf.times_of(found.id, found.num_frames)
            if args.html:
                transcript = inspection.transcript(found.line)
                sections.append(line_section(found, transcript, texts, times))
            if write is not None:
                entry = attention_entry(
                    found, inspection.gate_layers, texts, times.step, layers=args.layers
                )
                write(json.dumps(entry, ensure_ascii=False) + "\n")
    if args.html:
        shelf.check()
        number = len(sections)
        title = "What a summary of a video looks at"
        if number > 1:
            title = f"What {number} summaries of videos look at"
        write_file(args.html, render_page(title, sections, subtitle=about))
        print(f"wrote {args.html}", file=sys.stderr)
    if args.jsonl:
        print(f"wrote {args.jsonl}", file=sys.stderr)


@contextlib.contextmanager
def _entries_file(args: argparse.Namespace) -> Iterator[Any]:
    """What writes a line of the JSONL: a whole split's would not fit into memory."""
    from fairseq_mm.data.output_file import output_file

    if args.jsonl:
        with output_file(args.jsonl) as file:
            yield file.write
    else:
        yield None if args.html else sys.stdout.write


class _Shelf:
    """Videos whose images and seconds are shown."""

    def __init__(self, args: argparse.Namespace, attributes: Mapping[str, Any]) -> None:
        self.videos = args.videos
        self.attributes = attributes
        self.by_key: dict[str, Any] = {}
        self.shown = 0
        if self.videos:
            from fairseq_mm.extract.media_list import VIDEOS, by_any_key, list_images
            from fairseq_mm.extract.videos import import_av

            import_av()
            self.by_key = by_any_key(list_images(self.videos, ids="path", kind=VIDEOS))

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
        if self.videos and not self.shown:
            raise UserError(f"--videos {' '.join(self.videos)}: has none of the lines' videos.")
