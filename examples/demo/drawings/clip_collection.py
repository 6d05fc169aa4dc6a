"""Drawn clips with transcripts and summaries.

    clips/train-0001/1.jpg ...   frames
    shown.jsonl                  content of each clip, to check summaries
    clips.jsonl                  video, transcript, summary, split
    test.jsonl                   test clips with their transcripts, for ``fairseq-mm summarize``
    other_frames.jsonl           each transcript with the frames of another clip
    clips.npz                    features of each clip, made of its frames' features

What a test clip tells (who, where, what happens) is never told by a training clip.
"""

import random
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drawings.clips import (
    NUM_FRAMES,
    Clip,
    compose_clip,
    draw_frames,
    read_summary,
    write_summary,
    write_transcript,
)
from drawings.records import SHOWN, numbered, read_shown, read_split, write_jsonl
from drawings.story_sentences import describes
from fairseq_mm.data.feature_store import open_features

QUALITY = 95


class SummaryVerdict(NamedTuple):
    """Verdict on one summary.

    Attributes:
        key: Name of the clip.
        told: Whether it names the person and the place that the transcript tells.
        seen: Whether it says what happens in the frames.
    """

    key: str
    told: bool
    seen: bool

    @property
    def right(self) -> bool:
        return self.told and self.seen


def draw_clips(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Draw clips with transcripts and summaries; ``clips.jsonl`` is written last.

    Args:
        folder: Folder, made if it does not exist.
        sizes: Number of clips of each split.
        seed: Seed of the clips and texts.
    """
    shutil.rmtree(folder / "clips", ignore_errors=True)
    records, shown = [], []
    held_out: set[tuple[str, ...]] = set()
    # the test clips first: no training clip may have the facts of a test clip
    order = sorted(numbered(sizes), key=lambda item: item[0] != "test")
    for split, number in order:
        name = f"{split}-{number:04}"
        rng = random.Random(f"{seed} clip {name}")
        clip = compose_clip(rng)
        while split != "test" and clip.facts in held_out:
            clip = compose_clip(rng)
        if split == "test":
            held_out.add(clip.facts)
        frames = folder / "clips" / name
        frames.mkdir(parents=True)
        for place, image in enumerate(draw_frames(clip, f"{seed} frames {name}"), 1):
            image.save(frames / f"{place}.jpg", quality=QUALITY)
        texts = {"transcript": write_transcript(clip, rng), "summary": write_summary(clip, rng)}
        records.append({"id": name, "video": f"clips/{name}", **texts, "split": split})
        shown.append({"id": name, "clip": clip.to_json()})
    write_jsonl(folder / SHOWN, shown)
    _write_inputs(folder, [record for record in records if record["split"] == "test"])
    write_jsonl(folder / "clips.jsonl", records)


def _write_inputs(folder: Path, test: list[dict]) -> None:
    ids, transcripts = ([record[name] for record in test] for name in ("id", "transcript"))
    for name, texts in (
        ("test", transcripts),
        # each clip's frames with the transcript of the clip after it
        ("other_frames", [*transcripts[1:], *transcripts[:1]]),
    ):
        lines = [{"id": key, "transcript": text} for key, text in zip(ids, texts)]
        write_jsonl(folder / f"{name}.jsonl", lines)


def join_frames(folder: Path, store: Path) -> str:
    """Join the features of frames to ``folder/clips.npz``: an array ``[3, 2 D]`` for each clip.

    A row stands for two successive frames, as a row of a video network stands for 16: it has the
    features of the first, and what they change by until the second.

    Args:
        folder: Folder of the file.
        store: Feature store of all frames, ``[1, D]`` each.

    Returns:
        A line with the number of clips.
    """
    features = open_features([str(store)])
    names = dict.fromkeys(key.rpartition("/")[0] for key in features.ids)
    arrays = {}
    for name in names:
        rows = [features.read(f"{name}/{number}.jpg")[0] for number in range(1, NUM_FRAMES + 1)]
        pairs = zip(rows, rows[1:])
        arrays[name] = np.stack([np.concatenate([one, other - one]) for one, other in pairs])
    np.savez(folder / "clips.npz", **arrays)
    return f"{len(arrays)} clips of {NUM_FRAMES} frames"


def check_summaries(
    folder: Path, summaries: Mapping[str, str], *, of_next: bool = False
) -> list[SummaryVerdict]:
    """Check whether summaries name who and where the transcript tells, and what the frames show.

    Args:
        folder: Folder that :func:`draw_clips` filled.
        summaries: Generated summary by name of the clip whose frames were read.
        of_next: Compare each with the clip after it, whose transcript ``other_frames.jsonl`` has.

    Raises:
        UserError: If a clip was not drawn.
    """
    records = read_shown(folder, summaries, "clip")
    keys = list(summaries)
    if of_next:
        keys = [*keys[1:], *keys[:1]]
    verdicts = []
    for key, text in zip(keys, summaries.values()):
        clip = Clip.from_json(records[key]["clip"])
        name, place, event = read_summary(text) or ("", "", "")
        told = (name, place) == (clip.name, clip.place)
        verdicts.append(SummaryVerdict(key, told, describes(event, clip.before, clip.after)))
    return verdicts


def most_common_summary(folder: Path) -> str:
    """Return a summary of the most common person, place and event of the training clips."""
    texts = [
        read_summary(record["summary"]) for record in read_split(folder / "clips.jsonl", "train")
    ]
    name, place, event = (
        Counter(facts).most_common(1)[0][0] for facts in zip(*filter(None, texts))
    )
    return f"{name} shows in the {place} how {event}"
