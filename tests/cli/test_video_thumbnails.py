"""Seconds of the features, and images of the frames that they are of."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fairseq_mm.cli.inspect_videos import clip_step, video_times
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import MediaFile

NATIVE = {"stride": 4, "frame_rate": "native"}


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """40 frames at 10 a second, each brighter than the last."""
    from toy_videos import write_video

    levels = (np.arange(40) * 6).astype(np.uint8)
    frames = np.broadcast_to(levels[:, None, None, None], (40, 32, 48, 3))
    path = tmp_path_factory.mktemp("film") / "a.mp4"
    return MediaFile("a", write_video(path, frames, fps=10))


def level_of(uri):
    image = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))
    assert image.size == (48, 32)
    return float(np.asarray(image).mean()) / 6


def test_seconds_are_known_where_the_store_or_the_video_knows_the_rate():
    assert clip_step({"stride": 16, "frame_rate": 25.0}) == 0.64
    assert clip_step({"stride": 16, "frame_rate": "native"}) is None
    assert clip_step({"stride": 16, "frame_rate": "native"}, 20.0) == 0.8
    assert clip_step({"stride": np.int64(8), "frame_rate": np.float64(16)}, 20.0) == 0.5
    assert clip_step({}) is None
    assert clip_step({"frame_rate": 25.0}, 25.0) is None


def test_thumbnails_are_of_the_middles_of_equal_parts(video):
    times = video_times(video, 10, NATIVE)
    assert times.step == pytest.approx(0.4, rel=0.05)
    expected = [4 * i + 2 for i in range(10)]
    assert [level_of(uri) for uri in times.thumbnails] == pytest.approx(expected, abs=0.9)
    # a store at 5 frames a second: row i is of seconds 0.8 i to 0.8 (i + 1)
    times = video_times(video, 5, {"stride": 4, "frame_rate": 5.0})
    assert times.step == 0.8
    expected = [8 * i + 4 for i in range(5)]
    assert [level_of(uri) for uri in times.thumbnails] == pytest.approx(expected, abs=0.9)


def test_there_are_never_too_many_and_the_last_frame_fills_up(video):
    assert len(video_times(video, 13, {"stride": 3, "frame_rate": "native"}).thumbnails) == 12
    times = video_times(video, 3, {"stride": 64, "frame_rate": "native"})
    assert [level_of(uri) for uri in times.thumbnails] == pytest.approx([32, 39, 39], abs=0.9)
    assert video_times(video, 5, {}) == (None, ())


def test_the_frames_before_damage_are_shown(video, tmp_path):
    content = bytearray(Path(video.path).read_bytes())
    start = content.index(b"mdat") + 4
    length = content.index(b"moov") - start
    content[start + length // 2 : start + length] = bytes(length - length // 2)
    (tmp_path / "c.mp4").write_bytes(content)
    damaged = MediaFile("c", str(tmp_path / "c.mp4"))
    thumbnails = video_times(damaged, 10, {"stride": 4, "frame_rate": 10.0}).thumbnails
    assert [level_of(uri) for uri in thumbnails[:3]] == pytest.approx([2, 6, 10], abs=0.9)
    assert len(thumbnails) == 10


def test_a_file_that_is_no_video_is_refused(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "b.mp4").write_bytes(b"no video")
    with pytest.raises(UserError, match="is no video, or its head or index is missing"):
        video_times(MediaFile("b", str(tmp_path / "b.mp4")), 4, NATIVE)
