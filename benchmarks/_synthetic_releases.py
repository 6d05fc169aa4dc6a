"""Random releases of WritingPrompts, VIST, COCO and How2, in their layouts and of any share of
their sizes, for ``full_size.py``.

Words are drawn from a Zipf distribution with two exponents, as counts in large corpora fall: about
as 1/rank among the frequent words, and faster behind a knee. With the knees below, the thresholds
of preparation leave dictionaries of about the published sizes.
"""

import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

DIM = 2048
# examples of train, valid and test at full size
PAIRS = (272_600, 15_620, 15_138)
STORY_WORDS, PROMPT_WORDS = 1000, 28
STORIES, ALBUMS, ALBUM_IMAGES = (40_155, 4_990, 5_055), 10_000, 20
IMAGES, CAPTIONS = (113_287, 5_000, 5_000), 5
VIDEOS = (73_993, 2_965, 2_127)
TRANSCRIPT_WORDS, SUMMARY_WORDS = 291, 33
FRAMES = (10, 300)  # of a video, and their mean, which is about a quarter of How2's
MEAN_FRAMES = 45
SMALLEST_SPLIT = 100

_SYLLABLES = ["".join(pair) for pair in itertools.product("bcdfghjklmnprstvwxyz", "aeiou")]
_POOL_ROWS = 8192


