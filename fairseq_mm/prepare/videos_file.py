"""Videos with transcripts and summaries, by split: what ``fairseq-mm prepare videos`` works on.

Readers of How2's release (``release_how2.py``) and of one's own JSON lines make a
:class:`VideoCorpus`; ``prepared_videos.py`` writes it as a data folder.
"""

import hashlib
import json
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from fairseq_mm.data.input_files import SPLITS, check_id, parse_object, read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.subtitles import TRANSCRIPT_SUFFIXES, read_transcript

KEYS = ("name", "stem", "path")
POLICIES = ("error", "drop")  # about videos without features


@dataclass
class Video:
    """A video, what is said in it and what it is about.

    Args:
        id: its key in the feature store.
        transcript: text as it was found, subtitles without their times.
        summary: text as it was found.
        where: ``path:line`` of the transcript and of the summary, for messages.
    """

    id: str
    transcript: str
    summary: str
    where: tuple[str, str]


@dataclass
class VideoCorpus:
    """Videos by split, and what was noticed while reading them.

    Args:
        name: of the data set, ``own`` for anybody's own.
        split: which division of the data set this is.
        videos: split -> videos, in the order of the files.
        files: what was read.
        published: split -> videos that the data set is known to have.
        exceptions: what departs from the rule -> ids concerned.
        notes: one-line remarks for whoever runs the preparation.
    """

    name: str
    split: str
    videos: dict[str, list[Video]]
    files: list[str]
    published: dict[str, int] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def deviations(self) -> list[str]:
        """A line for each split that has not the published number of videos."""
        return [
            f"{split}: {len(self.videos[split]):,} videos found, {expected:,} expected "
            f"({self.name})"
            for split, expected in self.published.items()
            if split in self.videos and len(self.videos[split]) != expected
        ]


def check_videos_once(videos: dict[str, list[Video]], *, remedy: str = "") -> None:
    """
    Args:
        videos: split -> videos.
        remedy: what to do about two videos of one key.

    Raises:
        UserError: if a key stands twice, in one split or in two.
    """
    seen: dict[str, str] = {}
    for several in videos.values():
        for video in several:
            if video.id in seen:
                raise UserError(
                    f"{video.where[0]}: video {video.id} was given before, at "
                    f"{seen[video.id]}.{remedy}"
                )
            seen[video.id] = video.where[0]


def leave_out_videos(
    corpus: VideoCorpus, known: Container[str], source: str, *, missing: str
) -> None:
    """
    Args:
        corpus: loses the videos without features, and gets a list of them as an exception.
        known: keys of the videos that have features.
        source: what was looked at, for messages.
        missing: ``error``, or ``drop`` videos without features.

    Raises:
        UserError: if videos are missing that must not be, or all of a split.
    """
    for split, videos in corpus.videos.items():
        absent = [video.id for video in videos if video.id not in known]
        if len(absent) == len(videos):
            raise UserError(
                f"{source}: has no features of any {split} video, such as {absent[0]}; are they "
                "called otherwise there?"
            )
        if absent and missing == "error":
            raise UserError(
                f"{source}: {len(absent):,} of {len(videos):,} {split} videos have no features, "
                f"the first {absent[0]}; --missing-features drop leaves them out."
            )
        if absent:
            corpus.exceptions[f"{split} videos without features, left out"] = absent
            without = set(absent)
            corpus.videos[split] = [video for video in videos if video.id not in without]


def read_videos_jsonl(paths: dict[Optional[str], list[Path]], *, keys: str = "name") -> VideoCorpus:
    """Reads one's own data, one video a line:
    ``{"video": "a.mp4", "transcript": "...", "summary": "..."}``.

    ``transcript`` is text, or the name of a file if it ends in ``.srt``, ``.vtt`` or ``.txt``;
    ``transcript_file`` in its place names a file whatever its ending. Both are seen from the folder
    of the JSON lines. The optional field ``split`` (train, valid or test) must be in every line or
    in none.

    Args:
        paths: split -> files that hold it alone; None -> files whose lines may name a split and
            belong to train otherwise.
        keys: what videos are called in the feature store: ``name`` (``a.mp4``), ``stem`` (``a``) or
            ``path``, as it stands in ``video``.

    Raises:
        UserError: ``path:line`` and what is wrong there.
    """
    videos: dict[str, list[Video]] = {}
    first_with: dict[bool, str] = {}
    for file_split, files in paths.items():
        for path in files:
            for number, line in read_lines(path):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                entry = _parse(line, where)
                split = entry.get("split")
                if file_split is None:
                    _check_uniform(split is not None, where, first_with)
                elif split not in (None, file_split):
                    raise UserError(
                        f"{where}: says split {split}, but the file is given as {file_split}."
                    )
                video = Video(
                    check_id(key_of(entry["video"], keys), where, what="a video"),
                    transcript_of(entry, path.parent, where),
                    entry["summary"],
                    (where, where),
                )
                videos.setdefault(split or file_split or "train", []).append(video)
    named = [str(path) for files in paths.values() for path in files]
    if not videos:
        raise UserError(f"{', '.join(named)}: no videos.")
    remedy = "" if keys == "path" else " --keys path tells files of one name apart."
    check_videos_once(videos, remedy=remedy)
    return VideoCorpus(
        name="own",
        split="as given",
        videos={split: videos[split] for split in SPLITS if split in videos},
        files=named,
    )


