"""How2's videos with transcripts and summaries, in the two layouts in which people have them.

A set is a folder, such as ``sum_train``, ``sum_cv`` and ``sum_devtest`` (written transcripts) or
``sum_asr_train`` and so on (automatic ones), with

- ``tran.tok.txt`` and ``desc.tok.txt``: lines ``VIDEO word word ...``, each file in its own order;
- or ``tr_tran_text.txt``, ``tr_desc_text.txt`` and ``tr_action.txt`` (also ``cv_``, ``dete_``):
  line by line the words and the path of the file of features, whose name is the video.

Features are ``VIDEO.npy``, ``[T, 2048]``: a 3D ResNeXt-101 (Hara et al. 2018, trained on Kinetics)
pooled over 16 frames a row, one run of frames after the other (Sanabria et al. 2018, section 3).
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fairseq_mm.data.feature_importers import FeatureSource, Progress, import_features, open_files
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.input_files import SPLITS, check_id, read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.videos_file import (
    Video,
    VideoCorpus,
    check_videos_once,
    leave_out_videos,
)

# the split -> the set that the paper takes for it
SETS = {"train": ["sum_train"], "valid": ["sum_cv"], "test": ["sum_devtest"]}
# videos of the published references; the paper says 2,156
HOW2_VIDEOS = {"test": 2_127}
FEATURE_DIM = 2048
FEATURES_FILE = "features.h5"
# what is known of the network, by the names of ``fairseq-mm extract``; weights and preprocessing
# were not published with the features
FEATURE_ATTRIBUTES = {
    "data_set": "how2",
    "extractor": "resnext101_3d",
    "frames_per_clip": 16,
    "stride": 16,
}


def read_how2(folder: Path, sets: dict[str, list[str]]) -> VideoCorpus:
    """
    Args:
        folder: with a folder for each set.
        sets: split -> names of its sets.

    Raises:
        UserError: if a set is missing or incomplete, its files do not fit together, or a video
            stands twice.
    """
    videos: dict[str, list[Video]] = {}
    exceptions: dict[str, list[str]] = {}
    files: list[str] = []
    for split in SPLITS:
        for name in sets.get(split, []):
            found, paths, unpaired = _read_set(folder / name)
            videos.setdefault(split, []).extend(found)
            files += map(str, paths)
            exceptions.update((f"{name}: {what}", ids) for what, ids in unpaired.items())
    if not videos:
        raise UserError(f"{folder}: name the sets of a split at least.")
    check_videos_once(videos, remedy=" Do two of the sets have the same videos?")
    is_whole = {split: sets.get(split) == SETS[split] for split in SPLITS}
    return VideoCorpus(
        name="how2",
        split=", ".join(f"{split} {' + '.join(sets[split])}" for split in videos),
        videos=videos,
        files=files,
        published={split: number for split, number in HOW2_VIDEOS.items() if is_whole[split]},
        exceptions={what: ids for what, ids in exceptions.items() if ids},
    )


def _read_set(folder: Path) -> tuple[list[Video], list[Path], dict[str, list[str]]]:
    """Videos of a set, the files they were read from, and ids that only one file has."""
    with_ids = [folder / f"{side}.tok.txt" for side in ("tran", "desc")]
    if any(path.exists() for path in with_ids):
        transcripts, summaries = map(_read_by_id, with_ids)
        videos = [
            Video(key, text, summaries[key][0], (where, summaries[key][1]))
            for key, (text, where) in transcripts.items()
            if key in summaries
        ]
        unpaired = {
            "videos without a summary, left out": [x for x in transcripts if x not in summaries],
            "videos without a transcript, left out": [x for x in summaries if x not in transcripts],
        }
        return videos, with_ids, unpaired
    found = sorted(folder.glob("*_tran_text.txt"))
    if len(found) != 1:
        what = "no such folder" if not folder.is_dir() else f"has {len(found)} *_tran_text.txt"
        raise UserError(
            f"{folder}: {what}; a set has tran.tok.txt and desc.tok.txt, or one each of "
            "*_tran_text.txt, *_desc_text.txt and *_action.txt."
        )
    prefix = found[0].name[: -len("tran_text.txt")]
    paths = [found[0], folder / f"{prefix}desc_text.txt", folder / f"{prefix}action.txt"]
    return list(_read_triple(*paths)), paths, {}


def _read_by_id(path: Path) -> dict[str, tuple[str, str]]:
    """Video -> its text, and ``path:line``."""
    texts: dict[str, tuple[str, str]] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        key, _, text = line.strip().partition(" ")
        if check_id(key, where, what="a video") in texts:
            raise UserError(f"{where}: video {key} was given before, at {texts[key][1]}.")
        texts[key] = text, where
    if not texts:
        raise UserError(f"{path}: must have lines `VIDEO word word ...`, but is empty.")
    return texts


def _read_triple(tran: Path, desc: Path, action: Path) -> Iterator[Video]:
    lines = {path: list(read_lines(path)) for path in (tran, desc, action)}
    counts = {path: len(found) for path, found in lines.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{path} has {count:,}" for path, count in counts.items())
        raise UserError(f"line i of each file is video i, but {shown} lines.")
    if not counts[tran]:
        raise UserError(f"{tran}: must have a transcript a line, but is empty.")
    for (number, transcript), (_, summary), (_, feature_file) in zip(*lines.values()):
        where = f"{action}:{number}"
        stem, ending = os.path.splitext(re.split(r"[/\\]", feature_file.strip())[-1])
        if ending != ".npy":
            raise UserError(
                f"{where}: must be the path of a file VIDEO.npy, but is {feature_file[:80]!r}."
            )
        key = check_id(stem, where, what="a video")
        yield Video(key, transcript, summary, (f"{tran}:{number}", f"{desc}:{number}"))


def find_features(corpus: VideoCorpus, folder: Path, *, missing: str) -> FeatureSource:
    """The features of the videos, and of no others; ``corpus`` loses the videos without.

    Args:
        corpus: of :func:`read_how2`.
        folder: with ``VIDEO.npy``.
        missing: ``error``, or ``drop`` videos without features.

    Raises:
        UserError: if there is no such folder, or videos are missing that must not be.
    """
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise UserError(f"--features {folder}: cannot be read ({error.strerror}).") from None
    known = {name[: -len(".npy")] for name in names if name.endswith(".npy")}
    leave_out_videos(corpus, known, f"--features {folder}", missing=missing)
    paths = {
        video.id: folder / f"{video.id}.npy"
        for videos in corpus.videos.values()
        for video in videos
    }
    return open_files(folder.name, paths, dim=FEATURE_DIM)


def write_features(
    source: FeatureSource, path: Path, *, dtype: str, progress: Progress = iter
) -> bool:
    """Writes the feature store, continuing an interrupted writer; one that has all the videos
    stays as it is, because it may have taken hours.

    Args:
        source: of :func:`find_features`.
        path: of the store.
        dtype: float16 or float32.
        progress: wraps the iteration over the videos.

    Returns:
        Whether it was written.

    Raises:
        UserError: naming the file, if features are not ``[T, 2048]`` finite numbers.
    """
    if path.exists():
        store = FeatureStore(path)
        if store.dim == FEATURE_DIM and store.dtype == dtype and set(source.keys) <= set(store.ids):
            return False
    import_features(
        source,
        path,
        attributes=FEATURE_ATTRIBUTES,
        dtype=dtype,
        overwrite=True,
        progress=progress,
    )
    return True