class RandomText:
    """Sentences of random words.

    Args:
        seed: of the random numbers.
        types: number of different words.
        knee: rank behind which counts fall faster.
    """

    def __init__(self, seed: int, *, types: int, knee: int) -> None:
        self._random = np.random.default_rng(seed)
        rank = np.arange(types, dtype=np.float64)
        weights = 1 / ((rank + 2.7) * (1 + (rank / knee) ** 1.25))
        self._cumulated = np.cumsum(weights / weights.sum())
        self._cumulated[-1] = 1
        self._words = [_word(number) for number in range(types)]

    def sentences(self, lengths: Sequence[int]) -> Iterator[str]:
        """A sentence of each length, with a full stop at its end.

        Args:
            lengths: number of words of each, the full stop included.
        """
        step = max(1, 1_000_000 // max(1, int(np.mean(lengths))))
        for start in range(0, len(lengths), step):
            several = lengths[start : start + step]
            drawn = np.searchsorted(self._cumulated, self._random.random(sum(several))).tolist()
            words = list(map(self._words.__getitem__, drawn))
            begin = 0
            for length in several:
                yield " ".join([*words[begin : begin + length - 1], "."])
                begin += length

    def lengths(self, number: int, mean: int) -> list[int]:
        """Lengths of sentences, from half to one and a half of their mean."""
        return self._random.integers(mean // 2, mean + mean // 2, number, endpoint=True).tolist()


def _word(number: int) -> str:
    """The more frequent, the shorter."""
    syllables = [_SYLLABLES[number % 100]]
    while number >= 100:
        number = number // 100 - 1
        syllables.append(_SYLLABLES[number % 100])
    return "".join(reversed(syllables))


def scaled(sizes: Sequence[int], fraction: float) -> list[int]:
    """Examples of train, valid and test; of the last two no fewer than ``SMALLEST_SPLIT``."""
    return [max(SMALLEST_SPLIT, round(size * fraction)) for size in sizes]


def make_writingprompts(folder: Path, fraction: float) -> None:
    """``{train,valid,test}.wp_source`` and ``.wp_target``: prompts of 14 to 42 words, stories of
    1,000."""
    text = RandomText(1, types=1_000_000, knee=8000)
    for split, number in zip(("train", "valid", "test"), scaled(PAIRS, fraction)):
        prompts = text.lengths(number, PROMPT_WORDS)
        _write_lines(folder / f"{split}.wp_source", text.sentences(prompts))
        _write_lines(folder / f"{split}.wp_target", text.sentences([STORY_WORDS] * number))


def make_vist(folder: Path, fraction: float) -> None:
    """``{train,val,test}.story-in-sequence.json``, stories of five images of an album, and
    ``features.h5`` of all albums' images, one row each."""
    text, random = RandomText(2, types=100_000, knee=2000), np.random.default_rng(3)
    albums = max(30, round(ALBUMS * fraction))
    for split, number in zip(("train", "val", "test"), scaled(STORIES, fraction)):
        sentences = text.sentences(text.lengths(5 * number, 10))
        annotations = []
        for story, album in enumerate(random.integers(albums, size=number).tolist()):
            chosen = sorted(random.choice(ALBUM_IMAGES, 5, replace=False).tolist())
            for position, image in enumerate(chosen):
                sentence = next(sentences)
                annotation = {
                    "story_id": f"{split}{story}",
                    "storylet_id": f"{split}{5 * story + position}",
                    "album_id": str(album),
                    "photo_flickr_id": _image(album, image),
                    "worker_arranged_photo_order": position,
                    "worker_id": "W",
                    "tier": "story-in-sequence",
                    "setting": "first-2-pick-and-tell",
                    "text": sentence,
                    "original_text": sentence.capitalize(),
                }
                annotations.append([annotation])
        content = {"info": {}, "images": [], "albums": [], "annotations": annotations}
        (folder / f"{split}.story-in-sequence.json").write_text(json.dumps(content))
    keys = [_image(album, image) for album in range(albums) for image in range(ALBUM_IMAGES)]
    _write_store(folder / "features.h5", keys)


def _image(album: int, image: int) -> str:
    return str(1_000_000 + ALBUM_IMAGES * album + image)


def make_coco(folder: Path, fraction: float) -> None:
    """``dataset_coco.json``, images with five captions, and ``features.h5``, one row an image."""
    text = RandomText(4, types=100_000, knee=2000)
    images: list[dict[str, object]] = []
    for split, number in zip(("train", "val", "test"), scaled(IMAGES, fraction)):
        captions = text.sentences(text.lengths(CAPTIONS * number, 10))
        for _ in range(number):
            sentences = []
            for _ in range(CAPTIONS):
                caption = next(captions)
                sentences.append({"raw": caption.capitalize(), "tokens": caption.split()[:-1]})
            image_id = len(images) + 1
            images.append(
                {
                    "filepath": f"{split}2014",
                    "filename": f"COCO_{split}2014_{image_id:012}.jpg",
                    "imgid": image_id - 1,
                    "cocoid": image_id,
                    "split": split,
                    "sentences": sentences,
                }
            )
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    _write_store(folder / "features.h5", [str(image["filename"]) for image in images])


def make_how2(folder: Path, fraction: float) -> None:
    """``text/SET/{tran,desc}.tok.txt`` and ``features/VIDEO.npy``, 10 to 300 float16 rows each.

    The files are links to some hundred, so that the release takes little of the disk.
    """
    text, random = RandomText(5, types=300_000, knee=4000), np.random.default_rng(6)
    pool, features = folder / "pool", folder / "features"
    pool.mkdir()
    features.mkdir()
    rows = _random_rows(random)
    lengths = np.clip(FRAMES[0] + random.exponential(MEAN_FRAMES - FRAMES[0], 400), *FRAMES)
    files = []
    for number, length in enumerate(lengths.astype(int).tolist()):
        files.append(pool / f"{number}.npy")
        start = int(random.integers(len(rows) - length))
        np.save(files[-1], rows[start : start + length])
    for name, number in zip(("sum_train", "sum_cv", "sum_devtest"), scaled(VIDEOS, fraction)):
        (folder / "text" / name).mkdir(parents=True)
        keys = [f"{name}_{video:06}" for video in range(number)]
        for side, mean in (("tran", TRANSCRIPT_WORDS), ("desc", SUMMARY_WORDS)):
            lines = map(" ".join, zip(keys, text.sentences(text.lengths(number, mean))))
            _write_lines(folder / "text" / name / f"{side}.tok.txt", lines)
        for key, file in zip(keys, random.integers(len(files), size=number).tolist()):
            os.link(files[file], features / f"{key}.npy")


def _write_lines(path: Path, lines: Iterator[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def _random_rows(random: np.random.Generator) -> np.ndarray:
    """Not negative, as pooled features are."""
    return np.abs(random.standard_normal((_POOL_ROWS, DIM), dtype=np.float32)).astype(np.float16)


def _write_store(path: Path, keys: Sequence[str]) -> None:
    """A feature store of one row an item."""
    from fairseq_mm.data.feature_store_writer import FeatureStoreWriter

    random = np.random.default_rng(7)
    rows = _random_rows(random)
    chosen = random.integers(len(rows), size=len(keys)).tolist()
    attributes = {"extractor": "random"}
    with FeatureStoreWriter(path, dim=DIM, dtype="float16", attributes=attributes) as writer:
        for index, (key, row) in enumerate(zip(keys, chosen)):
            # moved by its index, so that no two images have the same features
            writer.append(key, np.roll(rows[row], index % DIM)[None])
        writer.finish()


RELEASES = {
    "writingprompts": make_writingprompts,
    "vist": make_vist,
    "coco": make_coco,
    "how2": make_how2,
}

if __name__ == "__main__":
    _, name, folder, size = sys.argv
    Path(folder).mkdir(parents=True)
    RELEASES[name](Path(folder), float(size))
