"""A run writes every readable video once, in order, however often it is interrupted."""

import itertools
import os

import numpy as np
import pytest
from numerics import assert_close
from toy_videos import frames_of, write_video

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.extract import runner
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.extract.media import VIDEOS, list_images

COUNTS = (9, 3, 13, 30, 5, 8, 21)
CLIPS = (2, 1, 3, 7, 1, 2, 5)
OPTIONS = {"batch_size": 4, "workers": 0, "dtype": "float32"}


@pytest.fixture(scope="module")
def extractor():
    return build_extractor("mc3_18", weights="none", size=16, frames=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    for i, count in enumerate(COUNTS):
        options = {"movflags": "faststart"}
        write_video(folder / f"{i}.mp4", frames_of(count, seed=i), options=options)
    long = frames_of(100, seed=9)
    write_video(folder / "long.mp4", long, options={"movflags": "faststart"})
    return folder


@pytest.fixture
def folder(tmp_path, made):
    (tmp_path / "videos").mkdir()
    for i in range(len(COUNTS)):
        os.link(made / f"{i}.mp4", tmp_path / "videos" / f"{i}.mp4")
    return tmp_path / "videos"


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "out.h5")


def extract_to_store(extractor, videos, output, **options):
    return runner.extract_to_store(extractor, extractor.reader(), videos, output, **options)


def listed(folder):
    return list_images([str(folder)], ids="stem", kind=VIDEOS)


def truncated(made, path) -> None:
    content = (made / "long.mp4").read_bytes()
    path.write_bytes(content[: len(content) // 2])


def contents(path):
    store = FeatureStore(path)
    return store.ids, [store.read(key) for key in store.ids]


def table(path):
    with open(path) as file:
        return [line.rstrip("\n").split("\t") for line in file]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_video_stands_in_the_store_in_order(extractor, folder, output, workers):
    videos = listed(folder)
    summary = extract_to_store(extractor, videos, output, **{**OPTIONS, "workers": workers})
    assert summary[:4] == (7, 0, 7, sum(CLIPS))
    ids, rows = contents(output)
    assert ids == [str(i) for i in range(7)]
    assert [len(item) for item in rows] == list(CLIPS)
    for item, expected in zip(rows, extractor.extract([video.path for video in videos])):
        assert_close(item, expected)
    attributes = FeatureStore(output).attributes
    assert {key: attributes[key] for key in extractor.identity} == extractor.identity
    assert (attributes["frame_rate"], attributes["stride"]) == ("native", 4)
    rows = table(output + ".videos.tsv")
    assert rows[0] == ["id", "clips", "frames", "frame_rate", "seconds"]
    assert rows[4] == ["3", "7", "30", "25", "1.200"]
    assert not os.path.exists(output + ".unreadable.tsv")
    assert not os.path.exists(output + ".partial")


def test_clips_of_several_videos_share_full_batches(extractor, folder, output, monkeypatch):
    sizes = []
    compute = extractor._compute
    monkeypatch.setattr(
        extractor, "_compute", lambda clips: sizes.append(len(clips)) or compute(clips)
    )
    extract_to_store(extractor, listed(folder), output, **OPTIONS)
    assert sizes == [4, 4, 4, 4, 4, 1]


@pytest.mark.parametrize("num_done", [1, 2, 4, 7])
def test_an_interrupted_run_continues_to_equal_bits(
    extractor, made, folder, output, tmp_path, monkeypatch, num_done
):
    (folder / "1b.mp4").write_bytes(b"broken")
    truncated(made, folder / "2b.mp4")
    videos = listed(folder)
    whole = str(tmp_path / "whole.h5")
    extract_to_store(extractor, videos, whole, **OPTIONS)

    writer = runner.FeatureStoreWriter
    append, finish = writer.append, writer.finish
    calls = itertools.count(1)

    def interrupted_append(self, *item):
        append(self, *item)
        if next(calls) == num_done:
            raise KeyboardInterrupt

    monkeypatch.setattr(writer, "append", interrupted_append)
    with pytest.raises(KeyboardInterrupt):
        extract_to_store(extractor, videos, output, **OPTIONS)
    assert not os.path.exists(output)
    monkeypatch.setattr(writer, "append", append)
    monkeypatch.setattr(writer, "finish", finish)
    with open(output + ".partial/videos.tsv", "a") as file:
        file.write("3\t7\t30")  # torn

    decoded = []
    decode = runner.decode_files
    monkeypatch.setattr(
        runner,
        "decode_files",
        lambda videos, *rest, **options: decoded.extend(videos) or decode(videos, *rest, **options),
    )
    summary = extract_to_store(extractor, videos, output, **OPTIONS)
    assert len(decoded) == 9 - num_done
    assert (summary.num_items, summary.num_extracted) == (7, 7 - num_done)
    (ids, rows), (expected_ids, expected) = contents(output), contents(whole)
    assert ids == expected_ids
    for item, other in zip(rows, expected):
        np.testing.assert_array_equal(item, other)
    for suffix in (".unreadable.tsv", ".videos.tsv"):
        assert table(output + suffix) == table(whole + suffix)
    assert not os.path.exists(output + ".partial")


def test_unreadable_videos_are_listed_counted_and_left_out(extractor, made, folder, output):
    (folder / "3.mp4").unlink()
    (folder / "3.mp4").write_bytes(b"")
    truncated(made, folder / "4b.mp4")
    summary = extract_to_store(extractor, listed(folder), output, **OPTIONS)
    assert (summary.num_items, summary.num_unreadable) == (6, 2)
    lines = table(output + ".unreadable.tsv")
    assert lines[0] == [
        str(folder / "3.mp4"),
        "is no video, or its head or index is missing (Invalid data found when processing input).",
    ]
    assert lines[1][0] == str(folder / "4b.mp4")
    assert lines[1][1].startswith("is truncated or damaged after ")
    assert FeatureStore(output).ids == ["0", "1", "2", "4", "5", "6"]


def test_strict_ends_at_the_first_unreadable_video(extractor, folder, output):
    (folder / "2.mp4").unlink()
    (folder / "2.mp4").write_bytes(b"")
    with pytest.raises(UserError, match=r"2\.mp4: is no video"):
        extract_to_store(extractor, listed(folder), output, strict=True, **OPTIONS)
