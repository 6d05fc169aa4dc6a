r"""How2 (Sanabria et al. 2018): videos with transcripts, summaries and action features.

TEXT has a folder for each set, such as sum_train, sum_cv and sum_devtest (written transcripts) or
sum_asr_train and so on (automatic ones), in one of two layouts:

  tran.tok.txt and desc.tok.txt: lines `VIDEO word word ...`, each file in
  its own order;
  tr_tran_text.txt, tr_desc_text.txt and tr_action.txt (or with cv_ or dete_ in
  place of tr_): line i of each file is the transcript, the summary and the
  path of the feature file of video i, which gives the video its id.

Features are files VIDEO.npy of shape [rows, 2048], one row per 16 frames without overlap, from a 3D
ResNeXt-101 (Hara et al. 2018, trained on Kinetics; Sanabria et al. 2018, section 3). Several sets
can form one split:

  fairseq-mm prepare how2 TEXT --features video_action_features \
      --output data-bin/how2
  ... --train sum_train sum_asr_train --valid sum_cv --test sum_devtest

Run again with --overwrite to continue an interrupted import of features.
"""

import argparse
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from fairseq_mm.data.input_files import SPLITS, check_id, read_lines, unreadable
from fairseq_mm.data.record_split import VIDEOS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example, check_once

if TYPE_CHECKING:
    from fairseq_mm.data.feature_importers import FeatureSource

# split -> the set that the paper uses for it
SETS = {"train": ["sum_train"], "valid": ["sum_cv"], "test": ["sum_devtest"]}
# Yu et al. 2021, section 4.1
PAPER_VIDEOS = {"train": 73_993, "valid": 2_965, "test": 2_156}
# number of the paper's released references; no known files of the other splits match the paper
HOW2_VIDEOS = {"test": 2_127}
FEATURE_DIM = 2048
FEATURES_FILE = "features.h5"
# known attributes of the network, as in ``fairseq-mm extract``; weights and preprocessing were not
# published with the features
FEATURE_ATTRIBUTES = {
    "data_set": "how2",
    "extractor": "resnext101_3d",
    "frames_per_clip": 16,
    "stride": 16,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", type=Path, metavar="TEXT", help="Folder of the sets.")
    for split, sets in SETS.items():
        parser.add_argument(
            f"--{split}",
            nargs="*",
            default=sets,
            metavar="SET",
            help=f"Sets that make the {split} split; without a name no such split (default: "
            f"{' '.join(sets)}).",
        )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="ACTIONS",
        help="Folder of VIDEO.npy, which become DIR/features.h5; without it the data folder is for "
        "models that read only text.",
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "float32"),
        default="float32",
        help="Type of the numbers in the feature store (default: %(default)s).",
    )


def read(args: argparse.Namespace) -> Corpus:
    corpus = read_how2(args.text, {split: getattr(args, split) for split in SETS})
    if args.features is not None:
        source = find_features(
            corpus, args.features, missing=args.missing or args.missing_by_default
        )

        def write(output: Path, _: Path) -> str:
            path, number = output / FEATURES_FILE, f"{len(source.keys):,} videos"
            if write_features(source, path, dtype=args.dtype):
                return f"wrote {path}: {number}"
            return (
                f"{path} has the features of all {number} already and stays; delete it to have it "
                "made anew"
            )

        corpus.write_features = write
    return corpus


def read_how2(folder: Path, sets: dict[str, list[str]]) -> Corpus:
    """Read How2 from a folder with a subfolder for each set, such as ``sum_train``.

    ``sets`` maps a split to the names of the sets that form it.
    """
    videos: dict[str, list[Example]] = {}
    exceptions: dict[str, list[str]] = {}
    files: list[str] = []
    for split in SPLITS:
        for name in sets.get(split, []):
            examples, paths, unpaired = _read_set(folder / name)
            videos.setdefault(split, []).extend(examples)
            files += map(str, paths)
            exceptions.update((f"{name}: {what}", ids) for what, ids in unpaired.items())
    # counts of other sets cannot be compared with the paper
    whole = [split for split in videos if sets.get(split) == SETS[split]]
    notes = []
    for split in whole:
        note = f"{split}: {len(videos[split]):,} videos read, {PAPER_VIDEOS[split]:,} in the paper"
        if split in HOW2_VIDEOS:
            note += f", {HOW2_VIDEOS[split]:,} in its authors' released references"
        notes.append(note)
    corpus = Corpus(
        VIDEOS,
        "how2",
        ", ".join(f"{split} {' + '.join(sets[split])}" for split in videos),
        dict(videos),
        files,
        published={split: number for split, number in HOW2_VIDEOS.items() if split in whole},
        notes=notes,
    )
    for what, ids in exceptions.items():
        corpus.add_exception(what, ids)
    corpus.check_ids("; no two of the sets may have the same videos")
    return corpus