def _parse(line: str, where: str) -> dict[str, Any]:
    """The line's fields, of which the known ones are checked."""
    entry = parse_object(line, where)
    if "transcript_file" in entry and "transcript" in entry:
        raise UserError(f"{where}: has both `transcript` and `transcript_file`; give one of them.")
    transcript = "transcript_file" if "transcript_file" in entry else "transcript"
    for name in ("video", transcript, "summary"):
        if name not in entry:
            raise UserError(
                f"{where}: field `{name}` is missing; found {', '.join(entry) or 'none'}."
            )
    for name in ("video", transcript, "summary", "split"):
        value = entry.get(name)
        if not isinstance(value, str) and (name != "split" or value is not None):
            raise UserError(
                f"{where}: `{name}` must be text, but is {json.dumps(value)[:80]} instead."
            )
    if entry.get("split") not in (None, *SPLITS):
        raise UserError(
            f"{where}: `split` must be train, valid or test, but is {entry['split']!r} instead."
        )
    try:
        "".join(entry[name] for name in ("video", transcript, "summary")).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: text holds half a character (a lone surrogate).") from None
    return entry


def _check_uniform(given: bool, where: str, first_with: dict[bool, str]) -> None:
    first_with.setdefault(given, where)
    if len(first_with) == 2:
        raise UserError(
            f"{first_with[False]}: names no split, but {first_with[True]} does; give one to every "
            "line or to none."
        )


def key_of(video: str, keys: str) -> str:
    """What a video is called in a feature store; ``keys`` is one of ``KEYS``."""
    path = PurePosixPath(video)
    return {"name": path.name, "stem": path.stem, "path": video}[keys]


def transcript_of(entry: dict[str, Any], folder: Path, where: str) -> str:
    """
    Args:
        entry: with ``transcript``, text or the name of a file, or ``transcript_file``.
        folder: of relative names.
        where: of the entry, for messages.

    Raises:
        UserError: if a file is named and cannot be read.
    """
    given = entry.get("transcript")
    if given is not None and not given.lower().endswith(TRANSCRIPT_SUFFIXES):
        return given
    try:
        return read_transcript(folder / (entry["transcript_file"] if given is None else given))
    except (UserError, ValueError) as error:  # a name with a zero byte
        remedy = "" if given is None else " A text that ends like a file's name needs a full stop."
        raise UserError(f"{where}: {error}{remedy}") from None


def draw_videos(corpus: VideoCorpus, split: str, size: int, *, seed: int) -> None:
    """Moves ``size`` of the training videos to ``split``.

    They are ordered by a hash of seed and key, so the draw depends neither on the order of the file
    nor on the version of Python, and most of it stays when videos are added.

    Raises:
        UserError: if the split has videos already, or too few would be left for training.
    """
    if size == 0:
        return
    if corpus.videos.get(split):
        raise UserError(
            f"--{split}-size {size}: the data has {len(corpus.videos[split])} {split} videos "
            "already."
        )
    train = corpus.videos.get("train", [])
    if not 0 < size < len(train):
        raise UserError(
            f"--{split}-size must be between 1 and {max(1, len(train) - 1)} (of {len(train)} "
            f"training videos one must be left), but is {size} instead."
        )

    def draw_order(video: Video) -> str:
        return hashlib.sha256(f"{seed}\0{video.id}".encode()).hexdigest()

    drawn = {video.id for video in sorted(train, key=draw_order)[:size]}
    corpus.videos[split] = [video for video in train if video.id in drawn]
    corpus.videos["train"] = [video for video in train if video.id not in drawn]
    corpus.videos = {name: corpus.videos[name] for name in SPLITS if name in corpus.videos}
    corpus.split += f", {size} {split} videos drawn with seed {seed}"