def _video(key: str, transcript: tuple[str, str], summary: tuple[str, str]) -> Example:
    texts = {"transcript": [transcript[0]], "summary": [summary[0]]}
    return Example(texts, transcript[1], key, [key], places={"summary": summary[1]})


def _read_set(folder: Path) -> tuple[list[Example], list[Path], dict[str, list[str]]]:
    """Read the videos of a set of How2 from its folder."""
    with_ids = [folder / f"{side}.tok.txt" for side in ("tran", "desc")]
    if any(path.exists() for path in with_ids):
        transcripts, summaries = map(_read_by_id, with_ids)
        videos = [
            _video(key, transcript, summaries[key])
            for key, transcript in transcripts.items()
            if key in summaries
        ]
        unpaired = {
            "videos without a summary, left out": [x for x in transcripts if x not in summaries],
            "videos without a transcript, left out": [x for x in summaries if x not in transcripts],
        }
        return videos, with_ids, unpaired
    transcript_files = sorted(folder.glob("*_tran_text.txt"))
    if len(transcript_files) != 1:
        what = f"has {len(transcript_files)} *_tran_text.txt"
        what = what if folder.is_dir() else "no such folder"
        raise UserError(
            f"{folder}: {what}; a set has tran.tok.txt and desc.tok.txt, or one each of "
            "*_tran_text.txt, *_desc_text.txt and *_action.txt."
        )
    # the prefix differs from set to set (tr_, cv_, dete_)
    prefix = transcript_files[0].name[: -len("tran_text.txt")]
    paths = [folder / f"{prefix}{name}.txt" for name in ("tran_text", "desc_text", "action")]
    return list(_read_triple(*paths)), paths, {}


def _read_by_id(path: Path) -> dict[str, tuple[str, str]]:
    """Read lines ``VIDEO word word ...``; return the text and its ``path:line`` by video."""
    texts: dict[str, tuple[str, str]] = {}
    seen: dict[str, str] = {}
    for number, line in read_lines(path):
        if line.strip():
            where = f"{path}:{number}"
            key, _, text = line.strip().partition(" ")
            check_once(f"video {check_id(key, where, what='a video')}", where, seen)
            texts[key] = text, where
    return texts


def _read_triple(tran: Path, desc: Path, action: Path) -> Iterator[Example]:
    lines = {path: list(read_lines(path)) for path in (tran, desc, action)}
    counts = {path: len(numbered) for path, numbered in lines.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{path} has {count:,}" for path, count in counts.items())
        raise UserError(f"line i of each file is video i, but {shown} lines.")
    for (number, transcript), (_, summary), (_, feature_file) in zip(*lines.values()):
        where = f"{action}:{number}"
        # the paths were written on other systems: os.path knows one separator only
        name = re.split(r"[/\\]", feature_file.strip())[-1]
        key = check_id(name.removesuffix(".npy"), where, what="a video")
        yield _video(key, (transcript, f"{tran}:{number}"), (summary, f"{desc}:{number}"))


def find_features(corpus: Corpus, folder: Path, *, missing: str) -> "FeatureSource":
    """Find the features ``VIDEO.npy`` of a corpus; ``missing`` says how to treat videos without."""
    from fairseq_mm.data.feature_importers import FeatureSource, read_file

    try:
        # one listing instead of 79,000 questions to a network file system
        names = set(os.listdir(folder))
    except OSError as error:
        raise unreadable(f"--features {folder}", error) from None
    absent = {
        key: f"{folder} has no {key}.npy"
        for key in corpus.visual_keys()
        if f"{key}.npy" not in names
    }
    corpus.leave_out_missing(absent, policy=missing)
    keys = corpus.visual_keys()
    return FeatureSource(folder.name, keys, lambda i: read_file(folder / f"{keys[i]}.npy"))


def write_features(source: "FeatureSource", path: Path, *, dtype: str) -> bool:
    """Write the features of videos to a store; return False if the store at ``path`` already has
    all videos with this dtype."""
    from fairseq_mm.data.feature_importers import import_features
    from fairseq_mm.data.feature_store import FeatureStore

    if path.exists():
        # a store with all videos is kept, because it may have taken hours
        store = FeatureStore(path)
        if store.dim == FEATURE_DIM and store.dtype == dtype and set(source.keys) <= set(store.ids):
            return False
    import_features(
        source,
        path,
        attributes=FEATURE_ATTRIBUTES,
        dtype=dtype,
        overwrite=True,
        progress=functools.partial(tqdm, desc="features", unit=" videos", disable=None),
    )
    return True
